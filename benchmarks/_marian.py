"""Hugging Face's Marian as a peer: the model of a size, and its training by transformers' own Seq2SeqTrainer.

Everything of transformers is imported where it is used: it may be missing, or of another version.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from typing import Any

import torch
from torch import Tensor

Batch = list[Tensor]  # source [B, S], its lengths [B], target in [B, T], target out [B, T]; 0 is padding
WARM_UP = {"cpu": 1, "cuda": 10}  # updates of a trainer that are not timed


def marian(size: dict[str, Any], vocabulary: int, device: torch.device) -> Any:
    """A MarianMTModel of these dims, layers and heads, ready to train."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=vocabulary,
        d_model=size["dim"],
        encoder_layers=size["encoder_layers"],
        decoder_layers=size["decoder_layers"],
        encoder_ffn_dim=size["ffn_dim"],
        decoder_ffn_dim=size["ffn_dim"],
        encoder_attention_heads=size["heads"],
        decoder_attention_heads=size["heads"],
        dropout=size["dropout"],
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=1,
        decoder_start_token_id=1,
        share_encoder_decoder_embeddings=True,
        use_cache=False,
    )
    return MarianMTModel(config).to(device).train()


def trainer_seconds(model: Any, batches: list[Batch], device: torch.device) -> float:
    """Seconds that a Seq2SeqTrainer takes for these batches once it is in its stride.

    It is given them as they are, in this order, after a few more to warm up; it neither logs, saves nor evaluates.
    """
    from transformers import PrinterCallback

    extra = WARM_UP[device.type]
    order = [batches[i % len(batches)] for i in range(-extra, len(batches))]
    clock = _clock(extra, extra + len(batches), device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(model, [_named(batch) for batch in order], _arguments(folder, len(order), device))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        trainer.train()
    if clock.stop is None:
        raise RuntimeError(f"expected {len(order)} updates, the Trainer made {trainer.state.global_step}")
    return clock.stop - clock.start


def _named(batch: Batch) -> dict[str, Tensor]:
    source, _, target_in, target_out = batch
    named = {
        "input_ids": source,
        "attention_mask": (source != 0).long(),
        "decoder_input_ids": target_in,
        "labels": target_out.masked_fill(target_out == 0, -100),
    }
    return {name: t.pin_memory() for name, t in named.items()} if source.is_pinned() else named


def _arguments(folder: str, updates: int, device: torch.device) -> Any:
    from transformers import Seq2SeqTrainingArguments

    wanted = {
        "output_dir": folder,
        "max_steps": updates,
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.98,
        "max_grad_norm": 1.0,
        "label_smoothing_factor": 0.1,
        "bf16": device.type == "cuda",
        "use_cpu": device.type == "cpu",
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    # what only spares it a wait for the device; not every version has these
    spared = {"logging_nan_inf_filter": False, "average_tokens_across_devices": False}
    known = inspect.signature(Seq2SeqTrainingArguments).parameters
    arguments = Seq2SeqTrainingArguments(**wanted, **{k: v for k, v in spared.items() if k in known})
    if arguments.n_gpu > 1:
        raise RuntimeError(f"expected one visible GPU, got {arguments.n_gpu}: set CUDA_VISIBLE_DEVICES=0")
    return arguments


def _trainer(model: Any, batches: list[dict[str, Tensor]], arguments: Any) -> Any:
    from torch.utils.data import DataLoader
    from transformers import Seq2SeqTrainer

    class Trainer(Seq2SeqTrainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    return Trainer(model=model, args=arguments, train_dataset=batches)


def _clock(first: int, last: int, device: torch.device) -> Any:
    """A callback that notes the time when updates ``first`` and ``last`` are done."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        start: float | None = None
        stop: float | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (first, last):
                wait(device)
                now = time.perf_counter()
                self.start, self.stop = (now, None) if state.global_step == first else (self.start, now)

    return Clock()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
