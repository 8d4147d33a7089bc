"""A pair of texts read by a translator, and the answers that need more than its trace: word links, missing heads."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.align.attention import links, word_weights
from regard.align.error_rate import quality
from regard.align.formats import parse
from regard.align.link import Alignment
from regard.explorer.answers import SIDES, Answers, head_of, number, numbers, reading
from regard.explorer.http import replies
from regard.explorer.http.schema import Empty, Invalid
from regard.explorer.labels import Labels
from regard.explorer.sides import alignment, source_side, target_side
from regard.models import RNNSeq2Seq
from regard.tasks.translation.output import with_copies
from regard.tasks.translation.translator import Translator
from regard.text.subwords import Encoded
from regard.trace import Trace
from regard.trace import record as recording
from regard.trace._stop import check


def record(translator: Translator, text: str, target: str, *, own: bool = False) -> Recording:
    """Reads a pair once, as if the model had written the target, and records its attention.

    A target of the model's ``own`` may be longer than a given one: as long as the model has positions.
    """
    source = encode_side(translator, text, "text", translator.limit)
    most: int | None = translator.limit
    if own:
        positions = translator.engine.max_length
        most = None if positions is None else positions - 1
    wanted = encode_side(translator, target, "target", most)
    model, device = translator.model, translator.device
    assert model is not None
    read = torch.tensor([[*source.ids, model.eos_id]], device=device)
    given = torch.tensor([[model.bos_id, *wanted.ids]], device=device)
    with torch.no_grad(), recording(model, inputs=True) as trace:
        model(read, given)
    if isinstance(model, RNNSeq2Seq):
        for (
            call
        ) in trace.recorded:  # with location features its keys come transformed: they were made of h, as values are
            call.k = call.problems[0].v if call.k is None else call.k
    return Recording(translator, trace, (text, source), (target, wanted))


def encode_side(translator: Translator, text: str, name: str, most: int | None) -> Encoded:
    """A side in subwords, if it can be traced."""
    if not text.strip():
        raise Empty(f"{name}: it is empty")
    found = translator.subwords.encode(text)
    if most is not None and len(found.ids) > most:
        raise Invalid(f"{name}: {len(found.ids):,} subwords; the maximum in a trace is {most:,}")
    return found


class Recording(Answers):
    """A pair of texts and the trace of reading it; each method is an answer of the service.

    Source columns are its subwords and </s>; target rows <s> and its subwords, each row predicting the next. ``model``
    is the name that the model is served by, ``note`` what was done to the text, ``copies`` are words that were not
    translated (:class:`regard.tasks.translation.output.Translation`).
    """

    def __init__(
        self, translator: Translator, trace: Trace, source: tuple[str, Encoded], target: tuple[str, Encoded]
    ) -> None:
        super().__init__(trace, name=source[0])
        self.model, self.note = translator.name, ""
        self.copies: Sequence[tuple[int, int]] = ()
        self._translator, self._source, self._target = translator, source, target
        sides = source_side(source[0], [(0, *source)]), target_side(target[0], [(0, *target)])
        self._sides = dict(zip(("source", "target"), sides, strict=True))

    def describe(self) -> replies.TraceDescription:
        """Both sides, the kinds, and the alignment that the model's own settings give."""
        found = super().describe()
        found["translation"], found["model"] = self._target[0], self.model
        found["alignment"], found["note"] = self.align(), self.note
        return found

    def _side(self, name: str) -> replies.SideJson:
        return self._sides[name]

    def _side_names(self, kind: str) -> tuple[str, str]:
        return SIDES[kind]

    def _labels_of(self, kind: str, side: str) -> Labels:
        self.trace.names(kind)  # refuses a kind that is not there
        return Labels.of_side(self._sides[SIDES[kind][side == "columns"]])

    def align(
        self,
        *,
        layer: int | None = None,
        head: str | None = None,
        shift: str | None = None,
        gold: str | None = None,
    ) -> replies.AlignmentJson:
        """Word links by cross-attention, and their error rate where right ones are given."""
        turned = None if shift is None else shift == "1"
        with reading():
            look = self._translator.look(self.trace.kinds["cross"], layer=layer, shift=turned)
            look = look if head is None else look._replace(head=head_of(head))
            weights = self.trace.weights(look.layer, None, kind="cross", call=None)[None]
            words = self._source[1].words, self._target[1].words
            matrix = word_weights(weights, *words, layer=0, head=look.head, shift=look.shift)
            matrix = with_copies(matrix, self.copies)
        right = _gold(gold, [max(side, default=-1) + 1 for side in words])
        return alignment(matrix, look, None if right is None else quality([links(matrix)], [right]).aer)

    # --- without heads ---

    def effects(self, *, kind: str, layer: int | None = None) -> replies.EffectsJson:
        """How the target's log-probability changes without each head, [layers][heads], or of one layer, [1][heads]."""
        with reading():
            _, heads, _, _ = self.trace.shape(layer or 0, kind=kind, call=None)
            base = self._log_probs({}).sum()
            alone = [
                [self._log_probs({(kind, one): [head]}).sum() - base for head in range(heads)]
                for one in (range(self.trace.kinds[kind]) if layer is None else [layer])
            ]
        return {"kind": kind, "base": number(base.item()), "change": numbers(torch.tensor(alone))}

    def knockout(self, *, heads: Sequence[replies.HeadPlace]) -> replies.WithoutJson:
        """The target's log-probability without these heads, and how that of each token changes.

        ``tokens`` are those that are predicted: the target's subwords, then </s>.
        """
        out: dict[tuple[str, int], list[int]] = {}
        for each in heads:
            out.setdefault((each["kind"], each["layer"]), []).append(each["head"])
        with reading():
            base, without = self._log_probs({}), self._log_probs(out)
        change = without - base
        return {
            "base": number(base.sum().item()),
            "log_prob": number(without.sum().item()),
            "change": number(change.sum().item()),
            "tokens": numbers(change),
        }

    def _log_probs(self, out: dict[tuple[str, int], list[int]]) -> Tensor:
        """log p of each token of the target and of its end, the model being run without these heads, [T + 1]."""
        check()
        logits = self.trace.ablate(out)[0]
        model = self._translator.model
        assert model is not None
        wanted = torch.tensor([*self._target[1].ids, model.eos_id], device=logits.device)
        found: Tensor = logits.double().log_softmax(-1).gather(-1, wanted[:, None])[:, 0].cpu()
        return found


def _gold(text: str | None, counts: list[int]) -> Alignment | None:
    """Links as people write them, ``0-0 1p2``; a possible one may also be written ``1-2p``."""
    if text is None or not text.strip():
        return None
    with reading():
        right = parse(re.sub(r"(?a)\b(\d+)-(\d+)[pP]\b", r"\1p\2", text))
    for name, place, count in (("source", 0, counts[0]), ("target", 1, counts[1])):
        if (last := max(link[place] for link in right.possible)) >= count:
            raise Invalid(f"gold: names {name} word {last}, and there are {count}, from 0")
    return right
