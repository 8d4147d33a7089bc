"""Translation: train an encoder-decoder on pairs of lines, from files to a model folder.

    regard train --source train.en --target train.fr \\
        --valid-source val.en --valid-target val.fr --out model/

Started again after it was killed, the same command goes on where the last checkpoint stands. Under
``torchrun --nproc-per-node N`` it trains on N processes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Batch, Corpus, Limits, batches, texts
from regard.decode import greedy
from regard.folder import make_model, read_config, save, write_config
from regard.store import parse_value, read_toml
from regard.tasks._card import model_card
from regard.tasks._settings import Data, Fitted, Settings, Training, check_same, survey
from regard.text import EOS, PAD, Subwords
from regard.train import Diverged, Outcome, Position, Progress, Ranks, Silent, Step, fit, progress, sequence_loss

__all__ = ["Data", "Objective", "Settings", "Training", "Translation", "main", "train"]


class Objective(nn.Module):
    """The loss of a batch: label-smoothed cross-entropy, with R-Drop over two passes at once."""

    def __init__(
        self,
        model: Any,
        *,
        smoothing: float,
        rdrop: float,
        dtype: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if getattr(model, "output_bias", None) is not None:
            raise ValueError("[model]: output_bias is for models that come from elsewhere; training does without it")
        self.model, self.smoothing, self.rdrop, self.dtype = model, smoothing, rdrop, dtype
        self.features = torch.compile(model.features, dynamic=True) if compile else model.features

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Loss and negative log-likelihood, summed over the targets: [2]."""
        passes = 2 if self.rdrop and self.training else 1
        if passes > 1:
            source, lengths, target_in = (torch.cat((x, x)) for x in (source, lengths, target_in))
        with autocast(source.device, self.dtype):
            features = self.features(source, target_in, source_lengths=lengths)
            rows, targets = features.flatten(0, 1), target_out.flatten()
            if rows.device.type == "cpu":  # on a GPU counting them would be waited for
                rows, targets = _without_padding(rows, targets, passes)
            rdrop = self.rdrop if passes > 1 else None
            return sequence_loss(
                rows, self.model.output_weight, targets, pad_id=PAD, smoothing=self.smoothing, rdrop=rdrop
            )


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def _without_padding(rows: Tensor, targets: Tensor, passes: int) -> tuple[Tensor, Tensor]:
    kept = (targets != PAD).nonzero().flatten()
    if len(kept) == len(targets):
        return rows, targets
    return rows.unflatten(0, (passes, len(targets))).index_select(1, kept).flatten(0, 1), targets[kept]


class Translation:
    """The task, as :func:`regard.train.fit` wants it."""

    sums = ("loss", "nll")

    def __init__(
        self, model: Any, corpus: Corpus, valid: Corpus | None, fitted: Fitted, device: torch.device, bleu: bool
    ) -> None:
        settings = fitted.training
        self.model, self.corpus, self.valid, self.settings, self.cutting = (
            model,
            corpus,
            valid,
            settings,
            fitted.cutting,
        )
        self.device, self.bleu = device, bleu
        self.dtype = torch.bfloat16 if _half(settings.precision, device) else None
        self.objective = Objective(
            model, smoothing=settings.smoothing, rdrop=settings.rdrop, dtype=self.dtype, compile=settings.compile
        )
        layers = [getattr(model, name) for name in ("encoder", "decoder")] if hasattr(model, "decoder_norm") else []
        self.blocks = [block for part in layers for block in part]
        self.static = bool(layers)  # the recurrent model waits for lengths

    def steps(self, position: Position, ranks: Ranks) -> Iterator[Step]:
        s = self.settings
        on_gpu = ranks.device.type == "cuda"
        room = s.tokens // s.accumulate
        while True:
            plain = position.begun / s.accumulate >= (1 - self.cutting.plain) * s.updates
            epoch = batches(
                self.corpus,
                tokens=room,
                seed=s.seed,
                epoch=position.epoch,
                dropout=0.0 if plain else self.cutting.dropout,
                rank=ranks.rank,
                world=ranks.world,
                multiple=s.multiple,
            )
            for k in range(position.batch, len(epoch)):
                position = position.after()
                tensors = _tensors(epoch[k])
                if on_gpu:
                    full = room // ((tensors[0].shape[1] + tensors[2].shape[1]) * ranks.world)
                    tensors = [t.pin_memory() for t in _filled(tensors, full)]
                yield Step(tensors, epoch[k].tokens, position)
            position = position.next_epoch()

    def validate(self, model: Any) -> dict[str, float]:
        if self.valid is None:
            return {}
        objective = Objective(model, smoothing=0.0, rdrop=0.0, dtype=self.dtype)
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                loss = self._valid_loss(objective)
                scores = {"valid_loss": loss, "perplexity": math.exp(min(loss, 50.0))}
                return scores | (self._valid_bleu(model) if self.bleu else {})
        finally:
            model.train(training)

    def _valid_loss(self, objective: Objective) -> float:
        assert self.valid is not None
        total, tokens = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for batch in batches(self.valid, tokens=self.settings.tokens, shuffle=False, multiple=self.settings.multiple):
            total += objective(*(t.to(self.device) for t in _tensors(batch)))[1]
            tokens += batch.tokens
        return float(total) / tokens

    def _valid_bleu(self, model: Any) -> dict[str, float]:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        assert self.valid is not None
        wanted = min(len(self.valid), self.settings.bleu_sentences)
        rows = np.unique(np.linspace(0, len(self.valid) - 1, wanted).astype(np.int64))
        texts = {int(row): "" for row in rows}
        for batch in batches(self.valid, tokens=self.settings.tokens, shuffle=False):
            some = [i for i, row in enumerate(batch.rows.tolist()) if row in texts]
            if not some:
                continue
            memory = model.encode(
                batch.source[some].to(self.device), lengths=batch.source_lengths[some].to(self.device)
            )
            for i, found in zip(some, greedy(model, memory), strict=True):
                texts[int(batch.rows[i])] = self.valid.subwords.decode(found.tokens.tolist())
        references = [[self.valid.text(int(row))[1] for row in rows]]
        outputs = [texts[int(row)] for row in rows]
        bleu = BLEU(tokenize=self.settings.bleu_tokenize, force=True).corpus_score(outputs, references).score
        return {"bleu": bleu, "chrf": CHRF().corpus_score(outputs, references).score}


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.source, batch.source_lengths, batch.target_in, batch.target_out]


def _filled(tensors: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Up to so many rows, with sentences of nothing but </s> that no loss counts: then few shapes occur."""
    more = rows - len(tensors[0])
    if more <= 0:
        return list(tensors)
    source, lengths, target_in, target_out = (torch.cat((t, t[:1].expand(more, *t.shape[1:]))) for t in tensors)
    source[-more:], lengths[-more:], target_out[-more:] = PAD, 1, PAD
    source[-more:, 0] = EOS
    return [source, lengths, target_in, target_out]


def _half(precision: str, device: torch.device) -> bool:
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


# --- from files to a folder ---


def train(
    settings: Settings,
    out: str | Path,
    *,
    store: str = "float32",
    keep_checkpoints: bool = False,
    report: Progress | None = None,
) -> Outcome | None:
    """Trains, or goes on with, the model of ``out``; leaves a model folder there.

    Args:
        settings: the data, and whatever else is not to be fitted to its size.
        out: a folder that is new, empty, or of this same run.
        store: how weights are stored, see :func:`regard.folder.save`.
        keep_checkpoints: leave them in the folder when all is done.
        report: who is told how it goes; by default a live bar or lines on stderr.

    Returns None if the folder already holds the finished model of this run.
    """
    folder = Path(out)
    with Ranks.join(settings.training.get("device", "auto")) as ranks:
        report = (progress() if report is None else report) if ranks.main else Silent()
        kept = _kept(folder)
        readers, valid = settings.data.training(), settings.data.validation()
        pairs, text = survey(readers, settings.data.bad)
        if not pairs:
            raise ValueError(f"the corpus is empty: no pairs in {', '.join(r.name for r in readers)}")
        valid_pairs, valid_text = survey(valid, settings.data.bad)
        if valid and not valid_pairs:
            raise ValueError(f"the validation set is empty: no pairs in {', '.join(r.name for r in valid)}")
        fitted = Fitted.of(settings, pairs, ranks.device.type == "cuda", kept)
        tables = fitted.tables()
        about = {"pairs": pairs, "valid_pairs": valid_pairs, "fingerprint": f"{text[:16]}-{valid_text[:16]}"}
        tables["data"] |= about
        if kept is not None:
            check_same(kept, tables, folder)
            if (folder / "model.safetensors").exists():
                report.say(f"{folder} holds the finished model of this run: nothing to do")
                return None
        subwords = _subwords(fitted, folder, ranks, report, {"task": "translation", **tables})
        corpus, held_out = _corpora(fitted, subwords, report)
        torch.manual_seed(fitted.training.seed)
        model = make_model({**fitted.model, "vocab_size": len(subwords)})
        size = sum(p.numel() for p in model.parameters())
        report.say(f"{pairs:,} pairs, {len(subwords):,} subwords, {size:,} parameters, {_where(ranks)}")
        task = Translation(model, corpus, held_out, fitted, ranks.device, _bleu(fitted.training, held_out, report))
        begun = time.time()
        outcome = fit(task, fitted.training, folder, ranks, report)
        if ranks.main:
            model = make_model({**fitted.model, "vocab_size": len(subwords)})
            model.load_state_dict(outcome.weights)
            card = model_card(tables, outcome, size=size, store=store, device=_where(ranks), begun=begun)
            save(folder, model, subwords, settings={"task": "translation", **tables}, card=card, store=store)
            if not keep_checkpoints:
                _forget(folder)
            report.say(f"{folder} holds the model")
        ranks.wait()
        return outcome


def _kept(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in this folder; None for a new one. Folders of anything else are refused."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: expected a folder to write the model to, but it is a file")
    if (folder / "config.toml").exists():
        kept = read_config(folder)
        if kept.get("task") != "translation":
            raise ValueError(f"{folder} holds a model of task {kept.get('task')!r}; choose another folder")
        return kept
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no run of training; nothing in it was touched")
    return None


def _subwords(fitted: Fitted, folder: Path, ranks: Ranks, report: Progress, config: Mapping[str, Any]) -> Subwords:
    """Learned by rank 0 once, kept in the folder; config.toml is written first, to know the run by."""
    path = folder / "tokenizer.json"
    if ranks.main:
        if not (folder / "config.toml").exists():
            write_config(folder, config)
        if not path.exists():
            cutting = fitted.cutting
            if cutting.path is not None:
                subwords = Subwords.load(cutting.path)
            else:
                report.say(f"learning {cutting.vocab_size:,} subwords")
                lines = texts(fitted.data.training(), bad=fitted.data.bad)  # type: ignore[arg-type]
                subwords = Subwords.learn([lines], cutting.vocab_size, lowercase=cutting.lowercase)
            subwords.save(path)
    ranks.wait()
    return Subwords.load(path)


def _corpora(fitted: Fitted, subwords: Subwords, report: Progress) -> tuple[Corpus, Corpus | None]:
    data = fitted.data
    options: dict[str, Any] = {"bad": data.bad, "cache": data.cache}
    corpus = Corpus.build(
        data.training(), subwords, limits=Limits(max_tokens=data.max_tokens, max_ratio=data.max_ratio), **options
    )
    readers = data.validation()
    valid = Corpus.build(readers, subwords, limits=Limits(max_tokens=data.max_tokens), **options) if readers else None
    for part in corpus.reports + (valid.reports if valid else []):
        report.say(str(part))
    return corpus, valid


def _bleu(training: Training, valid: Corpus | None, report: Progress) -> bool:
    if valid is None:
        report.say("no validation data: training neither validates nor stops early")
        return False
    if not training.bleu:
        return False
    try:
        import sacrebleu  # noqa: F401
    except ModuleNotFoundError:
        report.say("sacrebleu is not installed: validation is by loss alone")
        return False
    return True


def _where(ranks: Ranks) -> str:
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else str(ranks.device)
    return name if ranks.world == 1 else f"{ranks.world} × {name}"


def _forget(folder: Path) -> None:
    from regard.train.checkpoint import Checkpoints

    Checkpoints(folder / "checkpoints", keep=1, average=1, say=lambda _: None).forget()


# --- the command ---


EXAMPLES = """examples:
  regard train --source train.en --target train.fr --valid-source val.en --valid-target val.fr --out model/
  regard train --config recipe.toml --out model/ --updates 20000 --seed 2
  regard train ... --out rnn/ --kind rnn --score additive
  regard train ... --out model/ --set model.self_score=relative --set training.rdrop=5
  torchrun --nproc-per-node 4 -m regard train ... --out model/

What is not given is fitted to the size of the corpus; model/config.toml tells what was chosen. Started again after it
was killed, the same command goes on where the last checkpoint stands. --config and --set take every setting, by the
names of config.toml."""

# The settings that are asked for most, as flags: table, key, type or choices, help.
FLAGS: tuple[tuple[str, str, Any, str], ...] = (
    ("subwords", "vocab_size", int, "subwords to learn, both languages together"),
    ("model", "kind", ("transformer", "rnn"), "what to train"),
    ("model", "dim", int, "width"),
    ("model", "ffn_dim", int, "width of the feed-forward layers (transformer)"),
    ("model", "heads", int, "attention heads"),
    ("model", "encoder_layers", int, "layers that read"),
    ("model", "decoder_layers", int, "layers that write"),
    ("model", "dropout", float, "share of units left out"),
    ("training", "updates", int, "steps of the optimizer"),
    ("training", "tokens", int, "subwords of an update, both sides"),
    ("training", "lr", float, "highest learning rate"),
    ("training", "warmup", int, "updates until it is reached"),
    ("training", "schedule", ("inverse_sqrt", "cosine"), "how it falls"),
    ("training", "smoothing", float, "label smoothing"),
    ("training", "rdrop", float, "weight of R-Drop"),
    ("training", "patience", int, "validations without progress before it stops"),
    ("training", "seed", int, "the same seed trains the same model"),
    ("training", "device", str, "auto, cpu or cuda"),
    ("training", "precision", ("auto", "bfloat16", "float32"), "auto is bfloat16 on a GPU"),
    ("training", "parallel", ("ddp", "fsdp"), "how several processes share the work"),
)


def parse(argv: Sequence[str] | None = None) -> tuple[Settings, argparse.Namespace]:
    """Settings of a command line: --config first, then what is given beside it."""
    parser = argparse.ArgumentParser(
        prog="regard train",
        description="Train a translation model from pairs of lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", default="translation", choices=("translation",), help="what the pairs are")
    for name in ("source", "target", "valid-source", "valid-target"):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"{name.replace('-', ' ')} lines, perhaps gzipped")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the model folder to make")
    parser.add_argument("--config", metavar="FILE.toml", help="settings: [data], [subwords], [model], [training]")
    parser.add_argument("--store", default="float32", choices=("float32", "float16", "int8"), help="weights as stored")
    parser.add_argument("--keep-checkpoints", action="store_true", help="leave them in the folder")
    fitted = parser.add_argument_group("settings, fitted to the corpus unless given")
    for _, key, kind, about in FLAGS:
        how = {"choices": kind} if isinstance(kind, tuple) else {"type": kind, "metavar": kind.__name__.upper()}
        fitted.add_argument(f"--{key.replace('_', '-')}", help=about, **how)
    fitted.add_argument("--score", metavar="KIND", help="the score of cross-attention: dot, additive, general, …")
    fitted.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any other: training.clip=0.5; repeatable"
    )
    options = parser.parse_args(argv)
    tables: dict[str, Any] = read_toml(options.config) if options.config else {}
    given = [("data", name, getattr(options, name)) for name in ("source", "target", "valid_source", "valid_target")]
    given += [(table, key, getattr(options, key)) for table, key, *_ in FLAGS]
    kind = options.kind or tables.get("model", {}).get("kind", "transformer")
    given.append(("model", "score" if kind == "rnn" else "cross_score", options.score))
    for table, key, value in given:
        if value is not None:
            tables[table] = {**tables.get(table, {}), key: value}
    for assignment in options.set:
        _assign(tables, assignment)
    return Settings.from_tables(tables), options


def _assign(tables: dict[str, Any], assignment: str) -> None:
    """training.lr=1e-3 as in TOML; what is no TOML value is a string."""
    name, sign, value = assignment.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (sign and dot and key):
        raise ValueError(f"--set: expected TABLE.KEY=VALUE, got {assignment!r}")
    tables[table] = {**tables.get(table, {}), key: parse_value(value)}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, 2 for bad input or an unwritable folder, 1 if training diverged."""
    try:
        settings, options = parse(argv)
        train(settings, options.out, store=options.store, keep_checkpoints=options.keep_checkpoints)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {_message(error)}", file=sys.stderr)  # noqa: T201
        return 2
    except Diverged as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)  # noqa: T201
        return 130
    return 0


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
