"""What the service answers, as Python types; their schemas, and the page's TypeScript types, are made of them.

A schema has the name of its type without ``Json``.
In ``Annotated``, a text describes a field, and a schema stands in place of the one that its type would have.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from regard.explorer.http.schema import Schema

MEASURES = ("weights", "norms")  # of every trace; a row may also be of
MORE_MEASURES = ("rollout", "gradient")

KIND: Schema = {
    "type": "string",
    "maxLength": 200,
    "pattern": r"^([\w-]+ )?(self|decoder|cross)$",
    "description": "one of self, decoder, cross, after the name of a tower where a model has several",
}
MEASURE: Schema = {"type": "string", "enum": [*MEASURES, *MORE_MEASURES]}

# computed of what a model looked at, which may be broken: what JSON has no number for is a text
_REAL: Schema = {"type": ["number", "string"], "pattern": "^(NaN|Infinity)$", "description": "or a number"}

Number = float | str | None
Real = Annotated[Number, _REAL]
Maybe = Annotated[Number, {**_REAL, "type": ["number", "string", "null"]}]
Vector = list[Real]
Matrix = list[Vector]
KindName = Annotated[str, KIND]
Task = Literal["translation", "summarization", "qa"]
SideName = Annotated[str, "source, target, or one of a trace's sides"]


class ErrorJson(TypedDict):
    error: Annotated[str, "the error, in words"]


class _Status(TypedDict):
    status: Annotated[Literal["ok", "stuck", "stopping"], "503 but for ok"]


class HealthJson(_Status, total=False):
    problem: Annotated[str, "the problem, in words"]


# --- texts ---


class WordJson(TypedDict):
    text: str
    start: int
    end: int


class TokenJson(WordJson):
    word: Annotated[int, "index into words; -1 for none"]


class SideJson(TypedDict):
    text: str
    tokens: list[TokenJson]
    words: list[WordJson]


class PassageJson(TypedDict):
    text: str
    words: list[WordJson]


# --- models ---


class _ModelKind(TypedDict):
    kind: KindName
    layers: int
    heads: int
    rows: SideName
    columns: SideName
    score: str


class KindJson(_ModelKind, total=False):
    queries: Annotated[int, "rows of its matrices; of a trace, not of a model"]
    keys: int


class ModelJson(TypedDict):
    name: str
    task: Task
    architecture: str
    parameters: int
    default: Annotated[bool, "of its task"]
    kinds: Annotated[list[KindJson], "what a trace of it has; of translators alone"]
    limit: Annotated[int, "subwords that a sentence, a document or a question may have"]


class ModelsJson(TypedDict):
    models: list[ModelJson]
    scores: list[str]
    measures: list[str]
    version: str


# --- what models make ---


class AlignmentJson(TypedDict):
    weights: Annotated[Matrix, "a row per target word, a column per source word"]
    links: list[Annotated[list[int], "source word, target word"]]
    layer: int | None
    head: Annotated[int | None, "null: the mean over heads"]
    shift: Annotated[bool, "a word's attention is read at the step that receives it as input"]
    aer: Maybe


class TranslationJson(TypedDict):
    translation: str
    model: str
    source: SideJson
    target: SideJson
    alignment: AlignmentJson
    note: Annotated[str, "what was done to the text, or empty"]


class CopiedJson(TypedDict):
    probability: Annotated[float, "that the word was copied, not generated"]
    position: Annotated[int | None, "the word of the text it is most likely a copy of"]


class SummaryJson(TypedDict):
    summary: str
    source: PassageJson
    target: PassageJson
    attention: Annotated[Matrix, "how much each summary word (a row) attends to each word of the text"]
    copied: list[CopiedJson]
    score: Annotated[float, "what the search ranks by"]
    log_prob: float
    model: str
    note: str


class CandidateJson(WordJson):
    score: float


class AnswerJson(TypedDict):
    answer: Annotated[str, "context[start:end]; empty if the context has no answer"]
    start: Annotated[int | None, "in characters of the context; null where there is no answer"]
    end: int | None
    score: Annotated[float, "the answer's probability among all places and no answer"]
    no_answer: float
    candidates: list[CandidateJson]
    context: PassageJson
    question: PassageJson
    attention: Annotated[
        Matrix,
        "how much each question word (a row) attends to each context word, in the window of the first candidate",
    ]
    model: str
    note: str


# --- traces ---


class HeadPlace(TypedDict):
    """A head of a question."""

    kind: str
    layer: int
    head: int


class _TraceDescription(TypedDict):
    translation: str
    model: str
    source: Annotated[SideJson | None, "null where it is too long: see tokens"]
    target: SideJson | None
    alignment: AlignmentJson | None
    note: Annotated[str, "what was done to the text, or empty"]
    name: str
    kinds: list[KindJson]


class TraceDescription(_TraceDescription, total=False):
    """A trace without its id."""

    sides: Annotated[dict[str, SideJson | None], "of towers, in the place of source and target"]


class TraceJson(TraceDescription):
    id: str


class NamedJson(TypedDict):
    id: str
    name: str
    kinds: list[KindJson]


class TracesJson(TypedDict):
    traces: list[NamedJson]


class RowJson(TypedDict):
    values: Vector
    query: int
    kind: KindName
    layer: int
    head: int | str
    measure: Annotated[str, MEASURE]
    entropy: Annotated[Real, "of the weights, in nats"]


TokensJson = TypedDict("TokensJson", {"tokens": list[str], "from": int, "count": Annotated[int, "of all there are"]})


class FoundJson(TypedDict):
    matches: Annotated[list[int], "the first token of each place"]
    more: bool


class HeadsJson(TypedDict):
    kind: KindName
    layers: int
    heads: int
    queries: int
    rows: Annotated[int, "how many of the queries were measured"]
    entropy: Annotated[Matrix, "means over these, a row per layer; in nats"]
    sink: Annotated[Matrix, "the weight of the first key"]
    distance: Annotated[Matrix, "tokens between a query and the keys it attends to"]


class EffectsJson(TypedDict):
    kind: KindName
    base: Annotated[Real, "log p of the target"]
    change: Annotated[Matrix, "how it changes without each head, a row per layer asked for"]


class WithoutJson(TypedDict):
    base: Annotated[Real, "log p of the target"]
    log_prob: Annotated[Real, "log p without these heads"]
    change: Real
    tokens: Annotated[Vector, "the change of each token that is predicted, </s> being the last"]


class StepsJson(TypedDict):
    query_input: Vector | None
    key_inputs: Annotated[None, "ask for one with key="]
    key_input: Vector | None
    q: Vector
    k: Matrix
    v: Matrix
    products: Matrix
    similarity: Vector
    added: Annotated[list[Maybe], "what positions and biases add to the scaled similarity"]
    scaled: list[Maybe]
    masked: Annotated[list[Maybe], "null where the mask hides the key"]
    weights: Vector
    weighted: Matrix
    context: Vector
    output: Vector | None
    recorded: Vector | None
    difference: Maybe
    score: str
    counterfactual: bool
    formula: str
    terms: Annotated[str, "what the products are the terms of, before it is scaled; or empty"]
    scale: Maybe


ANSWERS = (
    ErrorJson,
    HealthJson,
    WordJson,
    TokenJson,
    SideJson,
    KindJson,
    ModelJson,
    ModelsJson,
    AlignmentJson,
    TranslationJson,
    PassageJson,
    CopiedJson,
    SummaryJson,
    CandidateJson,
    AnswerJson,
    TraceJson,
    NamedJson,
    TracesJson,
    RowJson,
    TokensJson,
    FoundJson,
    HeadsJson,
    EffectsJson,
    WithoutJson,
    StepsJson,
)
