"""The tables of docs/evidence.md, from what evidence_winograd.py and evidence_babi.py found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Found = dict[str, Any]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(x: float | None, digits: int = 0) -> str:
    return "–" if x is None else f"{100 * x:.{digits}f} %"


def within(x: Found) -> str:
    """A rate with its interval, where it has one."""
    if x["low"] == x["high"]:
        return percent(x["rate"], 1)
    return f"{100 * x['rate']:.1f} % ({100 * x['low']:.1f}–{100 * x['high']:.1f})"


def luck(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [x for row in rows for x in row]


# --- Winograd, Winogender ---

MEASURES = {
    "weights": "pronoun → candidate, weights",
    "norms": "pronoun → candidate, norms",
    "back": "candidate → pronoun, weights",
    "others": "all other words → candidate, weights",
}
SETS = ("winograd", "winogender")


def rules(found: Found) -> str:
    """The baselines that use no attention."""
    rows = [["chance", *["50 %", "25 %", ""] * 2]]
    for name in found["winograd"]["simple"]:
        cells = [found[which]["simple"][name] for which in SETS]
        rows.append([name, *(cell for x in cells for cell in (within(x), percent(x["both"]), luck(x["p"])))])
    return markdown(["", "Winograd", "both", "p", "Winogender", "both", "p"], rows)


def heads(found: Found) -> str:
    """The mean of all heads, the best head, and the best head judged by sentences that it was not chosen on."""
    rows = []
    for measure, name in MEASURES.items():
        parts = [found[which]["measures"][measure] for which in SETS]
        halves = [x["held_out"] for x in parts]
        crossed = [found["crossed"][measure][f"{a} to {b}"] for a, b in (SETS[::-1], SETS)]
        rows.append([f"**{name}**", *[""] * 6])
        rows.append(["mean of all heads", *(cell for x in parts for cell in _cells(x["mean"]))])
        rows.append(["the best head of 72", *(cell for x in parts for cell in _cells(x["best"]))])
        tested = [within({**x, "rate": x["tested_on"]}) for x in halves]
        rows.append(["chosen on one half, tested on the other", tested[0], "", "", tested[1], "", ""])
        rows.append(["chosen on the other collection", *(cell for x in crossed for cell in _cells(x))])
    return markdown(["", "Winograd", "both", "p", "Winogender", "both", "p"], rows)


def _cells(x: Found) -> list[str]:
    name = f"{x['head']}: " if "head" in x else ""
    return [name + within(x), percent(x["both"]), luck(x["p"])]


def layers(found: Found) -> str:
    rows = []
    for i in range(len(found["winograd"]["measures"]["weights"]["layers"])):
        row = [str(i)]
        for which in SETS:
            for measure in ("weights", "norms", "back"):
                row.append(within(found[which]["measures"][measure]["layers"][i]))
        rows.append(row)
    head = [f"{name}, {measure}" for name in ("Winograd", "Winogender") for measure in ("weights", "norms", "back")]
    return markdown(["layer", *head], rows)


def genders(found: Found, measure: str = "weights") -> str:
    columns = ("occupation", "right", "right_if_occupation", "right_if_participant")
    rows = []
    for gender, pronoun in (("male", "he, him, his"), ("female", "she, her"), ("neutral", "they, them, their")):
        rows.append([pronoun, *(within(found["gender"][measure][gender][name]) for name in columns)])
    head = ["", "prefers the occupation", "right", "right if it is the occupation", "right if it is the other person"]
    return markdown(head, rows)


# --- bAbI ---


def tasks(found: Found) -> list[tuple[str, Found]]:
    """Those whose attention was looked at."""
    return [(number, x) for number, x in found["tasks"].items() if "trained" in x]


def learned(found: Found, least: float = 0.95) -> list[tuple[str, Found]]:
    """Those of them that are answered."""
    return [(number, x) for number, x in tasks(found) if x["accuracy"]["rate"] >= least]


def mean(values: Sequence[float | None]) -> float:
    known = [x for x in values if x is not None]
    return sum(known) / len(known)


def shares(found: Found) -> str:
    """Of the attention on facts, the part on supporting facts."""
    rows = []
    for number, x in found["tasks"].items():
        row = [f"{number} {x['name']}" + ("" if x["trained_on"] else " (not trained on)"), within(x["accuracy"])]
        if "trained" not in x:
            rows.append([*row, *["–"] * 9])
            continue
        row += [percent(x["chance"]["share"])]
        for look in ("answer", "question"):
            now, norms = (x["trained"][f"{look} {measure}"] for measure in ("weights", "norms"))
            best = now["best"]
            row += [
                percent(x["untrained"][f"{look} weights"]["mean_share"]["rate"]),
                percent(now["mean_share"]["rate"]),
                percent(norms["mean_share"]["rate"]),
                f"{best['head']}: {percent(best['tested_on'])}",
            ]
        rows.append(row)
    both = ["untrained", "weights", "norms", "best head"]
    head = ["task", "accuracy", "chance", *(f"answer: {x}" for x in both), *(f"question: {x}" for x in both)]
    return markdown(head, rows)


def many(found: Found) -> str:
    """Accuracy, where attention lands, and how often answers change, of many tasks."""
    rows = []
    for number, x in tasks(found):
        cells = [x["unread"]["question_alone"], x["chance"]["share"]]
        for look in ("answer", "question"):
            cells += [share(x, look), x["trained"][f"{look} weights"]["best"]["tested_on"]]
        cells += [changed(x, how) for how in ("not_told", "hidden")]
        rows.append([f"{number} {x['name']}", within(x["accuracy"]), *map(percent, cells)])
    head = ["task", "accuracy", "by the question alone", "chance"]
    head += [f"{look}: {what}" for look in ("answer", "question") for what in ("weights", "best head")]
    return markdown([*head, "changes: facts removed", "changes: hidden"], rows)


def over(found: Found, value: Callable[[Found], float]) -> float:
    """A mean over the tasks that are answered."""
    return mean([value(x) for _, x in learned(found)])


def share(x: Found, look: str = "answer", measure: str = "weights", model: str = "trained") -> float:
    """What a task's supporting facts get in the mean of heads."""
    found: float = x[model][f"{look} {measure}"]["mean_share"]["rate"]
    return found


def layer_lift(x: Found, layer: int) -> float:
    """The share of a layer's heads in the question's attention, as a multiple of chance."""
    return mean(x["trained"]["question weights"]["share"][layer]) / float(x["chance"]["share"])


def lowest(found: Found, value: Callable[[Found], float], *but: str) -> float:
    return min(value(x) for number, x in learned(found) if number not in but)


def changed(x: Found, how: str, what: str = "gold") -> float:
    """How often answers change, "not_told" or "hidden"."""
    found: float = x["together"][how][what]
    return found


def other_rules(found: Found) -> str:
    """How often rules without a model name a supporting fact, beside the answer's attention."""
    rows = []
    for number, x in tasks(found):
        top = x["trained"]["answer weights"]["mean_top"]["rate"]
        cells = [x["chance"][name] for name in ("top", "top_last", "top_alike")]
        rows.append([f"{number} {x['name']}", *map(percent, [*cells, top])])
    return markdown(
        ["task", "any fact", "the last fact", "the last that shares the most words", "the answer's attention"], rows
    )


def models(found: dict[str, Found]) -> str:
    """Task 1 by several models."""
    rows = []
    for name, x in ((name, results["tasks"]["1"]) for name, results in found.items()):
        best, t = x["trained"]["answer weights"]["best"], x["together"]
        cells = [x["accuracy"]["rate"], share(x), best["tested_on"], t["not_told"]["gold"]]
        cells += [t["hidden"][what] for what in ("gold", "other", "all", "question")]
        rows.append([name, *map(percent, cells)])
    head = ["task 1", "accuracy", "on the fact: mean of heads", "best head", "changes: fact removed"]
    head += [f"hidden: {what}" for what in ("the fact", "another", "all facts", "the question")]
    return markdown(head, rows)


def changes(found: Found) -> str:
    """How often an answer that was right changes when facts are taken away."""
    rows = []
    for number, x in tasks(found):
        t = x["together"]
        if not t["questions"]:
            continue
        told, hidden = t["not_told"], t["hidden"]
        cells = [told["gold"], told["other"], hidden["gold"], hidden["other"], hidden["all"], hidden["question"]]
        rows.append([f"{number} {x['name']}", str(t["questions"]), *map(percent, cells)])
    head = ["task", "questions", "supporting facts removed", "as many others removed"]
    head += [
        f"hidden from the answer: {x}" for x in ("supporting facts", "as many others", "all facts", "the question")
    ]
    return markdown(head, rows)


def foretold(found: Found) -> str:
    """Whether attention tells which fact's absence changes the answer most, means over tasks."""
    rows = []
    for look in ("answer", "question"):
        for measure in ("weights", "norms", "gradient"):
            each = [x["one_by_one"][f"{look} {measure}"] for _, x in learned(found)]
            cells = [percent(mean([x["agree"] for x in each])), f"{mean([x['spearman'] for x in each]):.2f}"]
            rows.append([f"{look}, {measure}", *cells])
    return markdown(
        ["", "the fact with the most attention matters most", "rank correlation with how much facts matter"], rows
    )


def missed(found: Found) -> str:
    """Heads knocked out, means over tasks."""
    each = [x["knocked_out"]["without"] for _, x in learned(found)]
    rows = []
    for measure in ("weights", "norms", "gradient"):
        of = [x[measure] for x in each]
        cells = [percent(mean([x[name] for x in of])) for name in ("most", "least")]
        rows.append([measure, *cells, f"{mean([x['spearman'] for x in of]):.2f}"])
    rows.append(["four at random", percent(mean([x["random"] for x in each])), "", ""])
    head = [
        "attention on supporting facts by",
        "accuracy without the four with the most",
        "without the four with the least",
        "rank correlation with the effect of one head",
    ]
    return markdown(head, rows)


def most_missed(x: Found) -> tuple[str, int, int]:
    """The head without which a task's answers lose most: kind, layer and head."""
    effect = x["knocked_out"]["effect"]
    kind, layer, head = x["knocked_out"]["heads"][effect.index(max(effect))]
    return kind, layer, head
