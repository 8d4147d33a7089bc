"""Schedules and losses against their formulas; what an update does; training as a whole, in miniature."""

import json
import math
import random
import threading
import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from regard.data import Pairs, batches
from regard.train import Position, Ranks, Settings, Silent, Step, fit, learning_rate, sequence_loss
from regard.train.loop import _TrainingRun
from regard.train.updater import Updater, seed_dropout

CPU = Ranks(0, 1, torch.device("cpu"))


# --- schedules ---


@pytest.mark.parametrize("update", [1, 7, 1999, 2000, 2001, 8000])
def test_inverse_square_root_is_the_paper_s(update):
    """Vaswani et al.: dim^-½ min(u^-½, u warmup^-3/2); its peak is (dim warmup)^-½."""
    paper = 512**-0.5 * min(update**-0.5, update * 2000**-1.5)
    ours = learning_rate(update, schedule="inverse_sqrt", peak=(512 * 2000) ** -0.5, warmup=2000, updates=8000)
    assert ours == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("update", [10, 11, 55, 100])
def test_cosine(update):
    ours = learning_rate(update, schedule="cosine", peak=2.0, warmup=10, updates=100, final=0.5)
    assert ours == pytest.approx(0.5 + 1.5 * (1 + math.cos(math.pi * (update - 10) / 90)) / 2, rel=1e-12)


def test_cosine_warms_up_and_ends_at_its_end():
    options = {"schedule": "cosine", "peak": 2.0, "warmup": 10, "updates": 100, "final": 0.5}
    assert learning_rate(5, **options) == 1.0
    assert learning_rate(100, **options) == learning_rate(1000, **options) == 0.5


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate(1, schedule="inverse_sqrt", peak=1.0, warmup=0, updates=5) == 1.0


@pytest.mark.parametrize("wrong", [{"schedule": "linear"}, {"update": 0}])
def test_a_schedule_refuses(wrong):
    options = {"update": 1, "schedule": "cosine", "peak": 1.0, "warmup": 1, "updates": 2} | wrong
    with pytest.raises(ValueError, match=r"linear|count from 1"):
        learning_rate(options.pop("update"), **options)


# --- the loss ---


def loss_case(passes=1, m=13, e=6, v=11, seed=0):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(passes * m, e, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(v, e, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, v, (m,), generator=g)
    targets[::4] = 0  # padding
    return features, weight, targets


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 5])
def test_cross_entropy_is_pytorch_s(smoothing, chunk):
    features, weight, targets = loss_case()
    theirs = F.cross_entropy(
        features @ weight.T, targets, ignore_index=0, reduction="sum", label_smoothing=smoothing
    )  # fmt: skip
    ours = sequence_loss(features, weight, targets, smoothing=smoothing, chunk=chunk)
    nll = F.cross_entropy(features @ weight.T, targets, ignore_index=0, reduction="sum")
    torch.testing.assert_close(ours.detach(), torch.stack((theirs, nll)).detach(), rtol=1e-12, atol=0)
    for a, b in zip(
        gradients(ours[0] * 3, features, weight), gradients(theirs * 3, features, weight), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("chunk", [None, 5])
def test_r_drop_is_the_formula(chunk):
    """½ (CE₁ + CE₂) + ¼ α (KL(P₁‖P₂) + KL(P₂‖P₁)), by PyTorch's own functions."""
    features, weight, targets = loss_case(passes=2)
    counted = targets != 0
    log_p = (features @ weight.T).log_softmax(-1).view(2, len(targets), -1)[:, counted]
    ce = sum(F.cross_entropy(x, targets[counted], reduction="sum", label_smoothing=0.1) for x in log_p)
    kl = sum(
        F.kl_div(log_p[b], log_p[a], reduction="sum", log_target=True) for a, b in ((0, 1), (1, 0))
    )  # of a from b  # fmt: skip
    theirs = ce / 2 + 5.0 * kl / 4
    ours = sequence_loss(features, weight, targets, smoothing=0.1, rdrop=5.0, chunk=chunk)
    torch.testing.assert_close(ours[0], theirs, rtol=1e-12, atol=0)
    for a, b in zip(gradients(ours[0], features, weight), gradients(theirs, features, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_equal_passes_have_no_divergence():
    features, weight, targets = loss_case()
    twice = sequence_loss(torch.cat((features, features)), weight, targets, smoothing=0.1, rdrop=5.0)
    once = sequence_loss(features, weight, targets, smoothing=0.1)
    torch.testing.assert_close(twice, once, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rdrop", [None, 5.0])
def test_no_targets_cost_nothing(rdrop):
    """A rank whose share of a batch is empty still takes part."""
    features, weight, _ = loss_case()
    for targets in (torch.zeros(0, dtype=torch.long), torch.zeros(4, dtype=torch.long)):
        rows = features[: len(targets) * (1 if rdrop is None else 2)]
        ours = sequence_loss(rows, weight, targets, smoothing=0.1, rdrop=rdrop)
        d_features, d_weight = gradients(ours[0], features, weight)
        assert ours.tolist() == [0.0, 0.0] and not d_features.any() and not d_weight.any()


def test_extreme_logits_give_finite_losses():
    features = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [1.0], [-1.0]], requires_grad=True)
    ours = sequence_loss(features, weight, torch.tensor([1, 1]), smoothing=0.1)
    ours[0].backward()
    assert ours.isfinite().all() and features.grad.isfinite().all()


def test_the_loss_in_bfloat16_is_near_the_exact_one():
    features, weight, targets = loss_case(m=64, e=32, v=50)
    exact = sequence_loss(features, weight, targets, smoothing=0.1)
    half = [features.detach().float().requires_grad_(), weight.detach().float().requires_grad_()]
    with torch.autocast("cpu", torch.bfloat16):
        rough = sequence_loss(*half, targets, smoothing=0.1)
        eager = F.cross_entropy(
            half[0] @ half[1].T, targets, ignore_index=0, reduction="sum", label_smoothing=0.1
        )  # fmt: skip
    allowed = 2 * abs(eager.double() - exact[0]).item() + 1e-6 * exact[0].item()
    assert abs(rough[0].double() - exact[0]).item() <= allowed
    assert [g.dtype for g in gradients(rough[0], *half)] == [torch.float32] * 2


def test_the_loss_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"expected features \[2 · M, E\] for targets \[M\]"):
        sequence_loss(torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(3, dtype=torch.long), rdrop=1.0)


# --- an update ---


class Line(torch.nn.Module):
    """Σ (w·x − y)², and the sum of |w·x − y|."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x, y):
        error = self.model(x)[:, 0] - y
        return torch.stack((error.square().sum(), error.detach().abs().sum()))


def make_line(seed=0):
    torch.manual_seed(seed)
    return Line()


def line_data(n, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3


def test_accumulated_batches_are_one_big_batch():
    x, y = line_data(12)
    results = []
    for cuts in ([12], [5, 1, 6]):
        objective = make_line()
        engine = Updater(objective, Settings(warmup=1, lr=0.1, clip=0.5), CPU, 2)
        for update in (1, 2, 3):
            engine.update([((a, b), len(b)) for a, b in zip(x.split(cuts), y.split(cuts), strict=True)], update)
        results.append((objective.model.weight.detach(), engine.read()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=0)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-6)


def test_an_update_is_adam_with_clipping():
    x, y = line_data(8)
    objective, plain = make_line(), make_line()
    settings = Settings(warmup=2, lr=0.1, clip=0.01, weight_decay=0.1)
    engine = Updater(objective, settings, CPU, 2)
    theirs = torch.optim.AdamW(plain.parameters(), betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
    for update in (1, 2, 3):
        engine.update([((x, y), 8)], update)
        theirs.param_groups[0]["lr"] = settings.rate(update)
        theirs.zero_grad()
        (plain(x, y)[0] / 8).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        theirs.step()
    torch.testing.assert_close(objective.model.weight, plain.model.weight, rtol=1e-12, atol=0)


def test_parameters_learn_at_their_own_pace():
    x, y = line_data(8)
    objective, plain = make_line(), make_line()
    weight, bias = objective.model.parameters()
    settings = Settings(warmup=2, lr=0.1, clip=0.01)
    engine = Updater(objective, settings, CPU, 2, {bias: 0.25})
    groups = [{"params": [p]} for p in plain.parameters()]
    theirs = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)
    for update in (1, 2, 3):
        engine.update([((x, y), 8)], update)
        for group, pace in zip(theirs.param_groups, (1.0, 0.25), strict=True):
            group["lr"] = pace * settings.rate(update)
        theirs.zero_grad()
        (plain(x, y)[0] / 8).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        theirs.step()
    torch.testing.assert_close(weight, plain.model.weight, rtol=1e-12, atol=0)
    torch.testing.assert_close(bias, plain.model.bias, rtol=1e-12, atol=0)


def test_dropout_depends_on_where_the_run_stands_alone():
    def draw(*where):
        seed_dropout(*where, CPU)
        return torch.rand(4)

    first = draw(1, 5, 0)
    torch.rand(100)
    assert torch.equal(draw(1, 5, 0), first)
    others = [draw(2, 5, 0), draw(1, 6, 0), draw(1, 5, 1)]
    assert not any(torch.equal(first, other) for other in others)


@pytest.fixture
def replaying(monkeypatch):
    """A GraphEngine whose graphs just do their work again, for the bookkeeping around them; real ones need a GPU."""
    import contextlib

    from regard.train import updater as module

    class Stream:
        def __init__(self, *_):
            self.waited = []

        def synchronize(self): ...
        def wait_stream(self, other):
            self.waited.append(other)

    class Again(module.GraphEngine):
        replays = updates = 0

        def update(self, *given):
            self.updates += 1
            super().update(*given)

        def backward(self, *given, **options):
            assert self.stream.waited == ["current"] * self.updates  # zeros and moments are written on another
            super().backward(*given, **options)

        def _capture_graph(self, work):
            def replay():
                self.replays += 1
                work()

            return type("Graph", (), {"replay": staticmethod(replay)})

    for name, fake in (
        ("Stream", Stream), ("current_stream", lambda *_: "current"), ("graph_pool_handle", lambda: 0),
        ("stream", lambda _: contextlib.nullcontext()),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    return Again


def twelve_updates(make):
    """The weights and sums of an engine after twelve updates of two batches in three shapes."""
    x, y = line_data(40)
    objective = make_line()
    engine = make(objective, Settings(warmup=3, lr=0.1, clip=0.5), CPU, 2)
    for update in range(1, 13):
        sizes = (3, 5) if update % 2 else (4, 3)
        some = [((x[update : update + n].clone(), y[update : update + n].clone()), n) for n in sizes]
        engine.update(some, update)
    return objective.model.weight.detach(), engine.read(), engine


def test_replayed_graphs_do_the_same(replaying):
    weight, sums, _ = twelve_updates(Updater)
    ours, theirs, engine = twelve_updates(lambda *a: replaying(*a, say=pytest.fail))
    assert engine.replays == (24 - 3 * 2) + (12 - 2)  # of 24 batches in 3 shapes and 12 steps, but for the warm-up
    torch.testing.assert_close(weight, ours, rtol=1e-12, atol=0)
    assert sums == pytest.approx(theirs, rel=1e-6)


def test_without_memory_graphs_are_let_go_and_the_update_is_done_again(replaying):
    """Its second batch runs out, half of it added to the gradients already; a first time without graphs is an error."""
    said, runs = [], []

    class Short(replaying):
        def _backward(self, tensors, scale):
            runs.append(bool(self.graphs))
            super()._backward(tensors, scale)
            if self.graphs and len(runs) > 16 and not said:
                raise torch.OutOfMemoryError("CUDA out of memory")

    weight, sums, _ = twelve_updates(Updater)
    ours, theirs, engine = twelve_updates(lambda *a: Short(*a, say=said.append))
    assert len(said) == 1 and "continuing without CUDA graphs" in said[0] and not engine.graphs and engine.last is None
    torch.testing.assert_close(weight, ours, rtol=1e-12, atol=0)
    assert sums == pytest.approx(theirs, rel=1e-6)

    class Never(replaying):
        def _backward(self, tensors, scale):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        twelve_updates(lambda *a: Never(*a, say=pytest.fail))


# --- the loop ---


class LineTask:
    """Regression as a task; validation may be given as a list of losses to come."""

    sums, blocks, static = ("loss", "error"), (), False

    def __init__(self, script=None, wrong_at=None):
        self.objective = make_line()
        self.model = self.objective.model
        self.script, self.wrong_at, self.validated = script, wrong_at, 0

    validation_cost = 0.0

    def pace(self, name):
        return 1.0

    def steps(self, position, ranks):
        while True:
            position = position.after()
            x, y = line_data(4, seed=position.batch)
            if position.batch == self.wrong_at:
                y = y * math.nan
            yield Step((x, y), 4, position)

    def validate(self, model):
        self.validated += 1
        if self.script is not None:
            return {"valid_loss": self.script[min(self.validated, len(self.script)) - 1]}
        x, y = line_data(20, seed=999)
        with torch.no_grad():
            return {"valid_loss": float((model(x)[:, 0] - y).square().mean())}


def small(**options):
    return Settings(**{"updates": 60, "warmup": 5, "lr": 0.1, "valid_every": 10, "log_every": 5} | options)


def test_a_run_learns_and_leaves_metrics(tmp_path):
    outcome = fit(LineTask(), small(updates=200), tmp_path, CPU, Silent())
    assert outcome.scores["valid_loss"] < 1e-3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "lr" in line] == list(range(5, 201, 5))
    assert [line["update"] for line in lines if "valid_loss" in line and "final" not in line] == list(
        range(10, 201, 10)
    )
    assert {"loss", "error", "tokens_per_s", "epoch", "gradient_norm", "seconds"} <= lines[0].keys()
    assert "final" in lines[-1]


def test_training_stops_when_validation_is_no_better(tmp_path):
    task = LineTask(script=[3.0, 2.0, 2.5, 2.2, 2.1, 9.9])
    outcome = fit(task, small(patience=3), tmp_path, CPU, Silent())
    assert outcome.standing.update == 50 and outcome.standing.best_update == 20


def test_validations_of_the_warm_up_do_not_count(tmp_path):
    task = LineTask(script=[1.0, 2.0])
    outcome = fit(task, small(updates=100, warmup=40, patience=3), tmp_path, CPU, Silent())
    assert outcome.standing.update == 70 and outcome.standing.best_update == 10


def test_a_short_run_does_not_end_early(tmp_path):
    outcome = fit(LineTask(script=[1.0, 2.0]), small(valid_every=None), tmp_path, CPU, Silent())
    assert outcome.standing.update == 60 and outcome.standing.stale == 55


@pytest.mark.parametrize(
    ("updates", "update", "epoch", "ended"),
    [(4000, 1700, 3, False), (4000, 1701, 3, True), (4000, 1701, 2, False), (500, 499, 9, False), (600, 1101, 9, True)],
)
def test_without_patience_a_run_ends_after_a_share_of_it_without_progress(tmp_path, updates, update, epoch, ended):
    """At least 1,000 updates, and two epochs; the best was at 101, in epoch 1, after the warm-up."""
    quiet = Ranks(1, 1, CPU.device)  # writes nothing
    run = _TrainingRun(LineTask(), small(updates=updates, warmup=50), tmp_path, quiet, Silent(), time.monotonic)
    run.standing.update, run.standing.position = 101, Position(epoch=1)
    assert run._judge(2.0)
    run.standing.update, run.standing.position = update, Position(epoch=epoch)
    assert not run._judge(2.5) and run.standing.ended is ended


def test_validations_take_a_tenth_of_the_time_at_the_most():
    draw = random.Random()
    for _ in range(200):
        updates, cost = draw.randint(1, 20_000), 10 ** draw.uniform(-2, 2)
        settings = Settings(updates=updates)
        every = settings.validations(cost)
        took = (math.ceil(updates / every) + 2) * cost  # with the average and the best at the end
        assert every % settings.interval == 0, (updates, cost)
        assert took <= (updates + took) / 10 or every >= updates, (updates, cost)
        less = every - settings.interval
        more = less and (math.ceil(updates / less) + 3) * cost
        assert not less or more > updates / 9, (updates, cost, "validated too seldom")
    assert Settings(updates=400, valid_every=7).validations(100.0) == 7


class Stopping(Silent):
    def __init__(self, at):
        self.at = at

    def say(self, message):
        if message.startswith(f"update {self.at}:"):
            raise KeyboardInterrupt


@pytest.mark.slow
def test_validated_at_the_same_places_when_resumed_elsewhere(tmp_path):
    """Where the run begins decides: a machine on which a validation measures less goes on with what was fixed."""
    validated = {}
    for name, stopped in (("whole", None), ("stopped", 80)):
        task = LineTask()
        task.validation_cost = 6.2
        settings = small(updates=400, valid_every=None)
        if stopped:
            with pytest.raises(KeyboardInterrupt):
                fit(task, settings, tmp_path / name, CPU, Stopping(2 * stopped))
            task = LineTask()
        outcome = fit(task, settings, tmp_path / name, CPU, Silent())
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        places = [line["update"] for line in lines if "valid_loss" in line and "final" not in line]
        validated[name] = places, outcome.weights["weight"].tolist(), outcome.made
    assert validated["whole"] == validated["stopped"] and validated["whole"][0] == [80, 160, 240, 320, 400]
    assert len(list((tmp_path / "whole" / "checkpoints").glob("weights-*"))) == 10  # kept more often: every 8 updates


class Timed(LineTask):
    """A second for an update, ten more for the first one, and five for a validation, by a clock of its own."""

    validation_cost = 5.0

    def __init__(self):
        super().__init__([5.0, 4.0, 3.0, 2.0, 1.5, 1.0])
        self.seconds = 0.0
        self.objective.register_forward_hook(self.update)

    def update(self, *_):
        self.seconds += 1.0 if self.seconds else 11.0

    def validate(self, model):
        self.seconds += 5.0
        return super().validate(model)


def test_the_time_left_is_right_from_the_third_update_on(tmp_path):
    class Told(Silent):
        def tick(self, update, left):
            told.append((update, task.seconds, left))

    told, task = [], Timed()
    fit(task, small(), tmp_path, CPU, Told(), lambda: task.seconds)
    assert [update for update, _, _ in told] == list(range(1, 61)) and [left for *_, left in told[:2]] == [None, None]
    assert [left for *_, left in told[2:] if left is not None] == pytest.approx(
        [task.seconds - at for _, at, _ in told[2:]]
    )


def test_the_better_of_average_and_best_is_kept(tmp_path):
    one = LineTask(script=[3.0, 1.0, 3.0, 3.0, 3.0, 3.0, 2.0, 1.0])
    outcome = fit(one, small(), tmp_path / "a", CPU, Silent())
    assert outcome.made == "the weights of update 20, the best in validation"
    other = LineTask(script=[3.0, 1.0, 3.0, 3.0, 3.0, 3.0, 0.5])
    outcome = fit(other, small(average=2), tmp_path / "b", CPU, Silent())
    assert outcome.made == "the average of 2 checkpoints up to update 60"


def test_a_loss_that_is_no_number_ends_training(tmp_path):
    from regard.train import Diverged

    said = r"the loss is not finite between updates 20 and 25, \{.*\}: training diverged; lower lr"
    with pytest.raises(Diverged, match=said):
        fit(LineTask(wrong_at=22), small(), tmp_path, CPU, Silent())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"updates": 0}, "updates must be a whole number of at least 1, got 0"),
        ({"lr": -1.0}, "lr must be a number of at least 0, got -1.0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"schedule": "linear"}, "schedule must be one of inverse_sqrt, cosine, got 'linear'"),
        ({"precision": "int4"}, "precision must be one of auto, bfloat16, float32"),
        ({"parallel": "pipeline"}, "parallel must be one of ddp, fsdp"),
    ],
)
def test_settings_refuse(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match=r"\[training\] has no 'learning_rate'; it takes updates, .*lr"):
        Settings.from_table({"learning_rate": 1.0}, "training")


def test_positions_count_on_over_epochs():
    position = Position().after().after().next_epoch().after()
    assert position == Position(epoch=1, batch=1, begun=2)


# --- the task of translation ---

WORDS = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six", "seven": "sept"}


def pairs(count, seed):
    g = torch.Generator().manual_seed(seed)
    rows = [[list(WORDS)[i] for i in torch.randint(len(WORDS), (int(n),), generator=g)] for n in
            torch.randint(1, 7, (count,), generator=g)]  # fmt: skip
    return [(" ".join(row), " ".join(WORDS[word] for word in row)) for row in rows]


def write_pairs(folder, name, some):
    for side, i in (("en", 0), ("fr", 1)):
        (folder / f"{name}.{side}").write_text("".join(pair[i] + "\n" for pair in some))


@pytest.mark.slow
def test_a_tiny_model_learns_a_toy_language(tmp_path):
    from regard.tasks.translation.train import Data, Settings, train

    write_pairs(tmp_path, "train", pairs(1500, 0))
    write_pairs(tmp_path, "val", pairs(60, 1))
    data = Data(**{k: str(tmp_path / v) for k, v in {
        "source": "train.en", "target": "train.fr", "valid_source": "val.en", "valid_target": "val.fr"}.items()}
    )  # fmt: skip
    settings = Settings(
        data=data,
        subwords={"vocab_size": 400, "dropout": 0.0},
        model={"dim": 48, "ffn_dim": 96, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
        | {"self_score": "dot"},  # one layer finds places by their sinusoids: words stand in any order here
        training={"updates": 400, "tokens": 800, "warmup": 50, "lr": 1e-2, "valid_every": 200, "rdrop": 0.0}
        | {"smoothing": 0.0},
    )
    outcome = train(settings, tmp_path / "model", report=Silent())
    assert outcome.scores["bleu"] > 95 and outcome.scores["valid_loss"] < 0.1
    assert not (tmp_path / "model" / "checkpoints").exists()
    card = (tmp_path / "model" / "README.md").read_text()
    assert "1,500 pairs" in card and "| bleu |" in card and "## Limits" in card
    assert train(settings, tmp_path / "model", report=Silent()) is None  # it is done


def tiny_task(accumulate=1, **training):
    from regard.data import Corpus
    from regard.models.folder import make_model
    from regard.tasks.base.settings import Data, Fitted, Settings
    from regard.tasks.translation.train import TranslationTask
    from regard.text import Subwords

    some = pairs(300, 3)
    subwords = Subwords.learn([[text for pair in some for text in pair]], 300)
    given = Settings(
        data=Data(),
        subwords={"dropout": 0.1},
        model={"dim": 16, "ffn_dim": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0},
        training={"tokens": 1200, "accumulate": accumulate, "updates": 100, "warmup": 5, **training},
    )
    fitted = Fitted.of(given, 300, False)
    torch.manual_seed(0)
    model = make_model({**fitted.model, "vocab_size": len(subwords)})
    corpus = Corpus.build([Pairs(some)], subwords)
    return TranslationTask(model, corpus, None, fitted, torch.device("cpu"), False)


def test_a_validation_costs_the_subwords_that_pass_through_the_model():
    from regard.data import Corpus
    from regard.decode import Limits

    task, passed = tiny_task(rdrop=2.0), []
    assert task.validation_cost == 0.0
    some = [pair for pair in pairs(400, 5) if len(pair[0].split()) == 3]
    task.valid = Corpus.build([Pairs(some)], task.corpus.subwords)
    task.model.embedding.register_forward_hook(lambda _, given, __: passed.append(given[0].numel()))
    task.validate(task.model)
    update = 3 * 2 * 1200  # there, and back twice; two passes; tokens
    real = sum(sum(b.source_lengths) + sum(b.target_lengths) for b in batches(task.valid, tokens=10**6, shuffle=False))
    assert task.validation_cost * update == pytest.approx(float(real)) and float(real) <= sum(passed)
    task.measured, task.limits = 7, Limits(maximum=20)
    before = len(passed)
    task.measures(task.model)
    assert task.validation_cost * update >= float(real) + sum(passed[before:])
    task.valid = Corpus.build([Pairs(some * 2)], task.corpus.subwords)
    task.measured = 0
    assert task.validation_cost * update == pytest.approx(2 * float(real))


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def test_data_go_on_from_any_position():
    task = tiny_task()
    steps = take(task.steps(Position(), CPU), 30)
    assert {step.after.epoch for step in steps} >= {0, 1, 2}
    for k in (0, 7, 15, 22):
        again = next(task.steps(steps[k].after, CPU))
        assert again.after == steps[k + 1].after and again.tokens == steps[k + 1].tokens
        assert all(torch.equal(a, b) for a, b in zip(again.tensors, steps[k + 1].tensors, strict=True))


def test_the_last_share_of_training_has_plain_subwords():
    task = tiny_task(updates=40)
    plain = int(sum(task.corpus.lengths[1] + 1))

    def epoch(position):
        return sum(s.tokens for s in take(task.steps(position, CPU), 60) if s.after.epoch == position.epoch)

    assert epoch(Position(0, 0, 0)) > plain
    assert epoch(Position(9, 0, 31)) > plain
    assert epoch(Position(9, 0, 32)) == plain


def test_the_next_epoch_is_drawn_while_this_one_is_read(monkeypatch):
    import regard.tasks.base.pairs as module

    drawn = []

    def recorded(*args, **options):
        drawn.append((options["epoch"], threading.current_thread().name.split("_")[0]))
        return batches(*args, **options)

    batches = module.batches
    task = tiny_task()
    per_epoch = sum(step.after.epoch == 0 for step in take(task.steps(Position(), CPU), 30))
    monkeypatch.setattr(module, "batches", recorded)
    main = threading.current_thread().name
    steps = tiny_task(updates=2 * per_epoch - 1).steps(Position(), CPU)
    next(steps)
    end = time.monotonic() + 60
    while len(drawn) < 2 and time.monotonic() < end:
        time.sleep(0.01)  # not a step is taken meanwhile
    assert drawn == [(0, main), (1, "regard-epoch")]
    take(steps, 2 * per_epoch - 2)
    steps.close()  # waits for the thread
    assert len(drawn) == 2, "an epoch that training will not reach was drawn"


def test_rows_filled_up_count_for_nothing():
    from regard.tasks.base.pairs import fill_rows

    task = tiny_task(rdrop=0.0)
    step = next(task.steps(Position(), CPU))
    more = fill_rows(step.tensors, len(step.tensors[0]) + 5)
    assert len(more[0]) == len(step.tensors[0]) + 5
    torch.testing.assert_close(task.objective(*more), task.objective(*step.tensors), rtol=1e-5, atol=1e-4)


def test_defaults_grow_with_the_corpus():
    from regard.tasks.base.settings import Data, Fitted, Settings

    fits = [Fitted.of(Settings(data=Data()), n, False) for n in (2000, 29_000, 300_000, 5_000_000)]
    assert [f.model["dim"] for f in fits] == [256, 256, 384, 512]
    assert [f.training.rdrop for f in fits] == [5.0, 2.5, 0.0, 0.0]
    short = [Fitted.of(Settings(data=Data(), training=t), 2000, False) for t in ({"updates": 600}, {"warmup": 900})]
    assert [(f.training.warmup, f.training.updates) for f in short] == [(150, 600), (900, 4000)]
    positioned = [
        Fitted.of(Settings(data=Data(), model=m), 2000, False).model
        for m in ({}, {"self_score": "dot"}, {"positions": "sinusoidal"}, {"dim": 20, "heads": 4})
    ]
    assert [(m["self_score"], m["positions"]) for m in positioned] == [
        ("rotary", "none"),
        ("dot", "sinusoidal"),
        ("dot", "sinusoidal"),
        ("dot", "sinusoidal"),
    ]
    assert [f.training.multiple for f in (fits[0], Fitted.of(Settings(data=Data()), 2000, True))] == [1, 8]


@pytest.mark.slow
def test_a_compiled_model_has_the_same_loss(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # generating code takes a minute
    plain, compiled = tiny_task(rdrop=0.0), tiny_task(rdrop=0.0, compile=True)
    for step in take(plain.steps(Position(), CPU), 3):  # of different shapes
        ours, theirs = (task.objective(*step.tensors) for task in (compiled, plain))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
        for a, b in zip(
            gradients(ours[0], *compiled.model.parameters()),
            gradients(theirs[0], *plain.model.parameters()),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
