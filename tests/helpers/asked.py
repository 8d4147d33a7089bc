"""A toy of question answering: who has what, told in a few sentences, so that one place alone can be right."""

import json
import random

from regard.tasks.qa.train import Settings, train
from regard.train import Silent

NAMES = ["Ana", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ivy", "Jan", "Kim", "Lou", "Mia", "Ned", "Ola", "Pia"]
THINGS = [
    "apple",
    "ball",
    "coin",
    "drum",
    "egg",
    "fork",
    "game",
    "hat",
    "ink",
    "jar",
    "key",
    "lamp",
    "map",
    "nut",
    "oar",
    "pen",
]
MODEL = {"dim": 32, "ffn_dim": 64, "heads": 2, "encoder_layers": 1, "model_layers": 1, "dropout": 0.0}
TRAINING = {
    "updates": 160,
    "tokens": 2000,
    "lr": 4e-3,
    "warmup": 20,
    "negatives": 0.0,
    "valid_every": 80,
    "average": 1,
    "device": "cpu",
}


def questions(count, seed, none=0.0):
    """JSON objects; a share of them ask about somebody of whom nothing is told."""
    draw = random.Random(seed)
    for _ in range(count):
        some = draw.randint(2, 4)
        who, what = draw.sample(NAMES, some + 1), draw.sample(THINGS, some)
        facts = [f"{a} has the {b} ." for a, b in zip(who, what, strict=False)]
        i = some if draw.random() < none else draw.randrange(some)
        answers = []
        if i < some:
            start = len(" ".join([*facts[:i], ""])) + len(f"{who[i]} has the ")
            answers = [{"text": what[i], "start": start}]
        yield {"context": " ".join(facts), "question": f"What does {who[i]} have ?", "answers": answers}


def write(path, entries):
    path.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries), encoding="utf-8")
    return str(path)


def tables(folder, *, none=0.0, count=1500, **changes):
    """Settings of a run on files that are made in this folder."""
    data = {
        "questions": write(folder / "train.jsonl", questions(count, 0, none)),
        "valid_questions": write(folder / "valid.jsonl", questions(150, 1, none)),
    }
    given = {"data": data, "subwords": {"vocab_size": 330}, "model": MODEL, "training": TRAINING}
    return {name: {**table, **changes.get(name, {})} for name, table in given.items()}


def trained(folder, *, out="model", report=None, store="float32", **changes):
    """A model folder, and what came of the training."""
    outcome = train(
        Settings.from_tables(tables(folder, **changes)), folder / out, report=report or Silent(), store=store
    )
    return folder / out, outcome
