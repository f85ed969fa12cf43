"""What a training leaves behind and shows of itself: `loss.csv`, step by step, and its progress."""

import os
from pathlib import Path
from typing import Any, TextIO

import pytorch_lightning as pl

from gr_mvdr.files.writing import name_errors, write_text
from gr_mvdr.progress import Progress

LOSSES = "loss.csv"
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
        self.row: dict[str, Any] = {}  # of the last step: its validation comes after it
        self.losses: list[float] = []  # of the batches that make one step
        self.step = 0

    def on_train_start(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.step, self.row, self.losses = trainer.global_step, {}, []
        if trainer.is_global_zero:
            lines = [",".join(COLUMNS), *read_lines(self.path, self.step)]
            write_text(self.path, "".join(f"{line}\n" for line in lines))
            self.file = self.path.open("a", encoding="utf-8")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        found = trainer.callback_metrics
        if "train/loss" in found:
            self.losses.append(float(found["train/loss"]))
        if trainer.global_step == self.step:  # one of several batches of a step
            return
        self._write()
        self.step = trainer.global_step
        self.row = {"step": self.step, "epoch": trainer.current_epoch + 1}
        if self.losses:
            self.row["loss"] = sum(self.losses) / len(self.losses)
        for name in ("learning_rate", "gradient_norm"):
            if (value := found.get(f"train/{name}")) is not None:
                self.row[name] = float(value)
        self.losses = []

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        value = trainer.callback_metrics.get("validation/loss")
        if self.row and value is not None:
            self.row["validation_loss"] = float(value)

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
        if self.file and self.row:
            cells = (self.row.get(name, "") for name in COLUMNS)
            texts = (f"{cell:.7g}" if isinstance(cell, float) else str(cell) for cell in cells)
            with name_errors(self.path):
                self.file.write(",".join(texts) + "\n")
        self.row = {}

    def _close(self) -> None:
        if self.file:
            with name_errors(self.path):
                self.file.close()
        self.file = None


def read_lines(path: Path, last: int) -> list[str]:
    """The whole lines of `loss.csv` up to a step, in their order; none without the file."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[1:-1]
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
        self.progress: Progress | None = None

    def disable(self) -> None:
        """Lightning asks for it on all ranks but the first, where `Progress` shows nothing."""

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        steps = trainer.estimated_stepping_batches
        total = int(steps) if 0 <= steps < float("inf") else None
        self.progress = Progress("training", total, trainer.global_step, lines=True)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        epochs = trainer.max_epochs
        of = f" of {epochs}" if epochs and epochs > 0 and trainer.max_steps == -1 else ""
        note = f"epoch {trainer.current_epoch + 1}{of}"
        if (loss := trainer.callback_metrics.get("train/loss")) is not None:
            note += f", loss {float(loss):.4g}"
        self.progress.report(trainer.global_step, note)

    def on_train_end(self, *_: Any) -> None:
        self.progress.close()

    def on_exception(self, *_: Any) -> None:
        if self.progress:
            self.progress.close(whole=False)
