"""SAMSum as JSON lines to train on, with more of it made by changing who speaks.

    python recipes/samsum/prepare.py CORPORA/samsum --out out/samsum

Whoever speaks in a chat could have another name: each copy of the training set gives all speakers, and others whom they
mention, new names at random, the same in dialogue and summary. A model that has seen everybody called everything learns
to copy names and not to remember them. Women stay women and men men, as far as the pronouns of training summaries tell,
so that "she" stays right. ``gaps.jsonl.gz`` asks for an utterance that was taken out of a dialogue; a recipe may mix
some in. Only the training set is changed; validation and test are as they were.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

Chat = tuple[str, str]
NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
SPEAKER = re.compile(r"^\s*([A-Z][a-z]{2,})\s*:", re.MULTILINE)
PRONOUN = {
    **dict.fromkeys(("she", "her", "hers", "herself"), "f"),
    **dict.fromkeys(("he", "him", "his", "himself"), "m"),
}


def read(path: Path) -> list[Chat]:
    """Dialogues with summaries; the one without a dialogue is left out."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["dialogue"], row["summary"]) for row in rows if row["dialogue"].strip() and row["summary"].strip()]


def write(path: Path, chats: Sequence[Chat]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        for document, summary in chats:
            file.write((json.dumps({"document": document, "summary": summary}, ensure_ascii=False) + "\n").encode())


def names(chats: Sequence[Chat]) -> dict[str, str]:
    """Those who speak, each "f", "m" or "?"; who is more often a word ("Will", "May") is left out.

    A pronoun of a summary is a vote for the first name of its sentence, or of the one before.
    """
    speak = Counter(name for dialogue, _ in chats for name in SPEAKER.findall(dialogue))
    lower = Counter(word for dialogue, _ in chats for word in re.findall(r"\b[a-z]+\b(?!')", dialogue))
    known = {name for name, times in speak.items() if lower[name.lower()] < times}
    votes: dict[str, Counter[str]] = {name: Counter() for name in known}
    for _, summary in chats:
        who, new = None, True
        for word in re.findall(r"\w+|[.!?]", summary):
            if word in known and new:
                who, new = word, False
            elif who and word.lower() in PRONOUN:
                votes[who][PRONOUN[word.lower()]] += 1
            new = new or word in ".!?"
    return {name: _sure(count) for name, count in sorted(votes.items())}


def _sure(votes: Counter[str]) -> str:
    return next((a for a, b in (("f", "m"), ("m", "f")) if votes[a] > 1.5 * votes[b]), "?")


def renamed(chat: Chat, known: dict[str, str], draw: random.Random) -> Chat:
    """Everybody known has another name of the same kind; no two become one."""
    dialogue, summary = chat
    there = {*NAME.findall(dialogue), *NAME.findall(summary)}
    pools = {kind: [n for n, k in known.items() if k == kind and n not in there] for kind in "fm?"}
    new = {}
    for name in sorted(there & known.keys()):
        pool = pools[known[name]]
        if pool:
            new[name] = pool.pop(draw.randrange(len(pool)))

    def change(text: str) -> str:
        return NAME.sub(lambda found: new.get(found.group(), found.group()), text)

    return change(dialogue), change(summary)


def gaps(chats: Sequence[Chat], most: int = 2) -> Iterator[Chat]:
    """Dialogues without an utterance, and that utterance: those that share most words with the rest."""
    for dialogue, _ in chats:
        lines = [line.strip() for line in dialogue.splitlines() if line.strip()]
        spoken = [re.match(r"([^:]{1,30}:)\s*(.*)", line) for line in lines]
        if len(lines) < 4 or not all(spoken):
            continue
        words = [{*re.findall(r"\w+", line.lower())} for line in lines]
        shares = []
        for i, own in enumerate(words):
            rest = set().union(*(words[:i] + words[i + 1 :]))
            shares.append((len(own & rest) / (len(own) + 3), i) if len(own) >= 7 else (0.0, i))
        for share, i in sorted(shares, reverse=True)[:most]:
            found = spoken[i]
            if share and found:
                yield "\n".join(["…", *lines[:i], f"{found[1]} …", *lines[i + 1 :]]), found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the folder with train.json.gz, validation.json.gz and test.json.gz")
    parser.add_argument("--out", type=Path, default=Path("out/samsum"))
    parser.add_argument("--copies", type=int, default=4, help="of the training set, with other names")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    train = read(options.corpus / "train.json.gz")
    known = names(train)
    print(f"{len(train):,} dialogues, {len(known):,} names: {dict(Counter(known.values()))}")
    write(options.out / "train.jsonl.gz", train)
    for name, into in (("validation", "valid"), ("test", "test")):
        write(options.out / f"{into}.jsonl.gz", read(options.corpus / f"{name}.json.gz"))
    for copy in range(1, options.copies + 1):
        draw = random.Random(options.seed * 1000 + copy)
        write(options.out / f"names-{copy}.jsonl.gz", [renamed(chat, known, draw) for chat in train])
    taken = list(gaps(train))
    print(f"{len(taken):,} gaps")
    write(options.out / "gaps.jsonl.gz", taken)


if __name__ == "__main__":
    main()
