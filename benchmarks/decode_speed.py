"""CPU beam search: tokens and sentences per second beside Hugging Face's ``generate``, at random weights of one size.

    python benchmarks/decode_speed.py [--write]      needs: pip install 'regard[bench]'; takes about two minutes

Both decode the same number of tokens of the same sentences with as many beams: the end symbol is made unlikely, and
comes when it is forced. Two workloads:

    equal   one batch, all sources and all outputs of one length
    real    lengths as in text: sentences in batches of one size, each output as long as its source. Ours are sorted by
            length first, as ``regard translate`` does; Hugging Face gets them as they come, and once more sorted.

Time is the process's CPU time with one thread (other processes hardly disturb it), and wall time with all.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard import decode
from regard.models import Transformer, TransformerConfig
from regard.nn import to_int8

RESULTS = Path(__file__).parent / "results" / "decode_cpu.json"
VOCAB, DIM, FFN, HEADS, ENCODER, DECODER, BEAMS, BATCH = 8000, 256, 1024, 4, 6, 2, 5, 32
PAD, BOS, EOS = 0, 1, 2
Batches = list[list[Tensor]]


def ours() -> Transformer:
    config = TransformerConfig(
        vocab_size=VOCAB, dim=DIM, ffn_dim=FFN, heads=HEADS, encoder_layers=ENCODER, decoder_layers=DECODER
    )
    model = Transformer(config).eval()
    model.embedding.weight.data[EOS] = 0  # its logit is 0, and the likeliest ones are far above
    return model


def theirs() -> Any:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=DIM,
        encoder_layers=ENCODER,
        decoder_layers=DECODER,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN,
        decoder_ffn_dim=FFN,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=512,
    )
    model = MarianMTModel(config).eval()
    model.model.shared.weight.data[EOS] = 0
    return model


def decode_ours(model: Transformer, batches: Batches) -> int:
    """The number of tokens written, without end symbols."""
    count = 0
    for batch in batches:
        with torch.no_grad():
            memory = model.encode(pad_sequence(batch, True, PAD))
        found = decode.beam(model, memory, beams=BEAMS, limits=decode.Limits(ratio=1.0, extra=0))
        count += sum(len(row[0].tokens) - 1 for row in found)
    return count


def decode_theirs(model: Any, batches: Batches) -> int:
    from transformers import LogitsProcessor, LogitsProcessorList

    class Ends(LogitsProcessor):  # type: ignore[misc]
        """Forces the end symbol where a sentence is as long as its source."""

        def __init__(self, lengths: Tensor) -> None:
            self.lengths = lengths.repeat_interleave(BEAMS)
            self.due = set(lengths.tolist())

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            written = input_ids.shape[1] - 1
            if written in self.due:
                rows = (self.lengths == written).nonzero().flatten()
                scores[rows] = -torch.inf
                scores[rows, EOS] = 0.0
            return scores

    count = 0
    for batch in batches:
        source = pad_sequence(batch, True, PAD)
        mask = (source != PAD).long()
        lengths = mask.sum(-1)
        longest = int(lengths.max()) + 1
        found = model.generate(
            input_ids=source,
            attention_mask=mask,
            num_beams=BEAMS,
            do_sample=False,
            max_new_tokens=longest,
            logits_processor=LogitsProcessorList([Ends(lengths)]),
        )
        count += int(((found != PAD) & (found != BOS) & (found != EOS)).sum())
    return count


def sentences(lengths: list[int]) -> list[Tensor]:
    return [torch.cat((torch.randint(3, VOCAB, (n - 1,)), torch.tensor([EOS]))) for n in lengths]


def in_batches(items: list[Tensor]) -> Batches:
    return [items[i : i + BATCH] for i in range(0, len(items), BATCH)]


def workloads() -> dict[str, tuple[Batches, Batches, Batches]]:
    """For each: ours, theirs as they come, theirs sorted."""
    torch.manual_seed(0)
    equal = in_batches(sentences([25] * BATCH))
    drawn = (torch.randn(4 * BATCH) * 0.55 + 2.85).exp().round().clamp(4, 80).long().tolist()  # median 17, mean 20
    real = sentences(drawn)
    by_length = in_batches(sorted(real, key=len))
    return {"equal": (equal, equal, equal), "real": (by_length, in_batches(real), by_length)}


def seconds(f: Callable[[], int], clock: Callable[[], float], repeats: int) -> tuple[float, int]:
    best, count = float("inf"), 0
    for _ in range(repeats):
        start = clock()
        count = f()
        best = min(best, clock() - start)
    return best, count


def measure(repeats: int, counts: list[int]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    mine, other = ours(), theirs()
    small = to_int8(mine)
    rows = []
    for threads in counts:
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        for name, (own, unsorted, by_length) in workloads().items():
            runs: dict[str, Callable[[], int]] = {
                "regard": lambda: decode_ours(mine, own),
                "regard, int8": lambda: decode_ours(small, own),
                "Hugging Face": lambda: decode_theirs(other, unsorted),
            }
            if name == "real":
                runs["Hugging Face, sorted"] = lambda: decode_theirs(other, by_length)
            count = sum(map(len, own))
            for who, run in runs.items():
                took, tokens = seconds(run, clock, repeats)
                rows.append(
                    {
                        "workload": name,
                        "threads": threads,
                        "who": who,
                        "seconds": round(took, 4),
                        "tokens": tokens,
                        "tokens_per_second": round(tokens / took),
                        "sentences_per_second": round(count / took, 1),
                    }
                )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'workload':9}{'threads':>8}  {'who':22}{'seconds':>9}{'tokens':>8}{'tokens/s':>10}{'sent./s':>9}{'ratio':>7}"
    ]
    for row in rows:
        peer = next(
            r
            for r in rows
            if (r["workload"], r["threads"], r["who"]) == (row["workload"], row["threads"], "Hugging Face")
        )
        ratio = peer["seconds"] / row["seconds"]
        lines.append(
            f"{row['workload']:9}{row['threads']:8}  {row['who']:22}{row['seconds']:9.3f}{row['tokens']:8}"
            f"{row['tokens_per_second']:10}{row['sentences_per_second']:9.1f}{ratio:7.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS.name}")
    default = sorted({1, torch.get_num_threads()})
    parser.add_argument("--threads", type=int, nargs="+", default=default, help="more than 1 needs a quiet machine")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    rows = measure(options.repeats, options.threads)
    about = {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "model": f"d {DIM}, ffn {FFN}, {HEADS} heads, {ENCODER}+{DECODER} layers, vocabulary {VOCAB}",
        "search": f"{BEAMS} beams, batches of {BATCH}",
    }
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    print(table(rows))
    if options.write:
        RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
