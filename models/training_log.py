"""What a training leaves behind and shows of itself: `loss.csv`, step by step, and its progress."""

import os
from pathlib import Path
from typing import Any, TextIO

import pytorch_lightning as pl
import torch
from torch import Tensor

from gr_mvdr.files import check_file, name_errors, write_text
from gr_mvdr.progress import track

LOSSES = "loss.csv"
# Of which the numbers are fetched at once: each look at one waits for an accelerator.
_ROWS = 50
COLUMNS = ("step", "epoch", "loss", "learning_rate", "gradient_norm", "validation_loss")


class LossFile(pl.Callback):
    """Writes `loss.csv`: a line for every step, as it was made.

    The lines reach the disk before every checkpoint; a resumed run drops those of later steps and
    goes on, so that each step has one line whatever happened in between.

    Args:
        directory: the run's folder.
    """

    def __init__(self, directory: str):
        self.path = Path(directory) / LOSSES
        self.file: TextIO | None = None  # of the first rank
        self.rows: list[dict[str, Any]] = []  # of the last steps; a validation comes after its step
        self.losses: list[Tensor] = []  # of the batches that make one step
        self.step = 0

    def on_train_start(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.step, self.rows, self.losses = trainer.global_step, [], []
        if trainer.is_global_zero:
            lines = [",".join(COLUMNS), *read_lines(self.path, self.step)]
            write_text(self.path, "".join(f"{line}\n" for line in lines))
            self.file = self.path.open("a", encoding="utf-8")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        found = trainer.callback_metrics
        if "train/loss" in found:
            self.losses.append(found["train/loss"])
        if trainer.global_step == self.step:  # one of several batches of a step
            return
        if len(self.rows) >= _ROWS:
            self._write()
        self.step = trainer.global_step
        row = {"step": self.step, "epoch": trainer.current_epoch + 1}
        if self.losses:
            row["loss"] = torch.stack(self.losses).mean()
        for name in ("learning_rate", "gradient_norm"):
            row[name] = found.get(f"train/{name}", "")
        self.rows.append(row)
        self.losses = []

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        value = trainer.callback_metrics.get("validation/loss")
        if self.rows and value is not None:
            self.rows[-1]["validation_loss"] = value

    def on_save_checkpoint(self, *_: Any) -> None:
        self._write()
        if self.file:
            with name_errors(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())

    def on_train_end(self, *_: Any) -> None:
        self._write()
        self._close()

    def on_exception(self, *_: Any) -> None:
        self._write()
        self._close()

    def _write(self) -> None:
        if self.file:
            with name_errors(self.path):
                for row in self.rows:
                    cells = (row.get(name, "") for name in COLUMNS)
                    self.file.write(",".join(map(_cell, cells)) + "\n")
        self.rows = []

    def _close(self) -> None:
        if self.file:
            with name_errors(self.path):
                self.file.close()
        self.file = None


def _cell(value: Any) -> str:
    return f"{float(value):.7g}" if isinstance(value, Tensor) else str(value)


def read_lines(path: Path, last: int) -> list[str]:
    """The whole lines of `loss.csv` up to a step, in their order; none without the file."""
    if not path.is_file():
        return []
    text = check_file(path).read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")[1:-1]
    kept: dict[int, str] = {}
    for line in lines:
        step = line.partition(",")[0]
        if line.count(",") == len(COLUMNS) - 1 and step.isdecimal() and int(step) <= last:
            kept[int(step)] = line
    return [kept[step] for step in sorted(kept)]


class TrainingProgress(pl.callbacks.ProgressBar):
    """How far the whole training is, all epochs together, and how long it will take."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: Any = None

    def disable(self) -> None:
        """Lightning calls it on all ranks but the first, where `track` shows nothing."""

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        steps = trainer.estimated_stepping_batches
        total = int(steps) if 0 <= steps < float("inf") else None
        self.bar = track(None, "training", total, trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        epochs = trainer.max_epochs
        of = f" of {epochs}" if epochs and epochs > 0 and trainer.max_steps == -1 else ""
        if self.bar.update(trainer.global_step - self.bar.n):  # shown: only then read the loss
            loss = trainer.callback_metrics.get("train/loss")
            note = "" if loss is None else f", loss {float(loss):.4g}"
            self.bar.set_postfix_str(f"epoch {trainer.current_epoch + 1}{of}{note}", refresh=False)

    def on_train_end(self, *_: Any) -> None:
        self.bar.close()

    def on_exception(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
