"""What recording costs: time beside the same model unrecorded, and bytes kept beside the n × n weights.

    python benchmarks/record.py [--write]      --write puts the table into docs/record.md; takes about a minute

Time is the process's CPU time with one thread, the least of several runs in turn. "all weights" is what returning every
weight costs where the model can do that: `output_attentions=True` of transformers (eager attention, its own loop).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _measure import machine
from torch import nn

import regard

PAGE = Path(__file__).parent.parent / "docs" / "record.md"
LAYERS, HEADS, DIM = 4, 8, 256


def ours(n: int) -> tuple[nn.Module, Callable[[], object], None]:
    model = nn.Sequential(*[regard.nn.EncoderLayer(DIM, HEADS, dropout=0.0) for _ in range(LAYERS)]).eval()
    x = torch.randn(1, n, DIM)
    return model, lambda: model(x), None


def additive(n: int) -> tuple[nn.Module, Callable[[], object], None]:
    d = DIM // HEADS
    made = [
        regard.nn.EncoderLayer(DIM, HEADS, dropout=0.0, score=regard.score.Additive(d, d, d)) for _ in range(LAYERS)
    ]
    model, x = nn.Sequential(*made).eval(), torch.randn(1, n, DIM)
    return model, lambda: model(x), None


def of_torch(n: int) -> tuple[nn.Module, Callable[[], object], None]:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    x = torch.randn(1, n, DIM)
    return model, lambda: model(x), None


def of_transformers(n: int) -> tuple[nn.Module, Callable[[], object], Callable[[], object]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * DIM,
        max_position_embeddings=n,
    )
    model, eager = BertModel(config).eval(), BertModel(config).eval()
    eager.set_attn_implementation("eager")
    ids = torch.randint(0, 1000, (1, n))
    return model, lambda: model(input_ids=ids), lambda: eager(input_ids=ids, output_attentions=True)


MODELS = {
    "regard, Dot": ours,
    "regard, Additive": additive,
    "torch.nn.TransformerEncoder": of_torch,
    "transformers BERT": of_transformers,
}


def seconds(f: Callable[[], object]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def row(name: str, n: int, rounds: int) -> str:
    torch.manual_seed(0)
    model, run, everything = MODELS[name](n)
    traces: list[regard.Trace] = []

    def recorded() -> None:
        with regard.record(model) as trace:
            run()
        traces[:] = [trace]

    ways = {"plain": run, "recorded": recorded} | ({"all": everything} if everything else {})
    with torch.no_grad():
        for f in ways.values():
            f()
        times = {way: min(each) for way, each in _in_turn(ways, rounds).items()}
    dense = LAYERS * HEADS * n * n * 4
    return (
        f"| {name} | {n} | {times['plain'] * 1e3:.0f} ms | {times['recorded'] / times['plain']:.2f} × | "
        + (f"{times['all'] / times['plain']:.2f} ×" if "all" in times else "–")
        + f" | {traces[0].nbytes / 2**20:.1f} MiB | {dense / 2**20:.0f} MiB |"
    )


def _in_turn(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, f in ways.items():
            times[way].append(seconds(f))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/record.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    lines = [
        "| model | n | time | recorded | returning all weights | kept | all weights |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in MODELS:
        for n in options.lengths:
            lines.append(row(name, n, options.rounds))
            print(lines[-1], flush=True)
    lines += [
        "",
        f"{LAYERS} layers, {HEADS} heads, width {DIM}, float32, one thread of {about['cpu']}, torch {about['torch']}, "
        f"{about['date']}.",
    ]
    if options.write:
        before, rest = PAGE.read_text(encoding="utf-8").split("<!-- table:begin -->")
        after = rest.split("<!-- table:end -->")[1]
        table = "\n".join(lines)
        PAGE.write_text(f"{before}<!-- table:begin -->\n{table}\n<!-- table:end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
