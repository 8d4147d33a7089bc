"""Export to CTranslate2 (https://github.com/OpenNMT/CTranslate2), and decoding with it.

An exported folder contains CTranslate2's files (model.bin, config.json, shared_vocabulary.json) and those of regard's
translator (tokenizer.json, config.toml with a table [ctranslate2]). Sources end with "</s>".
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.decode import NoProbabilities
from regard.decode.engine import EngineHypothesis, TokenLists
from regard.models import RNNSeq2Seq, Transformer
from regard.models.folder import Loaded, read_config, write_config
from regard.models.folder import open as open_folder
from regard.nn import EncoderLayer, FeedForward, LearnedPositions, MultiHeadAttention, SinusoidalPositions
from regard.score import Dot, Rotary, Score
from regard.text.lexicon import FILE as LEXICON
from regard.text.subwords import BOS, EOS, PAD, UNK, Subwords

if TYPE_CHECKING:
    from regard.decode import KnownWords
    from regard.decode.search import Search

__all__ = ["CTranslate2Engine", "export", "to_spec"]

POSITIONS = 1024  # the size of the table where the model computes positions
MOST_UNKNOWN = 50  # the most searches per sentence for a hypothesis without unknown words
MOST_WAYS = 3  # the unknown words with a common prefix before the prefix is suppressed
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}


def export(model: str | os.PathLike[str], out: str | os.PathLike[str], *, positions: int | None = None) -> None:
    """Export a model folder for CTranslate2, atomically, with the same float32 weights.

    CTranslate2 returns the attention of one decoder layer: the one in the model's [align] table, or the middle one. It
    is averaged over the heads unless the table names a head. ``positions`` limits the subwords of a sentence for models
    with sinusoidal positions; the default is 1024, or more if the training lines were longer.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: it exists and is not an empty folder; export to a new or an empty folder")
    loaded = open_folder(model)
    if positions is None:
        positions = max(POSITIONS, 2 * loaded.settings.get("data", {}).get("max_tokens", 0) + 16)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _part(target) as part:
        _write(loaded, part, positions)
        os.replace(part, target)


def to_spec(
    model: Transformer,
    tokens: Sequence[str],
    *,
    positions: int = POSITIONS,
    layer: int = -1,
    head: int | None = None,
    unk_id: int = UNK,
) -> Any:
    """The ``ctranslate2.specs.TransformerSpec`` of a model with this vocabulary; ``.save(folder)`` writes it.

    ``layer`` and ``head`` (None: the mean over heads) select the cross-attention that it returns.
    """
    refuse(model)
    _import_ctranslate2()
    from ctranslate2 import specs

    c = model.config
    if not -c.decoder_layers <= layer < c.decoder_layers or head not in (None, *range(c.heads)):
        raise ValueError(
            f"[align]: expected a layer and head of {c.decoder_layers} × {c.heads}, got layer {layer} and head {head}"
        )
    layer %= c.decoder_layers
    how = {
        "pre_norm": c.norm == "pre",
        "activation": specs.Activation[ACTIVATIONS[c.activation]],
        "ffn_glu": c.activation == "swiglu",
    }
    heads = c.heads if head is None else 1
    encoder = specs.TransformerEncoderSpec(c.encoder_layers, c.heads, **how, **_rotary_options(model.encoder))
    decoder = specs.TransformerDecoderSpec(
        c.decoder_layers, c.heads, alignment_layer=layer, alignment_heads=heads, **how, **_rotary_options(model.decoder)
    )
    source = model.embedding if model.source_embedding is None else model.source_embedding
    encoder.embeddings[0].weight = _array(source.weight)
    decoder.embeddings.weight = _array(model.embedding.weight)
    decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        decoder.projection.bias = _array(model.output_bias)
    places = model.positions if model.source_positions is None else model.source_positions
    encoder.position_encodings.encodings = _places(places, positions, c.dim)
    if not _rotary_options(model.decoder):  # otherwise its specification has no positions
        decoder.position_encodings.encodings = _places(model.positions, positions, c.dim)
    ours: Any
    for written, ours in zip(encoder.layer, model.encoder, strict=True):
        _layer(written, ours)
    for i, (written, ours) in enumerate(zip(decoder.layer, model.decoder, strict=True)):
        _layer(written, ours)
        _attention(written.attention, ours.cross_attention, ours.cross_norm, first=head if i == layer else None)
    if c.norm == "pre":
        _norm(encoder.layer_norm, model.encoder_norm)
        _norm(decoder.layer_norm, model.decoder_norm)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = ours.attention_norm.eps
    spec.config.unk_token, spec.config.eos_token = tokens[unk_id], tokens[c.eos_id]
    spec.config.bos_token = spec.config.decoder_start_token = tokens[c.bos_id]
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    spec.validate()
    spec.optimize()
    return spec


def refuse(model: Transformer | RNNSeq2Seq) -> None:
    """Raise an error if CTranslate2 cannot run the model."""
    if isinstance(model, RNNSeq2Seq):
        raise ValueError("CTranslate2 runs Transformers: this model is recurrent and cannot be exported")
    if type(model) is not Transformer:
        raise ValueError(
            f"CTranslate2 runs plain Transformers: a {type(model).__name__} does more and cannot be exported"
        )
    c = model.config
    if not (c.encoder_layers and c.decoder_layers):
        raise ValueError("only a model with an encoder and a decoder can be exported; this one lacks one of them")
    if c.norm_first() != c.norm_first(decoder=True):
        raise ValueError(
            "CTranslate2 has one norm setting: a model whose decoder_norm differs from norm cannot be exported"
        )
    for name, attention in model.named_modules():
        if isinstance(attention, MultiHeadAttention) and not _supports(
            attention.score, name.endswith("cross_attention")
        ):
            kind = type(attention.score).__name__
            raise ValueError(
                "CTranslate2 supports the dot product, and in self-attention the rotary one: "
                f"{name} has the score {kind} and cannot be exported; "
                'train with self_score = "rotary" or "dot" and cross_score = "dot"'
            )
    for layers in (model.encoder, model.decoder):
        if _rotary_options(layers) and c.positions != "none":
            raise ValueError(
                f"CTranslate2 supports one kind of positions: a model with rotary scores and {c.positions} positions "
                'cannot be exported; train with positions = "none"'
            )


def _supports(score: Score, cross: bool) -> bool:
    if type(score) is Rotary and not cross:
        score = score.inner
    return type(score) is Dot


def _rotary_options(layers: nn.ModuleList) -> dict[str, Any]:
    """The rotary options of a stack's self-attention in CTranslate2's terms; empty without rotary scores."""
    found = [
        {
            "rotary_dim": layer.attention.head_dim if score.dims is None else score.dims,
            "rotary_interleave": score.interleaved,
            "rotary_base": score.base,
        }
        if isinstance(score := layer.attention.score, Rotary)
        else {}
        for layer in cast("Iterable[EncoderLayer]", layers)
    ]
    if any(one != found[0] for one in found):
        raise ValueError("CTranslate2 needs the same rotary score in every layer: this model cannot be exported")
    return found[0]


# --- the folder ---


def _write(loaded: Loaded, folder: Path, positions: int) -> None:
    model, settings = loaded.model, loaded.settings
    refuse(model)
    assert isinstance(model, Transformer)
    align = settings.get("align", {})
    shown = {"layer": align.get("layer", (model.config.decoder_layers - 1) // 2), "head": align.get("head")}
    if model.max_length is not None:
        positions = model.max_length
    to_spec(model, loaded.subwords.names(), positions=positions, **shown).save(str(folder))
    loaded.subwords.save(folder / "tokenizer.json")
    write_config(folder, settings | {"ctranslate2": {"positions": positions, **shown}})
    for name in ("README.md", LEXICON):
        if (loaded.path / name).is_file():
            shutil.copyfile(loaded.path / name, folder / name)


@contextmanager
def _part(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, deleted afterwards unless it was renamed."""
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    part.chmod(0o755)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


# --- weights ---


def _array(t: Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = t.detach().float().cpu().contiguous().numpy()
    return found


def _places(places: nn.Module | None, count: int, dim: int) -> np.ndarray[Any, Any]:
    """The position vectors, [positions, dim]."""
    if isinstance(places, LearnedPositions):
        return _array(places.weight)
    nothing = torch.zeros(1, count, dim)
    return _array((places(nothing) if isinstance(places, SinusoidalPositions) else nothing)[0])


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: Any, *parts: tuple[Tensor, Tensor]) -> None:
    """Write several linear maps of one input as one."""
    spec.weight = _array(torch.cat([weight for weight, _ in parts]))
    spec.bias = _array(torch.cat([bias for _, bias in parts]))


def _layer(spec: Any, layer: EncoderLayer) -> None:
    _attention(spec.self_attention, layer.attention, layer.attention_norm)
    forward: FeedForward = layer.feed_forward
    _linear(spec.ffn.linear_0, (forward.up.weight, forward.up.bias))
    _linear(spec.ffn.linear_1, (forward.down.weight, forward.down.bias))
    if forward.gate is not None:
        _linear(spec.ffn.linear_0_noact, (forward.gate.weight, forward.gate.bias))
    _norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, first: int | None = None) -> None:
    """Write an attention; head ``first`` comes before the others. Grouped key/value heads are expanded."""
    score = attention.score.inner if isinstance(attention.score, Rotary) else attention.score
    assert isinstance(score, Dot)
    heads, size = attention.heads, attention.head_dim
    order = sorted(range(heads), key=lambda h: h != first)
    shared = [h * attention.kv_heads // heads for h in order]
    q, kv = (_rows(some, size) for some in (order, shared))
    maps = [
        (linear.weight[rows], linear.bias[rows])
        for linear, rows in ((attention.q_proj, q), (attention.k_proj, kv), (attention.v_proj, kv))
    ]
    if len(spec.linear) == 2:  # self-attention
        _linear(spec.linear[0], *maps)
    else:
        _linear(spec.linear[0], maps[0])
        _linear(spec.linear[1], *maps[1:])
    _linear(spec.linear[-1], (attention.out_proj.weight[:, q], attention.out_proj.bias))
    if score.scale is not None:
        spec.queries_scale = np.float32(score.scale)
    _norm(spec.layer_norm, norm)


def _rows(heads: list[int], size: int) -> Tensor:
    """The projection rows of these heads."""
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


# --- decoding ---


class CTranslate2Engine:
    """Decodes with CTranslate2: a folder that ``export`` wrote, or any model folder that it can export.

    With ``int8`` CTranslate2 computes in 8 bits, with its own rounding. ``device`` is cpu or cuda, by default a GPU if
    CTranslate2 finds one.
    """

    name, shift = "ctranslate2", True

    def __init__(self, path: str | os.PathLike[str], *, device: str | None = None, int8: bool = False) -> None:
        ctranslate2 = _import_ctranslate2()
        kind, _, index = (device or ("cuda" if ctranslate2.get_cuda_device_count() else "cpu")).partition(":")
        with _open_export(Path(path)) as folder:
            self.subwords = Subwords.load(folder / "tokenizer.json")
            table = read_config(folder)["ctranslate2"]
            try:
                self._translator = ctranslate2.Translator(
                    str(folder),
                    kind,
                    device_index=int(index or 0),
                    compute_type="int8" if int8 else "float32",
                    intra_threads=torch.get_num_threads(),
                )
            except (RuntimeError, ValueError) as error:
                raise ValueError(f"{path}: CTranslate2 cannot use it: {error}") from error
        self._process = os.getpid()
        self.device = torch.device(kind, int(index)) if index else torch.device(kind)
        self.max_length: int | None = table["positions"]
        self.shown: tuple[int, int | None] | None = (table["layer"], table.get("head"))
        self._names = self.subwords.names()
        self._ids = {name: i for i, name in enumerate(self._names)}

    @property
    def _run(self) -> Any:
        """CTranslate2's translator; refused in a forked child, which lacks its threads."""
        if os.getpid() != self._process:
            raise ValueError("the ctranslate2 engine cannot be used in the child of a fork: load the model there")
        return self._translator

    def search(
        self,
        sources: TokenLists,
        prefixes: TokenLists,
        search: Search,
        *,
        number: int,
        ban: Sequence[int],
        words: KnownWords | None = None,
    ) -> list[list[EngineHypothesis]]:
        """As :class:`regard.decode.engine.Engine`.

        CTranslate2 would redistribute the probability of banned tokens. So the first search bans nothing; the few
        sentences that contain a banned token are searched again without it.
        """
        if search.sample:
            raise ValueError("the ctranslate2 engine does not sample: use the torch engine")
        if words is not None:
            rows = zip(sources, prefixes, strict=True)
            return [self._search_known(words, i, row, start, search, ban) for i, (row, start) in enumerate(rows)]
        found = self._search(sources, prefixes, search)
        banned = {PAD, BOS, *ban}
        again = [i for i, row in enumerate(found) if any(banned & {*one.tokens} for one in row)]
        if again:
            these, starts = ([rows[i] for i in again] for rows in (sources, prefixes))
            names = [[self._names[i]] for i in sorted(banned)]
            without = self._search(these, starts, search, suppress_sequences=names)
            for i, row in zip(again, without, strict=True):
                found[i] = row
        doubtful = [
            i
            for i, row in enumerate(found)
            if i in again or prefixes[i] or search.min_length or any(_is_cut(one) for one in row)
        ]
        for i in doubtful:
            found[i] = self._rescore(sources[i], found[i], search.length_penalty)
        return found

    def _search_known(
        self,
        words: KnownWords,
        sentence: int,
        source: Sequence[int],
        prefix: Sequence[int],
        search: Search,
        ban: Sequence[int],
    ) -> list[EngineHypothesis]:
        """Search a sentence repeatedly, suppressing the subwords of unknown words, until no unknown word is found.

        A prefix that leads to several unknown words is suppressed too: otherwise each would need its own search.
        """
        names = [[self._names[i]] for i in sorted({PAD, BOS, *ban})]
        ways: Counter[tuple[int, ...]] = Counter()
        for _ in range(MOST_UNKNOWN):
            [found] = self._search([source], [prefix], search, suppress_sequences=names)
            unknown = {tuple(one) for row in found if (one := words.unknown(sentence, row.tokens))}
            if not unknown:
                break
            ways.update(one[:-1] for one in unknown if len(one) > 1)
            unknown |= {start for start, count in ways.items() if count >= MOST_WAYS}
            names += [self._tokens(one) for one in unknown]
        return self._rescore(source, found, search.length_penalty)

    def _search(
        self, sources: TokenLists, prefixes: TokenLists, search: Search, **options: Any
    ) -> list[list[EngineHypothesis]]:
        lengths = torch.tensor([len(row) + 1 for row in sources])
        longest = search.limits.longest(lengths, self.max_length).tolist()
        longest = [max(most, len(prefix)) for most, prefix in zip(longest, prefixes, strict=True)]
        results = self._run.translate_batch(
            [self._tokens([*row, EOS]) for row in sources],
            [self._tokens(row) for row in prefixes] if any(prefixes) else None,
            beam_size=search.beam,
            num_hypotheses=search.nbest,
            length_penalty=search.length_penalty,
            min_decoding_length=search.min_length,
            no_repeat_ngram_size=search.no_repeat,
            max_decoding_length=max(longest),  # of the batch; longer hypotheses are cut later
            max_input_length=0,
            return_scores=True,
            return_end_token=True,
            **options,
        )
        return [self._hypotheses(r, most, search.length_penalty) for r, most in zip(results, longest, strict=True)]

    def _rescore(self, source: Sequence[int], found: list[EngineHypothesis], alpha: float) -> list[EngineHypothesis]:
        """Rescore as regard does: with prefix and end symbol, and banned tokens keep their probability."""
        rows = [one.tokens[: None if _is_cut(one) else -1] for one in found]
        read = self.read([source] * len(rows), rows, attention=False)
        return sorted(
            (one._replace(score=one.score / len(one.tokens) ** alpha) for one in read), key=lambda f: -f.score
        )

    def read(self, sources: TokenLists, targets: TokenLists, *, attention: bool) -> list[EngineHypothesis]:
        """As :class:`regard.decode.engine.Engine`."""
        source = [self._tokens([*row, EOS]) for row in sources]
        target = [self._tokens(row) for row in targets]
        weights = self._attention(source, target) if attention else [None] * len(source)
        scores = [sum(r.log_probs) for r in self._run.score_batch(source, target, max_input_length=0)]
        if any(map(math.isnan, scores)):
            raise NoProbabilities
        return [
            EngineHypothesis([*row, EOS], score, score, shown)
            for row, score, shown in zip(targets, scores, weights, strict=True)
        ]

    def _attention(self, source: list[list[str]], target: list[list[str]]) -> list[Tensor]:
        """Weights [1, 1, T, S] of each pair, end symbols included. The target is the prefix; the rest is ignored."""
        results = self._run.translate_batch(
            source,
            target,
            beam_size=1,
            max_decoding_length=1 + max(map(len, target), default=0),
            max_input_length=0,
            return_attention=True,
            return_end_token=True,
        )
        return [
            torch.tensor(result.attention[0])[None, None, : len(row) + 1, : len(given)]
            for result, row, given in zip(results, target, source, strict=True)
        ]

    def _tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._names[i] for i in ids]

    def _hypotheses(self, result: Any, most: int, alpha: float) -> list[EngineHypothesis]:
        rows = [[self._ids[name] for name in names] for names in result.hypotheses]
        if any(math.isnan(score) for score in result.scores):
            raise NoProbabilities
        return [
            EngineHypothesis(
                row if len(row) <= most + (row[-1:] == [EOS]) else row[:most], score, score * len(row) ** alpha
            )
            for row, score in zip(rows, result.scores, strict=True)
        ]


def _is_cut(found: EngineHypothesis) -> bool:
    """Whether the length limit cut it off."""
    return found.tokens[-1:] != [EOS]


@contextmanager
def _open_export(path: Path) -> Iterator[Path]:
    """The folder itself if it is an export, else a temporary export."""
    if "ctranslate2" in read_config(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as room:
        export(path, Path(room) / path.name)
        yield Path(room) / path.name


def _import_ctranslate2() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError("CTranslate2 is not installed: pip install 'regard[ctranslate2]'") from error
    return ctranslate2
