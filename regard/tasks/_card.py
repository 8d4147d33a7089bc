"""The model card: what a model was made of, how well it does, and what it is not for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.store import to_toml
from regard.train import Outcome


class Words(NamedTuple):
    """What a card says of a task: what the model is, how to use it, how it is measured, and what it is not for."""

    title: str
    use: str
    measures: str
    limits: str


TRANSLATION = Words(
    "A translation model",
    "Translate with `regard translate --model FOLDER`.",
    "BLEU and chrF, where given, are of greedy decoding.",
    """\
It translates sentences of the kind it was trained on, one at a time. Elsewhere it may leave things out, repeat itself
or make things up, fluently; names and numbers deserve a look. It carries over whatever bias its data have.""",
)


def model_card(
    tables: Mapping[str, Mapping[str, Any]],
    outcome: Outcome,
    *,
    size: int,
    store: str,
    device: str,
    begun: float,
    words: Words = TRANSLATION,
) -> str:
    """README.md of a model folder."""
    data, standing = tables["data"], outcome.standing
    scores = "\n".join(f"| {name} | {value:.4g} |" for name, value in outcome.scores.items())
    files = "\n".join(f"- {line}" for line in _sources(data))
    held_out = f"{data['valid_pairs']:,} pairs held out for validation" if data["valid_pairs"] else "no validation set"
    return f"""# {words.title}

Trained by [regard](https://pypi.org/project/regard) from {time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun))} UTC on
{device}. {words.use}

## Data

{data["pairs"]:,} pairs (fingerprint {data["fingerprint"]}), {held_out}:

{files}

Whether the model may be passed on depends on the licences of these texts.

## Size

{size:,} parameters, stored as {store}; {standing.update:,} updates, {standing.tokens:,} target subwords seen,
{standing.seconds:,.0f} seconds of training. The weights are {outcome.made}.

## Scores

{"| measure | validation |" if scores else "It was not validated."}
{"|---|---|" if scores else ""}
{scores}

`valid_loss` is the negative log-likelihood of a subword in nats; {words.measures}

## Settings

```toml
{to_toml({key: value for key, value in tables.items() if key != "data"}).strip()}
```

## Limits

{words.limits}
"""


def _sources(data: Mapping[str, Any]) -> list[str]:
    lines = []
    if data.get("source"):
        lines.append(f"`{data['source']}` and `{data['target']}`")
    if data.get("train"):
        lines.append(f"`{data['train']}`")
    for table in data.get("corpora", ()):
        names = [f"`{table[key]}`" for key in ("source", "target", "tsv", "jsonl", "path") if key in table]
        lines.append(" and ".join(names) + (f", weight {table['weight']:g}" if "weight" in table else ""))
    return lines


def reader_card(
    tables: Mapping[str, Mapping[str, Any]], outcome: Outcome, *, size: int, store: str, device: str, begun: float
) -> str:
    """README.md of a folder that answers questions."""
    data, standing = tables["data"], outcome.standing
    scores = "\n".join(f"| {name} | {value:.4g} |" for name, value in outcome.scores.items())
    given = data["questions"]
    files = "\n".join(f"- `{path}`" for path in ([given] if isinstance(given, str) else given))
    held_out = f"{data['valid_pairs']:,} held out for validation" if data["valid_pairs"] else "no validation set"
    start = tables["model"].get("pretrained")
    always = "" if data["unanswerable"] else "It was never shown a question without an answer, and answers all. "
    return f"""# A question answering model

Trained by [regard](https://pypi.org/project/regard) from {time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun))} UTC on
{device}. Ask with `regard answer --model FOLDER --context FILE "question"`.

## Data

{data["pairs"]:,} questions, {data["unanswerable"]:,} of them without an answer (fingerprint {data["fingerprint"]}),
{held_out}:

{files}

{f"The encoder began with the weights of `{start}`." if start else "It began from scratch."} Whether the model may be
passed on depends on the licences of these texts{" and weights" if start else ""}.

## Size

{size:,} parameters, stored as {store}; {standing.update:,} updates, {standing.tokens:,} windows seen,
{standing.seconds:,.0f} seconds of training. The weights are {outcome.made}.

## Scores

{"| measure | validation |" if scores else "It was not validated."}
{"|---|---|" if scores else ""}
{scores}

`nll` is −log P(start) − log P(end) in nats; EM and F1 are SQuAD's, in per cent. `valid_loss` decided which weights to
keep.

## Settings

```toml
{to_toml({key: value for key, value in tables.items() if key != "data"}).strip()}
```

## Limits

It marks a passage of the context that it is given, right or wrong, and knows nothing else; it was trained on texts and
questions of one kind. {always}It carries over whatever bias its data have.
"""
