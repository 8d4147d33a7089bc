"""Scoring functions compared: the same RNN and the same tiny Transformer, trained with each on Multi30k en → fr.

    python benchmarks/scores_on_multi30k.py multi30k/tok --minutes 9                # as far as the time allows; again
    python benchmarks/scores_on_multi30k.py multi30k/tok --stages train translate   # goes on. These, beside other work
    python benchmarks/scores_on_multi30k.py multi30k/tok --stages time              # this, with the machine to itself
    python benchmarks/scores_on_multi30k.py multi30k/tok --evaluate                 # where sacrebleu is: the table

Models are trained side by side, each in a process of its own, for the same reduced number of updates, and translate the
tests; then, one after the other, alone on the machine, they are timed: ms per update, sentences of test2016 per second
of beam search. What is done is in --records, one file, and is not done again; a table that lacks rows says so.
BLEU is sacrebleu's on the tokenised files as they are (-tok none -s none).

Multi30k has no gold word alignments: AER is measured against links found by counting
(regard.align.statistical), sure where both
directions find them and possible where one does. With --hansards FOLDER also against those of the Hansards test set,
lower-cased, which people made: far from captions, so it compares scores and says little else.

In the Transformer the score stands in every attention, but for Location (cross-attention alone: it cannot see keys) and
for Relative and Rotary (self-attention, in place of sinusoids). In the RNN it is that of e_ti = a(s_{t−1}, h_i).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import regard.align as align
from regard.align.statistical import align_words
from regard.data import Corpus, Limits
from regard.evaluate import evaluate
from regard.files.toml import read_toml, to_toml
from regard.files.whole import write_whole
from regard.models.folder import make_model
from regard.tasks.base.settings import Fitted, Settings
from regard.tasks.translation.train import TranslationTask
from regard.tasks.translation.translator import Translator, load
from regard.text.subwords import Subwords
from regard.train import Position, Ranks
from regard.train.updater import GraphEngine, Updater

ROOT = Path(__file__).resolve().parents[1]
TESTS = {"test2016": "test_2016_flickr", "test2017": "test_2017_flickr", "mscoco": "test_2017_mscoco"}
SCORES = ("Dot", "Additive", "General", "Bilinear", "Location", "Relative", "Rotary", "PerHead")
SIZES: dict[str, dict[str, Any]] = {
    "Transformer": {"kind": "transformer", "dim": 128, "ffn_dim": 256, "encoder_layers": 4, "decoder_layers": 4},
    "RNN": {"kind": "rnn", "dim": 256, "hidden_dim": 512},
}
STAGES = ("train", "translate", "time")
ALIGNED = ("test2016", "Hansards")
SLOW = ("PerHead", "Additive")
STOPPED, FAILED = "stopped; goes on next time", "FAILED"
LAST_MINUTE = 45.0  # seconds that one more model takes to be measured, at most


def model_table(family: str, score: str) -> dict[str, Any]:
    """[model] of config.toml."""
    kind: Any = score.lower()
    both = {**SIZES[family], "heads": 4, "dropout": 0.3}
    if family == "RNN":
        mix = [[1, "dot"], [1, "additive"], [1, "general"], [1, "relative"]]
        return {**both, "score": mix if score == "PerHead" else kind}
    both["norm"] = "pre"
    if score == "PerHead":
        of_self = [[1, "dot"], [1, "additive"], [1, "relative"], [1, "rotary"]]
        return {**both, "self_score": of_self, "cross_score": [[2, "dot"], [1, "additive"], [1, "general"]]}
    if score in ("Relative", "Rotary"):
        return {**both, "self_score": kind, "cross_score": "dot", "positions": "none"}
    return {**both, "self_score": "dot" if score == "Location" else kind, "cross_score": kind}


def tables(work: Path, family: str, score: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that a run is given; all but [model] and the learning rate is the same."""
    return {
        "data": {
            "source": str(work / "train.en"),
            "target": str(work / "train.fr"),
            "valid_source": str(work / "val.en"),
            "valid_target": str(work / "val.fr"),
            "cache": str(work / "cache"),
        },
        "subwords": {"path": str(work / "tokenizer.json"), "dropout": 0.0},
        "model": model_table(family, score),
        "training": {
            "updates": options.updates,
            "tokens": options.tokens,
            "lr": 3e-3 if family == "Transformer" else 1e-3,
            "schedule": "cosine",
            "warmup": max(1, options.updates // 6),
            "smoothing": 0.1,
            "rdrop": 0.0,
            "valid_every": max(1, options.updates // 15),
            "average": 3,
            "patience": 0,
            "bleu": False,
            "seed": options.seed,
            "device": options.device,
        },
    }


def names() -> list[tuple[str, str]]:
    return [(family, score) for family in SIZES for score in SCORES]


def slug(family: str, score: str) -> str:
    return f"{family}-{score}".lower()


# --- data ---


def lines(path: Path, most: int | None = None) -> list[str]:
    import gzip

    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.decode().splitlines()[:most]


def stem(corpus: Path, name: str, side: str) -> Path:
    found = [p for p in corpus.glob(f"{name}.lc.norm.tok.{side}*") if p.suffix in (f".{side}", ".gz")]
    if not found:
        raise FileNotFoundError(f"{corpus}: expected {name}.lc.norm.tok.{side}, perhaps gzipped")
    return found[0]


def lay_out(corpus: Path, work: Path, options: argparse.Namespace) -> None:
    """Text and subwords that all models share."""
    for name in ("train", "val"):
        for side in ("en", "fr"):
            text = "".join(line + "\n" for line in lines(stem(corpus, name, side), options.lines)).encode()
            path = work / f"{name}.{side}"
            if not path.exists() or path.read_bytes() != text:  # caches go by the time of a file
                write_whole(path, text)
    if not (work / "tokenizer.json").exists():
        both = [lines(work / f"train.{side}") for side in ("en", "fr")]
        Subwords.learn(both, options.vocab_size).save(work / "tokenizer.json")


def corpora(work: Path, fitted: Fitted) -> tuple[Corpus, Corpus]:
    """From the cache, once one process has been here."""
    subwords, cache = Subwords.load(work / "tokenizer.json"), str(work / "cache")
    limits = Limits(max_tokens=fitted.data.max_tokens, max_ratio=fitted.data.max_ratio)
    train = Corpus.build(fitted.data.training(), subwords, limits=limits, cache=cache)
    valid = Corpus.build(
        fitted.data.validation(), subwords, limits=Limits(max_tokens=fitted.data.max_tokens), cache=cache
    )
    return train, valid


# --- training ---


def train(work: Path, family: str, score: str, options: argparse.Namespace, deadline: float) -> str:
    """To its end or until the time is over; what is stopped goes on from its last checkpoint another time."""
    name = slug(family, score)
    write_whole(work / f"{name}.toml", to_toml(tables(work, family, score, options)).encode())
    command = ["-m", "regard", "train", "--config", f"{work / name}.toml", "--out", str(work / name)]
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, "PYTHONPATH": str(ROOT)})
    how = ended(process, max(1.0, deadline - time.monotonic()))
    print(f"{name}: {how}", flush=True)
    return how


def ended(process: subprocess.Popen[bytes], seconds: float) -> str:
    """How it ended; if it takes longer, it is asked to stop."""
    try:
        return "trained" if process.wait(seconds) == 0 else FAILED
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return STOPPED


def side_by_side(some: Sequence[tuple[str, str]], work: Path, options: argparse.Namespace, deadline: float) -> None:
    """Each in a process of its own: this script, for one model, with records of its own. The slow ones begin."""
    waiting, running = sorted(some, key=lambda one: one[1] not in SLOW), {}
    threads = max(1, (os.cpu_count() or 1) // max(1, min(options.side_by_side, len(waiting))))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    while (waiting or running) and time.monotonic() < deadline + LAST_MINUTE:
        while waiting and len(running) < options.side_by_side and time.monotonic() < deadline:
            family, score = waiting.pop(0)
            own = {"families": family, "scores": score, "records": work / f"{slug(family, score)}.json"}
            own |= {"side-by-side": 1, "results": work / "results", "minutes": (deadline - time.monotonic()) / 60}
            given = [part for key, value in own.items() for part in (f"--{key}", str(value))]
            stages = [stage for stage in options.stages if stage != "time"]
            command = [sys.executable, __file__, *sys.argv[1:], *given, "--stages", *stages]
            with open(work / f"{slug(family, score)}.log", "ab") as log:
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            running[slug(family, score)] = process
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            print(f"{name}: {FAILED if code else 'done'}", flush=True)
            if code:
                print("\n".join((work / f"{name}.log").read_text().splitlines()[-5:]), flush=True)
        if not running and time.monotonic() > deadline:
            break
    for name, process in running.items():
        process.kill()
        print(f"{name}: {STOPPED}", flush=True)


# --- measuring ---


def ms_per_update(work: Path, family: str, score: str, options: argparse.Namespace) -> float:
    """Of the engine that trained it, alone: the same batches over and over until none is new, then timed."""
    with Ranks.join(options.device) as ranks:
        on_gpu = ranks.device.type == "cuda"
        settings = Settings.from_tables(tables(work, family, score, options))
        fitted = Fitted.of(settings, 29_000, on_gpu)
        corpus, valid = corpora(work, fitted)
        torch.manual_seed(0)
        model = make_model({**fitted.model, "vocab_size": len(corpus.subwords)}).to(ranks.device)
        task = TranslationTask(model, corpus, valid, fitted, ranks.device, bleu=False)
        steps = task.steps(Position(), ranks)
        some = [next(steps) for _ in range(options.timed)]
        graphs = on_gpu and task.static
        engine = (
            GraphEngine(task.objective, fitted.training, ranks, len(task.sums), print)
            if graphs
            else Updater(task.objective, fitted.training, ranks, len(task.sums))
        )
        best = float("inf")
        for turn in range(-3 if graphs else -1, 2):
            start = time.perf_counter()
            for k, step in enumerate(some):
                engine.update([(step.tensors, step.tokens)], 1000 + k)
            engine.read()  # waits
            if turn >= 0:
                best = min(best, time.perf_counter() - start)
        return 1000 * best / len(some)


Pairs = Sequence[tuple[str, str]]


def alignment_error(translator: Translator, pairs: Pairs, gold: Sequence[align.Alignment]) -> dict[str, Any]:
    """AER in the layer and of the head, or the mean of heads, shifted or not, where it is least."""
    outputs = translator.forced(pairs, attention=True)
    layers, heads = next(o.translations[0].attention[0].weights.shape[:2] for o in outputs if o.translations)
    found = []
    for layer, head, shift in itertools.product(range(layers), ("mean", *range(heads)), (True, False)):
        linked = [
            align.links(translator.word_weights(o.translations[0], layer=layer, head=head, shift=shift))
            if o.translations
            else frozenset()
            for o in outputs
        ]
        found.append({"aer": 100 * align.quality(linked, gold).aer, "layer": layer, "head": head, "shift": shift})
    return min(found, key=lambda entry: entry["aer"])


def hansards(folder: Path) -> tuple[Pairs, list[align.Alignment]]:
    halves = [line.lower().split("|||") for line in lines(folder / "enfr.src-tgt")]
    pairs = [(" ".join(en.split()), " ".join(fr.split())) for en, fr in halves]
    return pairs, align.read_pharaoh(folder / "enfr.gold", base=1)


def captions(corpus: Path, work: Path, most: int | None) -> tuple[Pairs, list[align.Alignment]]:
    """test2016, with links found by counting in it and the training set: sure if both directions find them."""
    sides = [lines(stem(corpus, TESTS["test2016"], side), most) for side in ("en", "fr")]
    pairs = list(zip(*sides, strict=True))
    path = work / "links.json"
    if not path.exists():
        more = zip(*(lines(work / f"train.{side}") for side in ("en", "fr")), strict=True)
        texts = [(en.split(), fr.split()) for en, fr in (*pairs, *more)]
        both = [align_words(texts, method=method)[: len(pairs)] for method in ("intersection", "union")]
        write_whole(path, json.dumps([[sorted(one) for one in kind] for kind in both]).encode())
    sure, possible = ([frozenset(map(tuple, one)) for one in kind] for kind in json.loads(path.read_text()))
    return pairs, [align.Alignment(a, b) for a, b in zip(sure, possible, strict=True)]


def machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "CPU"
    return {"machine": name, "torch": torch.__version__}


def translate(corpus: Path, work: Path, family: str, score: str, options: argparse.Namespace) -> dict[str, Any]:
    """What it makes of the tests, and of the word alignments."""
    folder = work / slug(family, score)
    translator = load(folder, device=None if options.device == "auto" else options.device)
    final = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    training = read_toml(folder / "config.toml")["training"]
    record: dict[str, Any] = {
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "updates": training["updates"],
        "seed": training["seed"],
        "valid_loss": final.get("valid_loss"),
        "beam": options.beam,
        "hypotheses": {},
    }
    for test, name in TESTS.items():
        some = lines(stem(corpus, name, "en"), options.test_lines)
        outputs = translator.outputs(some, beam=options.beam, batch_tokens=options.batch_tokens)
        record["hypotheses"][test] = [output.text for output in outputs]
    record["alignment"] = {"test2016": alignment_error(translator, *captions(corpus, work, options.test_lines))}
    if options.hansards:
        record["alignment"]["Hansards"] = alignment_error(translator, *hansards(options.hansards))
    return record


def timed(corpus: Path, work: Path, family: str, score: str, options: argparse.Namespace) -> dict[str, Any]:
    """How long an update and a translation take it."""
    translator = load(work / slug(family, score), device=None if options.device == "auto" else options.device)
    some = lines(stem(corpus, TESTS["test2016"], "en"), options.test_lines)
    how: dict[str, Any] = {"beam": options.beam, "batch_tokens": options.batch_tokens}
    translator.outputs(some, **how)  # warms up: kernels are compiled for every shape that is met
    start = time.perf_counter()
    translator.outputs(some, **how)
    rate = len(some) / (time.perf_counter() - start)
    where = machine(translator.device)
    del translator
    return {"sentences_per_s": rate, "ms_per_update": ms_per_update(work, family, score, options), **where}


# --- the table ---


def scored(records: dict[str, Any], corpus: Path) -> dict[str, Any]:
    """Records with BLEU in place of translations; without, where sacrebleu is not installed."""
    return {
        name: {**{key: x for key, x in record.items() if key != "hypotheses"}, "bleu": bleu(record, corpus)}
        for name, record in records.items()
        if "hypotheses" in record
    }


def bleu(record: dict[str, Any], corpus: Path) -> dict[str, float]:
    found = {}
    for test, outputs in record["hypotheses"].items():
        references = lines(stem(corpus, TESTS[test], "fr"), len(outputs))
        try:
            found[test] = evaluate(outputs, references, tokenize="none", smooth="none")[0].score
        except ModuleNotFoundError:
            return {}
    return found


def markdown(rows: dict[str, Any]) -> str:
    """The table, a row per model, those that are missing named."""
    done = [(family, score) for family, score in names() if slug(family, score) in rows]
    left = [f"{family} {score}" for family, score in names() if (family, score) not in done]
    text = [f"PARTIAL: {len(done)} of {len(names())} models; not yet {', '.join(left)}.\n"] if left else []
    if untimed := [f"{family} {score}" for family, score in done if "machine" not in rows[slug(family, score)]]:
        text.append(f"NOT TIMED: {', '.join(untimed)}.\n")
    text += [
        f"| model | score | parameters | BLEU {' / '.join(TESTS)} | AER {' / '.join(ALIGNED)} "
        "| ms per update | sentences/s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for family, score in done:
        row = rows[slug(family, score)]
        bleu = " / ".join(f"{row['bleu'][test]:.1f}" for test in TESTS) if row["bleu"] else "not scored yet"
        aer = " / ".join(f"{row['alignment'][name]['aer']:.1f}" for name in ALIGNED if name in row["alignment"])
        cells = [family, score, f"{row['parameters']:,}", bleu, aer]
        speeds = [f"{row['ms_per_update']:.1f}", f"{row['sentences_per_s']:,.0f}"] if "machine" in row else ["–", "–"]
        text.append("| " + " | ".join([*cells, *speeds]) + " |")
    if done:
        one = rows[slug(*done[0])]
        where = next((f"{r['machine']}, torch {r['torch']}; " for r in rows.values() if "machine" in r), "")
        text.append(
            f"\n{where}{one['updates']:,} updates each, seed {one['seed']}, "
            f"beam {one['beam']}. BLEU of tokenised text (-tok none -s none). AER of the best layer and head: on "
            "test2016 against links found by counting, not by people; on the Hansards against people's, out of domain."
        )
    return "\n".join(text) + "\n"


def read_records(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def report(records: dict[str, Any], corpus: Path, results: Path) -> None:
    rows = scored(records, corpus)
    table = markdown(rows)
    print(table)
    write_whole(results / "scores-on-multi30k.json", (json.dumps(rows, indent=1) + "\n").encode())
    write_whole(results / "scores-on-multi30k.md", table.encode())


# --- the command ---


def run(corpus: Path, options: argparse.Namespace) -> None:
    """All trained and translated with, side by side; then timed, one after the other; as far as the time allows."""
    deadline = time.monotonic() + 60 * options.minutes
    work, path = options.work, options.records
    records = read_records(path)
    lay_out(corpus, work, options)
    corpora(work, Fitted.of(Settings.from_tables(tables(work, *names()[0], options)), 29_000, False))  # fills the cache
    captions(corpus, work, options.test_lines)
    wanted = [(f, s) for f in options.families for s in options.scores]

    def trained(one: tuple[str, str]) -> bool:
        return (work / slug(*one) / "model.safetensors").exists()

    def lacks(one: tuple[str, str], sign: str) -> bool:
        return sign not in records.get(slug(*one), {})

    def keep(one: tuple[str, str], found: dict[str, Any], said: str) -> None:
        """Beside what others may have written meanwhile."""
        records.update(read_records(path))
        records[slug(*one)] = records.get(slug(*one), {}) | found
        write_whole(path, (json.dumps(records) + "\n").encode())
        print(f"{slug(*one)}: {said}", flush=True)

    gone = [one for one in wanted if "time" in options.stages and lacks(one, "ms_per_update") and not trained(one)]
    left = [one for one in wanted if lacks(one, "hypotheses") or one in gone]
    if options.side_by_side > 1 and set(options.stages) != {"time"}:
        side_by_side(left, work, options, deadline - LAST_MINUTE)
        for one in left:
            if found := read_records(work / f"{slug(*one)}.json").get(slug(*one)):
                keep(one, found, "translated")
    else:
        for one in left:
            if "train" in options.stages and not trained(one) and train(work, *one, options, deadline) == FAILED:
                raise SystemExit(1)
            if "translate" in options.stages and trained(one) and lacks(one, "hypotheses"):
                keep(one, translate(corpus, work, *one, options), "translated")
    for one in wanted if "time" in options.stages else ():
        if not lacks(one, "ms_per_update"):
            continue
        if not trained(one) or time.monotonic() > deadline - LAST_MINUTE / 2:
            print(
                f"{slug(*one)}: not timed, {'there was no time' if trained(one) else 'it is not trained'}", flush=True
            )
            continue
        keep(one, timed(corpus, work, *one, options), "timed")
    report(records, corpus, options.results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the folder of *.lc.norm.tok.en and .fr, perhaps gzipped")
    parser.add_argument("--hansards", type=Path, help="the folder of enfr.src-tgt and enfr.gold")
    parser.add_argument("--work", type=Path, default=Path("out/scores"), help="models, while they are made")
    parser.add_argument("--records", type=Path, default=Path("out/scores-records.json"), help="what is done")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--evaluate", action="store_true", help="only score what --records has, and print the table")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--families", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--scores", nargs="+", default=list(SCORES), choices=list(SCORES))
    parser.add_argument("--side-by-side", type=int, default=8)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=18_000)
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--timed", type=int, default=24, help="batches that ms per update is timed on")
    parser.add_argument("--lines", type=int, help="only the first lines of the training data, to try it")
    parser.add_argument("--test-lines", type=int, help="only the first lines of the tests, to try it")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.evaluate:
        report(json.loads(options.records.read_text()), options.corpus, options.results)
    else:
        run(options.corpus, options)


if __name__ == "__main__":
    main()
