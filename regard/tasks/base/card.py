"""The model card: what a model was made of, how well it does, and what it is not for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from regard.files.toml import to_toml
from regard.train import Outcome
from regard.train.settings import Values

LOSS = "`valid_loss` is the negative log-likelihood of a subword in nats"


class CardText(NamedTuple):
    """The task's texts in a model card: what the model is, its use, its measures and its limits.

    ``unit`` is the unit of the data, ``seen`` that of training; ``among`` says more about the units, ``origin`` where
    the initial weights are from, ``licensed`` whose licences matter.
    """

    title: str
    use: str
    measures: str
    limits: str
    unit: str = "pairs"
    seen: str = "target subwords"
    among: str = ""
    origin: str = ""
    licensed: str = "these texts"

    def start_from(self, name: object, part: str = "The encoder") -> CardText:
        """The texts for a model whose training started with the weights of another; as they are if ``name`` is None."""
        if name is None:
            return self
        origin = f"{part} started with the weights of `{name}`. "
        return self._replace(origin=origin, licensed="these texts and weights")


TRANSLATION = CardText(
    "A translation model",
    "Translate with `regard translate --model FOLDER`.",
    f"{LOSS}; BLEU and chrF, where given, are of greedy decoding.",
    """\
It translates sentences of the kind it was trained on, one at a time. On other text it may leave things out, repeat
itself or invent things, in fluent language; check names and numbers. It reproduces the bias of its data.""",
)


def model_card(
    tables: Mapping[str, Values],
    outcome: Outcome,
    *,
    size: int,
    store: str,
    device: str,
    begun: float,
    files: Sequence[str] = (),
    words: CardText = TRANSLATION,
) -> str:
    """README.md of a model folder; ``files`` are the names in [data] of what it was trained on."""
    data, standing = tables["data"], outcome.standing
    scores = "\n".join(f"| {name} | {value:.4g} |" for name, value in outcome.scores.items())
    trained_on = "\n".join(f"- {line}" for line in _sources(data, files))
    held = data["valid_pairs"]
    used = data.get("used_pairs", data["pairs"])
    left_out = f", of which {used:,} are short enough to be used" if used != data["pairs"] else ""
    held_out = f"{held:,} {words.unit} held out for validation" if held else "no validation set"
    return f"""# {words.title}

Trained by [regard](https://pypi.org/project/regard) from {time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun))} UTC on
{device}. {words.use}

## Data

{data["pairs"]:,} {words.unit}{words.among} (fingerprint {data["fingerprint"]}){left_out}, {held_out}:

{trained_on}

{words.origin}Whether you may redistribute the model depends on the licences of {words.licensed}.

## Size

{size:,} parameters, stored as {store}; {standing.update:,} updates, {standing.tokens:,} {words.seen} seen,
{standing.seconds:,.0f} seconds of training. The weights are {outcome.made}.

## Scores

{"| measure | validation |" if scores else "It was not validated."}
{"|---|---|" if scores else ""}
{scores}

{words.measures}

## Settings

```toml
{to_toml({key: value for key, value in tables.items() if key != "data"}).strip()}
```

## Limits

{words.limits}
"""


def _sources(data: Values, names: Sequence[str]) -> list[str]:
    """The training files: the two sides of a translation together, other files of these names, then more corpora."""
    lines = []
    if sides := [data[key] for key in ("source", "target") if data.get(key)]:
        lines.append(" and ".join(f"`{path}`" for path in sides))
    for name in names:
        if name not in ("source", "target") and not name.startswith("valid") and (given := data.get(name)):
            lines += [f"`{path}`" for path in ([given] if isinstance(given, str) else given)]
    for table in data.get("corpora", ()):
        paths = [f"`{table[key]}`" for key in ("source", "target", "tsv", "jsonl", "path") if key in table]
        lines.append(" and ".join(paths) + (f", weight {table['weight']:g}" if "weight" in table else ""))
    return lines
