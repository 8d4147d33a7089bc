"""A translator as the service runs it: batches of sentences, translated, and recorded where a trace is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regard.decode.search import SearchOptions
from regard.explorer import view
from regard.explorer.http import replies
from regard.explorer.http.schema import Invalid
from regard.explorer.sides import alignment, place_sentences, source_side, target_side
from regard.tasks.translation.output import TranslationOutput
from regard.tasks.translation.translator import Translator


@dataclass(frozen=True)
class TranslationRequest:
    """A text to translate; with ``trace`` also to be recorded, with ``target`` to be recorded instead."""

    text: str
    trace: bool = False
    target: str | None = None


class RecordedTranslation(NamedTuple):
    """The answer to a request for a trace, and what is kept for rows, tiles and steps."""

    answer: replies.TraceDescription
    kept: view.Recording


class TranslationService:
    """Translations by one model."""

    task: replies.Task = "translation"

    def __init__(self, translator: Translator) -> None:
        assert translator.model is not None
        self.translator, self.model, self.limit = translator, translator.model, translator.limit
        self.kinds = _kinds(translator)

    def run(
        self, name: str, beam: int | None, requests: Sequence[TranslationRequest]
    ) -> list[replies.TranslationJson | RecordedTranslation | Invalid]:
        """What becomes of texts; a beam of None is the model's own."""
        outputs = self._outputs(requests, beam)
        return [self._answer(name, request, output) for request, output in zip(requests, outputs, strict=True)]

    def _outputs(self, requests: Sequence[TranslationRequest], beam: int | None) -> list[TranslationOutput]:
        """Outputs, with attention where no trace will be recorded; a given target is taken as it is.

        What cannot be traced is not translated either: :func:`view.record` tells why.
        """
        outputs = [TranslationOutput() for _ in requests]
        for trace in (False, True):
            chosen = [i for i, r in enumerate(requests) if r.trace == trace and _to_translate(self.translator, r)]
            if chosen:
                texts = [requests[i].text for i in chosen]
                options: SearchOptions = {} if beam is None else {"beam": beam}
                found = self.translator.outputs(texts, attention=not trace, **options)
                for i, output in zip(chosen, found, strict=True):
                    outputs[i] = output
        return outputs

    def _answer(
        self, name: str, request: TranslationRequest, output: TranslationOutput
    ) -> replies.TranslationJson | RecordedTranslation | Invalid:
        if output.problem:
            return Invalid(f"text: {output.problem}")
        try:
            if not request.trace:
                return _reply(name, self.translator, request.text, output)
            target = output.text if request.target is None else request.target
            kept = view.record(self.translator, request.text, target, own=request.target is None)
            kept.model, kept.note = name, output.note
            kept.copies = () if request.target is not None else output.translations[0].copies
            return RecordedTranslation(kept.describe(), kept)
        except Invalid as problem:  # the others of the batch have their answers
            return problem


def _kinds(translator: Translator) -> list[replies.KindJson]:
    """What a model has to look at; how long rows and columns are depends on the text."""
    kinds = view.record(translator, "a", "a").kinds()
    for kind in kinds:
        del kind["queries"], kind["keys"]
    return kinds


def _to_translate(translator: Translator, request: TranslationRequest) -> bool:
    if request.target is not None:
        return False
    return not request.trace or 0 < len(translator.subwords.encode(request.text).ids) <= translator.limit


def _reply(name: str, translator: Translator, text: str, output: TranslationOutput) -> replies.TranslationJson:
    """A translation with both sides and its word links; a text may have been cut into sentences."""
    found = output.translations[0]
    sources = [(shown.read, shown.source) for shown in found.attention]
    targets = [(shown.written, shown.target) for shown in found.attention]
    layers = found.attention[0].weights.shape[0] if found.attention else 1
    return {
        "translation": found.text,
        "model": name,
        "source": source_side(text, place_sentences(text, sources)),
        "target": target_side(found.text, place_sentences(found.text, targets)),
        "alignment": alignment(translator.word_weights(found), translator.look(layers)),
        "note": output.note,
    }
