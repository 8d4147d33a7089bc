"""Held-out validation: no sentence on both sides, whatever is repeated; the same pairs whenever they are asked for."""

import json
import random
from dataclasses import replace

import asked
import numpy as np
import pytest
import torch
import toy

from regard.data import Files, Pairs, read
from regard.data.heldout import choose, default, hold_out, key
from regard.files.toml import read_toml
from regard.tasks.base.settings import Data, Settings
from regard.tasks.qa.train import Data as Questions
from regard.tasks.translation.train import train
from regard.train import Silent


def spoiled(draw, text):
    """The same sentence to a reader of it."""
    return draw.choice([text, text.upper(), f" {text}", text.replace(" ", "  ")])


def repeated(count, kinds):
    """Pairs some of whose sentences come often, written in several ways."""
    draw = random.Random()
    sides = [[f"{side} {draw.random()} x" for _ in range(kinds)] for side in ("source", "target")]
    return [tuple(spoiled(draw, side[int(kinds * draw.random() ** 2)]) for side in sides) for _ in range(count)]


def sentences(pairs):
    return {" ".join(text.lower().split()) for pair in pairs for text in pair}


def both(split):
    return tuple([pair for reader in part for pair in read(reader)] for part in (split.training, split.validation))


@pytest.mark.parametrize(("count", "kinds"), [(400, 2000), (1000, 700), (3000, 30_000)])
def test_no_sentence_is_on_both_sides(count, kinds):
    pairs = repeated(count, kinds)
    first, second = Pairs(pairs[: count // 3]), Pairs(pairs[count // 3 :])
    split = hold_out([first, second])
    train, valid = both(split)
    assert not sentences(train) & sentences(valid)
    assert 10 <= len(valid) <= default(count) == count // 20 and len(train) >= count - 2 * len(valid)
    assert set(valid) | set(train) <= set(pairs) and f"{len(valid):,} of {count:,} pairs" in split.summary
    random.shuffle(pairs)  # neither the order nor the files decide
    again = both(hold_out([Pairs(pairs)]))
    assert sentences(again[1]) == sentences(valid) and sentences(again[0]) == sentences(train)


def test_a_sentence_that_is_a_source_here_and_a_target_there_is_not_on_both_sides():
    pairs = [(f"a{i}", f"a{i + 1}") for i in range(300)]
    train, valid = both(hold_out([Pairs(pairs)], 40))
    assert len(valid) > 10 and not sentences(train) & sentences(valid)


def test_training_is_not_emptied_where_all_share_a_sentence():
    """Questions to be answered by yes or no, as pairs: none stands alone."""
    pairs = [(f"question {i}", ("yes", "no")[i % 2]) for i in range(1000)]
    split = hold_out([Pairs(pairs)])
    assert both(split) == (pairs, []) and not split.summary
    valid, gone = choose(np.array([[key(text) for text in pair] for pair in pairs], np.uint64), 50)
    assert not valid.any() and not gone.any()


def test_few_pairs_are_all_trained_on():
    assert [default(n) for n in (0, 199, 200, 8000, 10**6)] == [0, 0, 10, 400, 1000]
    assert both(hold_out([Pairs(repeated(199, 20_000))]))[1] == []
    assert len(both(hold_out([Pairs(repeated(199, 20_000))], 7))[1]) == 7
    with pytest.raises(ValueError, match="held_out: expected fewer than the 199 pairs there are, got 199"):
        hold_out([Pairs(repeated(199, 20_000))], 199)


def test_bad_lines_are_told_once(tmp_path):
    pairs = repeated(400, 20_000)
    pairs[7] = ("", "nothing")
    for side in (0, 1):
        (tmp_path / f"{side}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    split = hold_out([Files(tmp_path / "0", tmp_path / "1", weight=3.0)])
    assert [reader.weight for reader in (*split.training, *split.validation)] == [3.0, 1.0]
    with pytest.raises(ValueError, match="0:8: empty side"):
        [*read(split.training[0])]
    rest = [*read(split.training[0], bad="skip")]
    assert len(rest) + len([*read(split.validation[0])]) == 399 and split.validation[0].name.endswith(", held out")


def test_given_validation_data_are_used(tmp_path):
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text("".join(f"{s}\t{t}\n" for s, t, _ in toy.pairs(300, 1)))
    a, b = str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv")
    assert [r.name for r in Data(source=a, valid_source=b).split.validation] == [b]
    assert Data(source=a, held_out=0).split.validation == []
    with pytest.raises(ValueError, match="held_out is 5, and validation data are given"):
        _ = Data(source=a, valid_source=b, held_out=5).split
    with pytest.raises(ValueError, match="held_out is 5, and validation data are given"):
        Questions(questions=a, valid_questions=b, held_out=5)
    for table in (Data, Questions):
        with pytest.raises(ValueError, match="held_out must be a whole number of at least 0, got -1"):
            table(held_out=-1)


def test_questions_of_a_context_stay_together(tmp_path):
    entries = [*asked.questions(300, 3)]
    for i, entry in enumerate(entries):  # several on each, and some with other spaces
        entry["context"] = entries[i // 3 * 3]["context"] + " " * (i % 2)
        entry["answers"] = []
    path = asked.write(tmp_path / "q.jsonl", entries)
    train, valid = (Questions(questions=path).load(valid)[0] for valid in (False, True))
    assert 15 <= len(valid) <= 22 and len(train) + len(valid) == 300
    assert not {key(q.context) for q in train} & {key(q.context) for q in valid}
    assert len(Questions(questions=path, held_out=0).load()[0]) == 300
    alone = asked.write(tmp_path / "alone.jsonl", [{**e, "context": entries[0]["context"]} for e in entries])
    assert [len(Questions(questions=alone).load(valid)[0]) for valid in (False, True)] == [300, 0]


class Killed(Silent):
    def say(self, message):
        if message.startswith("update 4:"):
            raise KeyboardInterrupt


def test_resumed_with_what_was_held_out_it_gives_the_same_weights(tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t, _ in toy.pairs(400, 2)))
    settings = Settings(
        data=Data(source=str(tmp_path / "train.tsv"), held_out=12),
        subwords={"vocab_size": 330},
        model={"dim": 16, "ffn_dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        training={"updates": 6, "tokens": 300, "valid_every": 2, "bleu": False, "rdrop": 0.0, "device": "cpu"},
    )
    whole = train(settings, tmp_path / "whole", report=Silent())
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "killed", report=Killed())
    again = train(replace(settings, data=replace(settings.data)), tmp_path / "killed", report=Silent())
    assert again.scores == whole.scores and again.made == whole.made
    assert all(torch.equal(a, b) for a, b in zip(whole.weights.values(), again.weights.values(), strict=True))


def test_a_run_without_validation_data_is_validated(run, files):
    """And resumed with the same split, which its fingerprint has."""
    words = [f"{i:b}".replace("0", "a ").replace("1", "b ") for i in range(1, 401)]
    (files / "train.tsv").write_text("".join(f"{w}\t{w[::-1]}x\n" for w in words))
    small = (
        "--vocab-size 270 --dim 16 --ffn-dim 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --rdrop 0 --tokens 900"
    )
    given = ["train", "--source", files / "train.tsv", *small.split(), "--out", files / "m", "--device", "cpu"]
    done = run(*given, "--updates", "2", "--set", "training.bleu=false")
    assert done.code == 0 and "held out for validation: 20 of 400 pairs" in done.err, done.err
    data = read_toml(files / "m" / "config.toml")["data"]
    assert (data["pairs"], data["valid_pairs"]) == (380, 20)
    assert "valid_loss" in json.loads((files / "m" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "nothing to do" in run(*given, "--updates", "2", "--set", "training.bleu=false").err
    done = run(*given, "--updates", "2", "--held-out", "30", "--set", "training.bleu=false")
    assert done.code == 2 and "the number of training pairs was 380, is 370" in done.err
    done = run(*given[:-4], "--out", files / "all", "--device", "cpu", "--updates", "1", "--held-out", "0")
    assert done.code == 0 and "no validation data, and none held out: training neither validates nor" in done.err
    assert "too few" not in done.err
