"""What `make demo` shows: a translation and its alignment, attention step by step, a plan, a speed; half a minute.

Run it: python examples/demo.py
"""

from __future__ import annotations

import time

import a_translation
import four_steps
import one_score_by_hand
import torch
import weights_to_contexts
import why_sqrt_d
from show import heading

import regard
from regard.mask import Causal
from regard.score import Additive, Dot, PerHead, Rotary


def show_plans() -> None:
    q, k, v = torch.randn(3, 1, 8, 512, 64)
    heading("What runs, and why: print(regard.plan(...))")
    print("Additive attention, causal:\n")
    print(regard.plan(q, k, v, score=Additive(64, 64, 64), mask=Causal()))
    print("\nA different score per group of heads:\n")
    print(regard.plan(q, k, v, score=PerHead((4, Dot()), (2, Additive(64, 64, 32)), (2, Rotary(Dot())))))


def show_speed(n: int = 512, heads: int = 8, d: int = 64) -> None:
    """Additive attention through regard against the formula written out, in turn, the best of three each."""
    q, k, v = torch.randn(3, 1, heads, n, d)
    score = Additive(d, d, d, heads=heads)
    ways = {
        "written out": lambda: torch.softmax(score(q, k), -1) @ v,
        "regard": lambda: regard.attend(q, k, v, score=score),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        ways["regard"]()  # the first call may compile
        while len(times["regard"]) < 3 and sum(map(sum, times.values())) < 4:  # a busy machine gets fewer turns
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
        difference = (ways["written out"]() - ways["regard"]()).abs().max().item()
    slow, fast = min(times["written out"]), min(times["regard"])
    size = heads * n * n * d * 4 / 2**20
    heading(f"Speed: additive attention, {heads} heads, n = {n}, d = {d}, forward")
    print(f"  softmax(score(q, k)) @ v, as a textbook writes it  {slow * 1e3:8.1f} ms, builds {size:.0f} MiB of tanh")
    print(
        f"  regard.attend(q, k, v, score=Additive(...))        {fast * 1e3:8.1f} ms, {slow / fast:.1f} times the speed"
    )
    print(f"  largest difference of the contexts                 {difference:.1e}")


def main() -> None:
    torch.manual_seed(0)
    print("regard: attention you can use, train and see.\n")
    print("Attention lets each word look at the others: it scores how well a query matches each key,")
    print("and mixes the values by these scores. This demo first translates with a model built on it and")
    print("shows which words the model looked at. Then it shows attention itself in numbers: which kernel")
    print("runs for which score, how fast, and why scores are scaled. Scroll up when it has finished.")
    a_translation.show()
    four_steps.show()
    one_score_by_hand.show()
    weights_to_contexts.show()
    show_plans()
    show_speed()
    draws = 200
    rows = why_sqrt_d.measure(draws)
    why_sqrt_d.show(rows, draws)
    why_sqrt_d.picture(rows, why_sqrt_d.PICTURE)
    heading("Read on")
    print("  docs/index.md        the library in twenty lines, and its rules")
    print("  docs/four-steps.md   the four steps, slowly")
    print("  docs/why-sqrt-d.md   the picture above, explained")
    print("  docs/scores.md       every score: formula, kernel, time and memory")
    print("  docs/kernels.md      how they are computed without the n × n matrix")
    print("  docs/cli.md          translate files, align and measure; train a translator of your own")
    print("  docs/summarize.md    summaries, and what was copied; docs/answer.md: answers, and their place")
    print("  docs/explorer.md     regard explore: type a sentence in a browser, see what each word looks at")
    print("  docs/record.md       what any model attended to, in Python")
    print("  docs/tutorial/       five lessons that run; make docs builds them with live figures")
    print("  docs/coming-from.md  from PyTorch, FlexAttention and Keras, line by line")


if __name__ == "__main__":
    main()
