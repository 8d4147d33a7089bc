"""An encoder of few positions reads documents of any length in windows, each state as its own window would have it."""

import berts
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.models import PointerConfig, PointerTransformer
from regard.models._windows import Windows
from regard.tasks.base.pretrained import alone, take_over
from regard.tasks.summarization.train import encoder_settings

POSITIONS, ROOM, STRIDE, MARGIN = 16, 14, 7, 3


@pytest.fixture(scope="module")
def models():
    """A pointer with an encoder of 16 positions, and that encoder alone, in float64."""
    encoder = berts.encoder(positions=POSITIONS).double()
    ids = {name: getattr(encoder.config, name) for name in ("vocab_size", "pad_id", "bos_id", "eos_id")}
    pointer = PointerTransformer(PointerConfig(**encoder_settings(encoder), **ids)).double().eval()
    take_over(pointer, encoder)
    return pointer, encoder


def documents(*lengths):
    torch.manual_seed(len(lengths))
    c = berts.words()
    return [torch.cat((torch.randint(5, len(c), (n,)), torch.tensor([c.eos_id]))) for n in lengths]


def by_hand(encoder, document):
    """Window by window, as the words of the module say it."""
    c, size = encoder.config, len(document)
    starts = [0]
    while starts[-1] + ROOM < size - 1:
        starts.append(starts[-1] + STRIDE)
    states = []
    for start in starts:
        inside = document[start:] if start == starts[-1] else torch.cat((document[start : start + ROOM], document[-1:]))
        tokens = torch.cat((torch.tensor([c.bos_id]), inside))
        assert len(tokens) <= POSITIONS and tokens[-1] == c.eos_id
        states.append(encoder.encode(tokens[None]).states[0, 1:])
    owner = [min(max(0, (p - MARGIN) // STRIDE), len(starts) - 1) for p in range(size)]
    return torch.stack([states[k][p - starts[k]] for p, k in enumerate(owner)])


def test_what_fits_is_read_as_bert_reads_it(models):
    """[CLS] x … [SEP], and the state of every token of it, to the last bit."""
    pointer, encoder = models
    (document,) = documents(ROOM)
    with torch.no_grad():
        theirs = encoder.encode(torch.cat((torch.tensor([encoder.bos_id]), document))[None]).states
        assert torch.equal(pointer.encode(document[None]).states, theirs[:, 1:])


@torch.no_grad()
def test_every_state_is_that_of_its_window_in_any_batch(models):
    pointer, encoder = models
    some = documents(1, 5, 13, 14, 15, 20, 21, 22, 28, 29, 40, 63)
    source = torch.nn.functional.pad(pad_sequence(some, True, encoder.pad_id), (0, 5))
    together = pointer.encode(source).states
    for i, document in enumerate(some):
        expected = by_hand(encoder, document)
        torch.testing.assert_close(together[i, : len(document)], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(pointer.encode(document[None]).states[0], expected, rtol=0, atol=1e-12)
        assert pointer.windows(len(document)) == Windows(POSITIONS).count(len(document))


def test_gradients_reach_all_windows_and_none_comes_from_padding(models):
    pointer, _ = models
    (document,) = documents(40)
    states = pointer.encode(torch.nn.functional.pad(document, (0, 9))[None]).states
    states[0, : len(document)].sum().backward()
    seen = pointer.source_positions.weight.grad.abs().sum(1) > 0
    assert seen.all()
    pointer.zero_grad()


class OneDevice(TorchDispatchMode):
    """No operation reads a tensor of another device: a scalar on the CPU would be copied, and a graph forbids that."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        assert {t.device.type for t in read} <= {"meta"}, f"{func} reads {[t.device.type for t in read]}"
        return func(*args, **(kwargs or {}))


def test_shapes_alone_decide_what_is_done():
    """As CUDA graphs need it: without numbers, on the device "meta", it is all done, so nothing waits for one."""
    with torch.device("meta"):
        source, lengths = torch.empty(3, 50, dtype=torch.int64), torch.empty(3, dtype=torch.int64)
    seen = []

    def encode(tokens, sizes):
        seen.append((tokens.shape, sizes.shape))
        return torch.empty(*tokens.shape, 8, device="meta")

    with OneDevice():
        states = Windows(POSITIONS).encode(source, lengths, encode, bos=3, eos=4, pad=0)
    assert states.shape == (3, 50, 8) and seen == [((3 * 6, POSITIONS), (3 * 6,))]


def test_a_pointers_encoder_can_be_taken_out_again(models):
    pointer, encoder = models
    again = alone(pointer)
    assert again.config == encoder.config
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in encoder.state_dict().items())


def test_what_cannot_be_is_told(models):
    size = {"vocab_size": 20, "dim": 8, "heads": 2, "ffn_dim": 8}
    with pytest.raises(ValueError, match=r'windows = true needs positions = "learned"'):
        PointerConfig(**size, windows=True)
    with pytest.raises(ValueError, match="output_scale must be a number above 0, got 0"):
        PointerConfig(**size, output_scale=0)
    with pytest.raises(ValueError, match="takes only lengths, got mask"):
        models[0].encode(torch.tensor([[7, 4]]), mask=torch.ones(2, 2, dtype=torch.bool))
    other = PointerTransformer(PointerConfig(**size, encoder_layers=1, decoder_layers=1))
    with pytest.raises(ValueError, match=r"does not fit into the model, embedding\.weight"):
        take_over(other, models[1])
