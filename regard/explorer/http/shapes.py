"""What goes into the service and comes out of it, as JSON Schema: the first half of its description."""

from __future__ import annotations

from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.schema import Schema
from regard.tasks.summarization.search import SummarySearch

SCORES = ("trained", "dot", "additive", "general", "bilinear", "location", "relative", "rotary")
MEASURES = ("weights", "norms")  # of every trace; a row may also be of
MORE_MEASURES = ("rollout", "gradient")
TASKS = ("translation", "summarization", "qa")

_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
# computed of what a model looked at, which may be broken: what JSON has no number for is a text
_REAL: Schema = {"type": ["number", "string"], "pattern": "^(NaN|Infinity)$", "description": "or a number"}
_MAYBE: Schema = {**_REAL, "type": ["number", "string", "null"]}
_PLACE: Schema = {"type": ["integer", "null"]}
_VECTOR: Schema = {"type": "array", "items": _REAL}
_MATRIX: Schema = {"type": "array", "items": _VECTOR}
_MAYBE_VECTOR: Schema = {"type": ["array", "null"], "items": _REAL}
_SIDE: Schema = {"type": "string", "description": "source, target, or one of a trace's sides"}
KIND: Schema = {
    "type": "string",
    "maxLength": 200,
    "pattern": r"^([\w-]+ )?(self|decoder|cross)$",
    "description": "one of self, decoder, cross, after the name of a tower where a model has several",
}
MEASURE: Schema = {"type": "string", "enum": [*MEASURES, *MORE_MEASURES]}
LAYER: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(name: str) -> Schema:
    return {"anyOf": [ref(name), {"type": "null"}]}


def _many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _object(optional: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def schemas(limits: ServiceLimits) -> dict[str, Schema]:
    """Everything that goes in or comes out, by name."""
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    model = {
        "type": "string",
        "maxLength": 200,
        "description": "one of /api/models; by default the first of the task",
    }
    beams = {"type": "integer", "minimum": 1, "maximum": limits.beam}
    beam = {**beams, "default": SummarySearch.beam}
    own = {**beams, "description": "by default what the model folder says, usually 5"}
    document = {"type": "string", "minLength": 1, "maxLength": limits.document}
    span = {"text": _TEXT, "start": _INTEGER, "end": _INTEGER}
    answered = {
        "translation": _TEXT,
        "model": _TEXT,
        "source": ref("Side"),
        "target": ref("Side"),
        "alignment": ref("Alignment"),
        "note": {"type": "string", "description": "what was done to the text, or empty"},
    }
    return {
        "Error": _object(error={"type": "string", "description": "the error, in words"}),
        "Health": _object(
            ("problem",),
            status={"type": "string", "enum": ["ok", "stuck", "stopping"], "description": "503 but for ok"},
            problem={"type": "string", "description": "the problem, in words"},
        ),
        "Word": _object(**span),
        "Token": _object(**span, word={"type": "integer", "description": "index into words; -1 for none"}),
        "Side": _object(text=_TEXT, tokens=_many(ref("Token")), words=_many(ref("Word"))),
        "Kind": _object(
            ("queries", "keys"),
            kind=KIND,
            layers=_INTEGER,
            heads=_INTEGER,
            rows=_SIDE,
            columns=_SIDE,
            score=_TEXT,
            queries={"type": "integer", "description": "rows of its matrices; of a trace, not of a model"},
            keys=_INTEGER,
        ),
        "Model": _object(
            name=_TEXT,
            task={"type": "string", "enum": list(TASKS)},
            architecture=_TEXT,
            parameters=_INTEGER,
            default={"type": "boolean", "description": "of its task"},
            kinds={
                **_many(ref("Kind")),
                "description": "what a trace of it has; of translators alone",
            },
            limit={"type": "integer", "description": "subwords that a sentence, a document or a question may have"},
        ),
        "Models": _object(models=_many(ref("Model")), scores=_many(_TEXT), measures=_many(_TEXT), version=_TEXT),
        "Alignment": _object(
            weights={**_MATRIX, "description": "a row per target word, a column per source word"},
            links=_many({**_many(_INTEGER), "description": "source word, target word"}),
            layer=_PLACE,
            head={**_PLACE, "description": "null: the mean over heads"},
            shift={
                "type": "boolean",
                "description": "a word's attention is read at the step that receives it as input",
            },
            aer=_MAYBE,
        ),
        "Translate": _object(("model", "beam"), text=text, model=model, beam=own),
        "Translation": _object(**answered),
        "Passage": _object(text=_TEXT, words=_many(ref("Word"))),
        "Summarize": _object(
            ("model", "beam", "length"),
            text=document,
            model=model,
            beam=beam,
            length={"type": "integer", "minimum": 1, "maximum": limits.length, "description": "in words, about"},
        ),
        "Copied": _object(
            probability={"type": "number", "description": "that the word was copied, not generated"},
            position={**_PLACE, "description": "the word of the text it is most likely a copy of"},
        ),
        "Summary": _object(
            summary=_TEXT,
            source=ref("Passage"),
            target=ref("Passage"),
            attention={**_MATRIX, "description": "how much each summary word (a row) attends to each word of the text"},
            copied=_many(ref("Copied")),
            score={"type": "number", "description": "what the search ranks by"},
            log_prob=_NUMBER,
            model=_TEXT,
            note=_TEXT,
        ),
        "Ask": _object(
            ("model", "n_best"),
            context=document,
            question={"type": "string", "minLength": 1, "maxLength": limits.question},
            model=model,
            n_best={"type": "integer", "minimum": 1, "maximum": limits.candidates, "default": 5},
        ),
        "Candidate": _object(**span, score=_NUMBER),
        "Answer": _object(
            answer={"type": "string", "description": "context[start:end]; empty if the context has no answer"},
            start={**_PLACE, "description": "in characters of the context; null where there is no answer"},
            end=_PLACE,
            score={"type": "number", "description": "the answer's probability among all places and no answer"},
            no_answer=_NUMBER,
            candidates=_many(ref("Candidate")),
            context=ref("Passage"),
            question=ref("Passage"),
            attention={
                **_MATRIX,
                "description": "how much each question word (a row) attends to each context word, in the window of the "
                "first candidate",
            },
            model=_TEXT,
            note=_TEXT,
        ),
        "Record": _object(
            ("target", "model", "beam"),
            text=text,
            target={**text, "description": "read this instead of translating"},
            model=model,
            beam=own,
        ),
        "Trace": _object(
            ("sides",),
            **answered
            | {
                "id": _TEXT,
                "name": _TEXT,
                "kinds": _many(ref("Kind")),
                "source": {**_maybe("Side"), "description": "null where it is too long: see tokens"},
                "target": _maybe("Side"),
                "alignment": _maybe("Alignment"),
                "sides": {
                    "type": "object",
                    "additionalProperties": _maybe("Side"),
                    "description": "of towers, in the place of source and target",
                },
            },
        ),
        "Named": _object(id=_TEXT, name=_TEXT, kinds=_many(ref("Kind"))),
        "Traces": _object(traces=_many(ref("Named"))),
        "Row": _object(
            values=_VECTOR,
            query=_INTEGER,
            kind=KIND,
            layer=_INTEGER,
            head={"type": ["integer", "string"]},
            measure=MEASURE,
            entropy={**_REAL, "description": "of the weights, in nats"},
        ),
        "Tokens": _object(
            tokens=_many(_TEXT), **{"from": _INTEGER}, count={"type": "integer", "description": "of all there are"}
        ),
        "Found": _object(
            matches={**_many(_INTEGER), "description": "the first token of each place"}, more={"type": "boolean"}
        ),
        "Heads": _object(
            kind=KIND,
            layers=_INTEGER,
            heads=_INTEGER,
            queries=_INTEGER,
            rows={"type": "integer", "description": "how many of the queries were measured"},
            entropy={**_MATRIX, "description": "means over these, a row per layer; in nats"},
            sink={**_MATRIX, "description": "the weight of the first key"},
            distance={**_MATRIX, "description": "tokens between a query and the keys it attends to"},
        ),
        "Effects": _object(
            kind=KIND,
            base={**_REAL, "description": "log p of the target"},
            change={**_MATRIX, "description": "how it changes without each head, a row per layer asked for"},
        ),
        "Knockout": _object(
            heads=_many(_object(kind=KIND, layer=LAYER, head={"type": "integer", "minimum": 0, "maximum": 9999}))
        ),
        "Without": _object(
            base={**_REAL, "description": "log p of the target"},
            log_prob={**_REAL, "description": "log p without these heads"},
            change=_REAL,
            tokens={**_VECTOR, "description": "the change of each token that is predicted, </s> being the last"},
        ),
        "Steps": _steps(),
    }


def _steps() -> Schema:
    return _object(
        query_input=_MAYBE_VECTOR,
        key_inputs={"type": "null", "description": "ask for one with key="},
        key_input=_MAYBE_VECTOR,
        q=_VECTOR,
        k=_MATRIX,
        v=_MATRIX,
        products=_MATRIX,
        similarity=_VECTOR,
        added={**_many(_MAYBE), "description": "what positions and biases add to the scaled similarity"},
        scaled=_many(_MAYBE),
        masked={**_many(_MAYBE), "description": "null where the mask hides the key"},
        weights=_VECTOR,
        weighted=_MATRIX,
        context=_VECTOR,
        output=_MAYBE_VECTOR,
        recorded=_MAYBE_VECTOR,
        difference=_MAYBE,
        score=_TEXT,
        counterfactual={"type": "boolean"},
        formula=_TEXT,
        terms={"type": "string", "description": "what the products are the terms of, before it is scaled; or empty"},
        scale=_MAYBE,
    )
