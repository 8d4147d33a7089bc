"""Training speed: target tokens per second of regard's loop, beside a plain eager loop around torch.nn.Transformer.

    python benchmarks/train_speed.py            # on this CPU, or on a GPU where there is one; under two minutes
    python benchmarks/train_speed.py --json out.json
    pip install ".[bench]"                      # for the rows of Hugging Face

Same architecture, same batches (lengths as in Multi30k, drawn), same loss (label smoothing), Adam and clipping;
bfloat16 autocast on a GPU. The peer is given variable shapes and its loss is never waited for. All run in turns, and
the best time of each counts. If transformers is installed, its Marian model is trained by the same plain loop and, if
accelerate is too, by transformers' own Trainer: on the same batches, made beforehand, with logging, saving and
evaluation off, timed after some updates. What cannot run has a row that says why.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from _marian import Batch, marian, trainer_seconds, wait
from torch import Tensor, nn

from regard.common.ragged import Ragged
from regard.data import Corpus, batches
from regard.data.corpus import Part
from regard.models.folder import make_model
from regard.tasks.base.pairs import fill_rows, tensors
from regard.tasks.base.settings import Data, Fitted, Settings
from regard.tasks.translation.train import TranslationObjective
from regard.train import Ranks
from regard.train.updater import GraphEngine, Updater

VOCABULARY = 10_000
SUMS = 2  # of an objective: loss and negative log-likelihood
LAYERS = {"encoder_layers": 4, "decoder_layers": 4, "dropout": 0.3, "self_score": "dot"}
SIZES = {
    "tiny, d 128": {"dim": 128, "ffn_dim": 256, "heads": 4, **LAYERS},
    "small, d 256": {"dim": 256, "ffn_dim": 512, "heads": 4, **LAYERS},
}


def corpus(pairs: int, seed: int = 0) -> Corpus:
    """Random subwords in sentences as long as Multi30k's: 14 ± 4 English, French in proportion."""
    g = np.random.default_rng(seed)
    source = np.clip(g.normal(14.5, 4.5, pairs).round(), 4, 45).astype(np.int64)
    target = np.clip((source * g.normal(1.1, 0.15, pairs)).round(), 4, 50).astype(np.int64)

    def side(lengths: Any) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        words = (4 + (VOCABULARY - 4) * g.random(offsets[-1]) ** 3).astype(np.uint32)  # some are frequent
        return Ragged(words, offsets)

    table = Ragged(np.arange(VOCABULARY, dtype=np.uint32), np.arange(VOCABULARY + 1))
    ids = SimpleNamespace(pad_id=0, bos_id=1, eos_id=2)  # of subwords, all that batches ask for
    return Corpus(ids, (side(source), side(target)), table, [Part(0, pairs, 1.0)], [])  # type: ignore[arg-type]


class Plain(nn.Module):
    """What one writes around torch.nn.Transformer."""

    def __init__(self, size: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size["dim"], padding_idx=0)
        self.core = nn.Transformer(
            size["dim"],
            size["heads"],
            size["encoder_layers"],
            size["decoder_layers"],
            size["ffn_dim"],
            size["dropout"],
            batch_first=True,
            norm_first=True,
        )
        self.dropout, self.scale = nn.Dropout(size["dropout"]), size["dim"] ** 0.5
        angle = torch.arange(512)[:, None] * 10000 ** (-torch.arange(0, size["dim"], 2) / size["dim"])
        self.register_buffer("waves", torch.stack((angle.sin(), angle.cos()), -1).flatten(-2))
        nn.init.normal_(self.embedding.weight, std=size["dim"] ** -0.5)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.waves[: tokens.shape[1]])

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        causal = torch.ones(target_in.shape[1], target_in.shape[1], dtype=torch.bool, device=source.device).triu(1)
        out = self.core(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=causal,
            src_key_padding_mask=source == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=True,
        )
        return F.linear(out, self.embedding.weight)


def plain_loop(model: nn.Module, device: torch.device, call: Callable[[list[Tensor]], Tensor]) -> Callable[[Any], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98))

    def step(tensors: list[Tensor]) -> None:
        moved = [t.to(device, non_blocking=True) for t in tensors]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = call(moved)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), moved[3].flatten(), ignore_index=0, label_smoothing=0.1
            )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def marian_step(model: Any, device: torch.device) -> Callable[[Any], None]:
    def call(t: list[Tensor]) -> Tensor:
        seen = (t[0] != 0).long()
        return model(input_ids=t[0], attention_mask=seen, decoder_input_ids=t[2], use_cache=False).logits

    return plain_loop(model, device, call)


Round = Callable[[list[Batch]], float | str]  # trains on these batches: the seconds it took, or why it did not


def timed(step: Callable[[Batch], object], device: torch.device) -> Round:
    def seconds(batches: list[Batch]) -> float:
        wait(device)
        start = time.perf_counter()
        for batch in batches:
            step(batch)
        wait(device)
        return time.perf_counter() - start

    return seconds


def ours(size: dict[str, Any], device: torch.device, tokens: int, compiled: bool) -> dict[str, Round]:
    out: dict[str, Round] = {}
    ranks = Ranks(0, 1, device)
    kinds = [("regard", 0.0, False), ("regard, R-Drop", 5.0, False)]
    if compiled:
        kinds += [("regard, compiled", 0.0, True), ("regard, compiled, R-Drop", 5.0, True)]
    for name, rdrop, compile in kinds:
        training = {"tokens": tokens, "rdrop": rdrop, "multiple": 8}
        fitted = Fitted.of(Settings(data=Data(), model=size, training=training), 29_000, device.type == "cuda")
        torch.manual_seed(0)
        model = make_model({**fitted.model, "vocab_size": VOCABULARY}).to(device)
        dtype = torch.bfloat16 if device.type == "cuda" else None
        objective = TranslationObjective(model, smoothing=0.1, rdrop=rdrop, dtype=dtype, compile=compile)
        if device.type == "cuda":
            engine: Updater = GraphEngine(objective, fitted.training, ranks, SUMS, print)
        else:
            engine = Updater(objective, fitted.training, ranks, SUMS)
        count = iter(range(1, 1 << 30))
        out[name] = timed(lambda t, e=engine, c=count: e.update([(t, tokens)], next(c)), device)
    return out


def peers(size: dict[str, Any], device: torch.device) -> dict[str, Round]:
    torch.manual_seed(0)
    plain = Plain(size).to(device)

    def marian_loop() -> Round:
        return timed(marian_step(marian(size, VOCABULARY, device), device), device)

    def marian_trainer() -> Round:  # a model of its own for each round: a Trainer leaves its mark on one
        return lambda batches: trainer_seconds(marian(size, VOCABULARY, device), batches, device)

    return {
        "torch.nn.Transformer": timed(plain_loop(plain, device, lambda t: plain(t[0], t[2])), device),
        "transformers Marian": optional(marian_loop),
        "transformers Marian, Trainer": optional(marian_trainer),
    }


def optional(make: Callable[[], Round]) -> Round:
    """A round that says why it did not run: a peer that is missing or of another version ends no benchmark."""
    make = cache(make)

    def seconds(batches: list[Batch]) -> float | str:
        try:
            return make()(batches)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    return seconds


def measure(
    size: dict[str, Any], device: torch.device, tokens: int, count: int, rounds: int, compiled: bool
) -> dict[str, float | str]:
    """Target tokens per second of each, or why it did not run."""
    epoch = batches(corpus(29_000), tokens=tokens, multiple=8)
    plain = [tensors(epoch[k]) for k in range(min(count, len(epoch)))]
    text = sum(int((t[3] != 0).sum()) for t in plain)
    whole = [fill_rows(t, tokens // (t[0].shape[1] + t[2].shape[1])) for t in plain]
    if device.type == "cuda":
        plain, whole = ([[t.pin_memory() for t in b] for b in some] for some in (plain, whole))
    own = ours(size, device, tokens, compiled)
    runners = {**own, **peers(size, device)}
    best: dict[str, float] = {}
    missing: dict[str, str] = {}
    for turn in range(-1 if device.type == "cpu" else -3, rounds):  # turns below 0 warm up
        for name in [name for name in runners if name not in missing]:
            some = whole if name in own and device.type == "cuda" else plain
            seconds = runners[name](some[:2] if turn < 0 and device.type == "cpu" else some)
            if isinstance(seconds, str):
                missing[name] = seconds
            elif turn >= 0:
                best[name] = min(best.get(name, math.inf), seconds)
    return {name: missing[name] if name in missing else text / best[name] for name in runners}


def main() -> None:
    warnings.filterwarnings("ignore", message="enable_nested_tensor")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, help="padded subwords of an update, source and target")
    parser.add_argument("--batches", type=int, help="distinct batches per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="with torch.compile too, which takes minutes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device(options.device)
    on_gpu = device.type == "cuda"
    tokens, count = options.tokens or (16_000 if on_gpu else 2000), options.batches or (60 if on_gpu else 4)
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {tokens} padded tokens an update, {count} batches")
    results: dict[str, Any] = {"device": name, "torch": torch.__version__, "tokens": tokens, "sizes": {}}
    for size, table in SIZES.items():
        speeds = measure(table, device, tokens, count, options.rounds, options.compile)
        results["sizes"][size] = speeds
        base = speeds["torch.nn.Transformer"]
        assert isinstance(base, float)
        for who, speed in speeds.items():
            if isinstance(speed, str):
                print(f"{size:14} {who:28} did not run: {speed}", flush=True)
            else:
                print(f"{size:14} {who:28} {speed:12,.0f} target tokens/s   {speed / base:5.2f} ×", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
