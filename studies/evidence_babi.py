"""Does attention land on the facts that an answer rests on? A Transformer trained on bAbI, whose gold facts are known.

    python studies/evidence_babi.py CORPORA --model out/babi/joint [--tasks 1 2 …] [--questions 200]

studies/babi/README.md trains the model; the supporting facts are not seen in training. `python
studies/evidence_page.py` then writes the tables of docs/evidence.md.

Accuracy is of all test questions, exact match. Attention is of the first --questions of each task that have a fact
beside the supporting ones, in the trained model and in an untrained one. Facts are then taken away, from questions that
were answered right, and heads knocked out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from _babi import LOOKS, MEASURES, Reader, Seen, gold_share, judged, on_top, watch
from _evidence import RESULTS, head_name, held_out, rate, rounded
from _measure import machine
from stories import TASKS, Question, path, read

MOST_FACTS = 24  # of stories whose facts are taken away one by one
KNOCKED_OUT, KNOCKED_ON = 4, 64  # heads at a time, and questions of each task that they are missed by


def telling(questions: Sequence[Question]) -> list[Question]:
    """Those with a fact that does not support the answer."""
    return [q for q in questions if len(q.support) < len(q.facts)]


# --- where attention lands ---


def landed(found: Sequence[Seen], look: str, measure: str) -> dict[str, Any]:
    """The share of the supporting facts per layer and head, the mean of heads, and the best head by halves."""
    shares = torch.stack([gold_share(s.facts[look, measure], s.question.support) for s in found]).nan_to_num(0.0)
    mean = torch.stack([gold_share(s.facts[look, measure].mean((0, 1)), s.question.support) for s in found])
    tops = torch.stack([on_top(s.facts[look, measure], s.question.support) for s in found])
    top = torch.stack([on_top(s.facts[look, measure].mean((0, 1)), s.question.support) for s in found])
    whole = torch.stack([s.facts[look, measure].sum(-1) / s.total[look, measure].clamp(min=1e-30) for s in found])
    groups = [s.question.story for s in found]
    chosen = held_out(shares.flatten(1).numpy(), groups)
    return {
        "share": shares.mean(0).tolist(),
        "top": tops.mean(0).tolist(),
        "on_facts": whole.mean(0).tolist(),
        "mean_share": rate(mean.numpy(), groups),
        "mean_top": rate(top.numpy(), groups),
        "best": {**chosen, "head": head_name(chosen["head"], shares.shape[-1])},
    }


def chance(found: Sequence[Seen]) -> dict[str, float]:
    """What rules without a model would give: by length, one fact at random, the last one, the one most like the
    question (the last of those that share most words with it)."""
    by_length = [sum(s.size[i] for i in s.question.support) / sum(s.size) for s in found]
    one = [len(s.question.support) / len(s.question.facts) for s in found]
    last = [len(s.question.facts) - 1 in s.question.support for s in found]
    alike = [most_alike(s.question) in s.question.support for s in found]
    names = ("share", "top", "top_last", "top_alike")
    return {name: float(np.mean(x)) for name, x in zip(names, (by_length, one, last, alike), strict=True)}


def unread(taught: Sequence[Question], asked: Sequence[Question]) -> dict[str, float]:
    """How often one is right who reads no story, and knows what was answered in training: always the commonest answer,
    or the commonest one to the same question."""
    given: dict[str, Counter[str]] = {"": Counter()}
    for q in taught:
        given[""][q.answer] += 1
        given.setdefault(q.question, Counter())[q.answer] += 1
    best = {question: answers.most_common(1)[0][0] for question, answers in given.items()}
    always = [q.answer == best[""] for q in asked]
    alone = [q.answer == best.get(q.question, best[""]) for q in asked]
    return {"always": float(np.mean(always)), "question_alone": float(np.mean(alone))}


def most_alike(question: Question) -> int:
    asked = set(question.question.strip("?").split())
    shared = [len(asked & set(fact.strip(".").split())) for fact in question.facts]
    return max(range(len(shared)), key=lambda i: (shared[i], i))


# --- facts taken away ---


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation; NaN where one side is constant."""
    ranks = [np.argsort(np.argsort(v, kind="stable"), kind="stable").astype(float) for v in (x, y)]
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def one_by_one(reader: Reader, found: Sequence[Seen]) -> dict[str, Any]:
    """Each fact left out of the story, alone: how often the answer changes, and whether attention foretells it."""
    some = [s for s in found if s.right and len(s.question.facts) <= MOST_FACTS]
    without = [s.question.without({i}) for s in some for i in range(len(s.question.facts))]
    if not without:
        return {"questions": 0}
    whole = reader.judge([s.question for s in some]).log_prob
    judged = reader.judge(without)
    gold: list[bool] = [i in s.question.support for s in some for i in range(len(s.question.facts))]
    changed = (~judged.same).float().numpy()
    result: dict[str, Any] = {
        "questions": len(some),
        "gold": float(changed[gold].mean()),
        "other": float(changed[[not x for x in gold]].mean()),
    }
    effects = torch.split(judged.log_prob, [len(s.question.facts) for s in some])
    for look in LOOKS:
        for measure in MEASURES:
            ranks, hits = [], []
            for s, full, left in zip(some, whole, effects, strict=True):
                effect, attention = (full - left).numpy(), s.facts[look, measure].mean((0, 1)).numpy()
                if len(effect) > 2:
                    ranks.append(spearman(effect, attention))
                hits.append(effect.argmax() == attention.argmax())
            known = [x for x in ranks if not np.isnan(x)]
            result[f"{look} {measure}"] = {
                "spearman": float(np.mean(known)) if known else None,
                "agree": float(np.mean(hits)),
            }
    return result


def as_many_others(question: Question, rng: np.random.Generator) -> set[int] | None:
    """As many facts as support the answer, of the others; None where there are not so many."""
    others = [i for i in range(len(question.facts)) if i not in question.support]
    if len(others) < len(question.support):
        return None
    return set(rng.choice(others, len(question.support), replace=False).tolist())


def together(reader: Reader, found: Sequence[Seen], seed: int = 0) -> dict[str, Any]:
    """All supporting facts at once, or as many others: not told, or told and hidden from the answer's attention.

    Every number is how often the answer changes.
    """
    rng = np.random.default_rng(seed)
    chosen = [(s, as_many_others(s.question, rng)) for s in found if s.right]
    some = [(s.question, set(s.question.support), others) for s, others in chosen if others is not None]
    if not some:
        return {"questions": 0}
    questions = [q for q, _, _ in some]
    gold, others = [g for _, g, _ in some], [o for _, _, o in some]
    facts = [set(range(len(q.facts))) for q in questions]

    def changes(which: Sequence[Question], hidden: Sequence[set[int]] | None = None) -> float:
        return float((~reader.judge(which, hidden).same).float().mean())

    return {
        "questions": len(some),
        "not_told": {
            "gold": changes([q.without(g) for q, g in zip(questions, gold, strict=True)]),
            "other": changes([q.without(o) for q, o in zip(questions, others, strict=True)]),
        },
        "hidden": {
            "gold": changes(questions, gold),
            "other": changes(questions, others),
            "all": changes(questions, facts),
            "question": changes(questions, [{len(q.facts)} for q in questions]),
        },
    }


# --- heads knocked out ---


def knocked_out(reader: Reader, questions: Sequence[Question], seed: int = 0) -> dict[str, Any]:
    """The log-probability of the answers without each head, and accuracy without several: one recorded batch."""
    ((trace, found),) = watch(reader, questions)
    batch = reader.batch([s.question for s in found])
    heads = [
        (kind, i, j)
        for kind in ("self", "cross")
        for i in range(trace.kinds[kind])
        for j in range(trace.shape(i, kind=kind)[1])
    ]

    def left(some: Sequence[tuple[str, int, int]]) -> tuple[float, float]:
        cut: dict[tuple[str, int], list[int]] = {}
        for kind, layer, head in some:
            cut.setdefault((kind, layer), []).append(head)
        after = judged(torch.log_softmax(trace.ablate(cut), -1), batch.target_out)
        return float(after.log_prob.mean()), float(after.same.float().mean())

    whole, accuracy = left([])
    effect = np.array([whole - left([head])[0] for head in heads])
    look = {"self": "question", "cross": "answer"}
    result: dict[str, Any] = {"accuracy": accuracy, "effect": effect.tolist(), "heads": heads, "without": {}}
    for measure in MEASURES:
        shares = {
            k: torch.stack([gold_share(s.facts[look[k], measure], s.question.support) for s in found]) for k in look
        }
        share = np.array([float(shares[k][:, i, j].nanmean()) for k, i, j in heads])
        order = np.argsort(-share)
        result["without"][measure] = {
            "spearman": spearman(effect, share),
            "most": left([heads[i] for i in order[:KNOCKED_OUT]])[1],
            "least": left([heads[i] for i in order[-KNOCKED_OUT:]])[1],
        }
    rng = np.random.default_rng(seed)
    draws = [rng.permutation(len(heads))[:KNOCKED_OUT] for _ in range(5)]
    result["without"]["random"] = float(np.mean([left([heads[i] for i in draw])[1] for draw in draws]))
    return result


# --- all of it ---


def task_report(reader: Reader, blank: Reader, questions: Sequence[Question], count: int) -> dict[str, Any]:
    judged = reader.judge(questions)
    result: dict[str, Any] = {"accuracy": rate(judged.same.float().numpy(), [q.story for q in questions])}
    some = telling(questions)[:count]
    if not some:
        return result
    heads = knocked_out(reader, some[:KNOCKED_ON])
    some = sorted(some, key=lambda q: len(q.text))  # little padding
    found = [seen for _, part in watch(reader, some) for seen in part]
    before = [seen for _, part in watch(blank, some, ["weights"]) for seen in part]
    ways = [(look, measure) for look in LOOKS for measure in MEASURES]
    right, wrong = [s for s in found if s.right], [s for s in found if not s.right]
    result |= {
        "looked_at": len(found),
        "chance": chance(found),
        "trained": {f"{look} {measure}": landed(found, look, measure) for look, measure in ways},
        "untrained": {f"{look} weights": landed(before, look, "weights") for look in LOOKS},
        "by_outcome": {
            name: {"questions": len(part), **({} if len(part) < 10 else shares_of(part, ways))}
            for name, part in (("right", right), ("wrong", wrong))
        },
        "one_by_one": one_by_one(reader, found),
        "together": together(reader, found),
        "knocked_out": heads,
    }
    return result


def shares_of(found: Sequence[Seen], ways: Sequence[tuple[str, str]]) -> dict[str, float]:
    return {
        f"{a} {b}": float(np.mean([float(gold_share(s.facts[a, b].mean((0, 1)), s.question.support)) for s in found]))
        for a, b in ways
    }


def show(task: int, x: dict[str, Any]) -> None:
    line = f"task {task:2}: accuracy {x['accuracy']['rate']:6.1%}"
    if "trained" in x:
        line += f"; chance {x['chance']['share']:.0%}"
        for look in LOOKS:
            now, before = (x[which][f"{look} weights"]["mean_share"]["rate"] for which in ("trained", "untrained"))
            best = x["trained"][f"{look} weights"]["best"]
            line += f"; {look} {now:.0%} (untrained {before:.0%}), head {best['head']} {best['tested_on']:.0%}"
    if x.get("together", {}).get("questions"):
        for what, changes in (("not told", x["together"]["not_told"]), ("hidden", x["together"]["hidden"])):
            line += f"; {what}: gold {changes['gold']:.0%}, others {changes['other']:.0%}"
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, metavar="CORPORA")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS), choices=TASKS, metavar="N")
    parser.add_argument("--questions", type=int, default=200, help="of each task, whose attention is looked at")
    parser.add_argument("--most", type=int, help="test questions of each task; all by default")
    parser.add_argument("--json", type=Path, default=RESULTS / "evidence-babi.json", metavar="FILE")
    options = parser.parse_args(argv)
    folder = options.corpora / "babi_en_10k"
    reader = Reader.load(options.model)
    blank = reader.untrained()
    shape = reader.model.config
    found: dict[str, Any] = {
        "machine": machine(),
        "parameters": sum(p.numel() for p in reader.model.parameters()),
        "model": {
            name: getattr(shape, name) for name in ("dim", "ffn_dim", "heads", "encoder_layers", "decoder_layers")
        },
        "tasks": {},
    }
    for task in options.tasks:
        questions = read(folder, task, "test")[: options.most]
        result = task_report(reader, blank, questions, options.questions)
        name = path(folder, task, "test").name.split("_")[1].replace("-", " ")  # type: ignore[union-attr]
        known = path(folder, task, "train") is not None
        if known:
            result["unread"] = unread(read(folder, task, "train"), questions)
        found["tasks"][str(task)] = {"name": name, "trained_on": known, **result}
        show(task, result)
        options.json.write_text(json.dumps(rounded(found), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
