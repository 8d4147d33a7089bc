"""Small talk with summaries: who brings what to whom. Some names are in no summary that is trained on, only copied."""

import json
import random

SYLLABLES = [
    "ba",
    "ko",
    "ri",
    "mu",
    "ze",
    "ta",
    "lo",
    "vi",
    "ne",
    "sha",
    "pe",
    "du",
    "gi",
    "fo",
    "ha",
    "jo",
    "ly",
    "wa",
    "xi",
    "cu",
]
NAMES = [f"{a}{b}".capitalize() for a in SYLLABLES for b in SYLLABLES if a != b]
UNSEEN = NAMES[::9]  # they are at most heard of
KNOWN = sorted({*NAMES} - {*UNSEEN})
THINGS = ["tea", "cake", "soup", "rice", "bread", "milk"]


def chat(draw, names):
    (a, b), thing, other = draw.sample(names, 2), draw.choice(THINGS), draw.choice(NAMES)
    lines = [f"{a}: hi {b}!", f"{b}: what do you have?", f"{a}: some {thing}.", f"{b}: say hi to {other}"]
    return "\r\n".join(lines), f"{a} brings {b} {thing}."


def chats(count, seed, names=KNOWN):
    draw = random.Random(seed)
    return [chat(draw, names) for _ in range(count)]


def write(path, some):
    path.write_text("".join(json.dumps({"dialogue": d, "summary": s}) + "\n" for d, s in some))


def settings(folder, **model):
    """Those of a model that learns it in seconds."""
    from regard.tasks.summarization.train import Data, Settings

    return Settings(
        data=Data(train=str(folder / "train.jsonl"), valid=str(folder / "valid.jsonl"), keys=["dialogue", "summary"]),
        subwords={"vocab_size": 1100, "dropout": 0.0},
        model={"dim": 48, "ffn_dim": 96, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
        | {"copy_dim": 24, **model},
        training={"updates": 150, "tokens": 1500, "warmup": 30, "lr": 1e-2, "schedule": "cosine", "rdrop": 0.0}
        | {"smoothing": 0.0, "valid_every": 150, "rouge": False, "device": "cpu"},
    )


def train(folder, **model):
    """Leaves a model in ``folder / "model"``; returns what came of it."""
    from regard.tasks.summarization.train import train
    from regard.train import Silent

    write(folder / "train.jsonl", chats(3000, 0))
    write(folder / "valid.jsonl", chats(60, 1))
    return train(settings(folder, **model), folder / "model", report=Silent())


def right(summarizer, names):
    """Of 50 new chats among these people, how many are summarized to the letter."""
    some = chats(50, 9, names)
    found = summarizer.summarize([document for document, _ in some], beam=2)
    return sum(summary.text == wanted for summary, (_, wanted) in zip(found, some, strict=True))
