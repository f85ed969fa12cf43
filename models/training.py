"""Training stops when it diverges or learns nothing, writes whole checkpoints, runs in shards."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from gr_mvdr.files import describe_error, new_file
from gr_mvdr.ranks import rank

if TYPE_CHECKING:
    from models.base import System

GRADIENT = "gradient's norm"
# With an fp16 scaler gradients that overflow are normal: it takes a smaller scale and goes on.
_LEAST_SCALE = 1.0


class Watch:
    """Stops training on every rank when it diverges or learns nothing.

    Training diverges when the loss or a gradient is not finite. It learns nothing when every
    gradient of an epoch is exactly zero. A number on an accelerator is read one step later: by then
    it is known, and nothing has to wait for it. A number on the CPU is read at once.
    """

    def __init__(self) -> None:
        self.pending: list[tuple[int, str, Tensor, torch.Event | None, Any]] = []
        # Whether all gradients of this epoch are zero; None = the epoch has had no step yet.
        self.all_zero: bool | None = None

    def add(self, model: "System", what: str, value: Tensor, scaler: Any = None) -> None:
        """Has a number of this step looked at, and looks at those of the steps before.

        Args:
            what: its name. value: () the same on all ranks, so that all of them decide alike.
            scaler: of fp16, which skips a step whose gradients overflow.

        Raises:
            ValueError: names the key that most likely is at fault (rank 0; SystemExit elsewhere).
        """
        step, known = model.global_step + 1, None
        copy = value.detach()
        if copy.device.type != "cpu":
            copy = copy.to("cpu", non_blocking=True)
            known = torch.Event(value.device.type)
            known.record()
        self.pending.append((step, what, copy, known, scaler))
        self.look(model, step - 1 if known else step)

    def look(self, model: "System", last: float = math.inf) -> None:
        """Looks at all numbers up to a step. Raises: as `add`."""
        due = [each for each in self.pending if each[0] <= last]
        self.pending = self.pending[len(due) :]
        for step, what, value, known, scaler in due:
            if known:
                known.synchronize()
            if what == GRADIENT:
                self.all_zero = self.all_zero is not False and float(value) == 0
            if value.isfinite():
                continue
            if scaler is None or scaler.get_scale() < _LEAST_SCALE:
                _stop_diverged(model, f"the {what} is {float(value)}", step)

    def end_epoch(self, model: "System") -> None:
        """Looks at all numbers of an epoch. Raises: as `add`, and if all gradients were zero."""
        self.look(model)
        all_zero, self.all_zero = self.all_zero, None
        if all_zero:
            _stop(
                f"system={type(model).__name__}: every gradient of epoch {model.current_epoch + 1} "
                "is exactly zero, nothing is learned: a loss that compares documents needs batches "
                "with documents that are not relevant (data.batch_size, data.mask_relevant)"
            )


def check_weights(model: "System", state: dict[str, Tensor]) -> None:
    """Stops the training before weights that are not finite take the place of a checkpoint.

    Raises: as `Watch.add`.
    """
    for name, _ in model.named_parameters():
        if name in state and not state[name].isfinite().all():
            _stop_diverged(model, f"{name} is not finite", model.global_step + 1)


def _stop(message: str) -> None:
    if rank() > 0:
        raise SystemExit(1)
    raise ValueError(message)


def _stop_diverged(model: "System", what: str, step: int) -> None:
    rate = model.hparams.optimizer["learning_rate"]
    kept = f"; the checkpoint of step {model.saved_step} is from before" if model.saved_step else ""
    _stop(
        f"model.optimizer.learning_rate={rate}: {what} at step {step}: take a "
        f"smaller one, or another trainer.precision (it is {model.trainer.precision}){kept}"
    )


class CheckpointFile(TorchCheckpointIO):
    """Writes next to the checkpoint's place, flushes, renames: the one before stays until then.

    Lightning's own goes through the system's temporary folder, from where a file is copied if that
    is another disk: a kill in the copy leaves a cut checkpoint in the place of the whole one.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint.

        Raises:
            OSError: it cannot be written; names `path`. The checkpoint before is untouched.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial, partial.open("wb") as stream:
            file = _Written(stream)
            try:
                torch.save(checkpoint, file)
            except RuntimeError:  # of torch's writer, which hides what went wrong
                raise file.error or RuntimeError(f"{path}: could not be written") from None

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint.

        Raises:
            ValueError: the file is no whole checkpoint.
        """
        try:
            found = super().load_checkpoint(path, *arguments, **options)
        except (RuntimeError, EOFError) as error:
            raise ValueError(
                f"{path}: is damaged ({describe_error(error)}): "
                "remove it, and training begins again"
            ) from error
        # Lightning removes the checkpoint that a checkpoint names, wherever that is.
        for state in found.get("callbacks", {}).values():
            state |= {key: "" for key in state if key.endswith("_model_path")}
            state |= {"best_k_models": {}} if "best_k_models" in state else {}
        return found


class RunCheckpoint(pl.Callback):
    """Writes the run's checkpoint of the last step, unless ModelCheckpoint has written it.

    ModelCheckpoint may be left out (`trainer.callbacks=[]`), write elsewhere, or be switched off
    (`fast_dev_run`), and a run without a checkpoint could not be opened again. Resumed training
    says where it goes on.

    Attributes:
        trains: whether training has begun; with a checkpoint of the last step it does not.
    """

    def __init__(self, path: Path):
        """
        Args:
            path: of the run's checkpoint.
        """
        self.path, self.trains = path, False

    def on_train_start(self, trainer: pl.Trainer, model: "System") -> None:
        self.trains = True
        if trainer.global_step and trainer.is_global_zero:
            where = f"step {trainer.global_step:,}, the end of epoch {trainer.current_epoch}"
            print(f"resume: training goes on from the checkpoint of {where}")

    def on_train_end(self, trainer: pl.Trainer, model: "System") -> None:
        kept = self.path.is_file() and model.saved_step == trainer.global_step
        if not trainer.strategy.broadcast(kept):  # all ranks decide alike
            trainer.save_checkpoint(self.path)


class _Written:
    """A file that remembers why it could not be written to."""

    def __init__(self, file: Any):
        self.file, self.error = file, None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


# What the trainer and its callbacks call: the parameters outside the layers are whole in them.
_METHODS = ("training_step", "validation_step", "explain")


def shard(system: "System", mesh: Any) -> None:
    """Leaves each rank its part of every layer of the backbone, and of all that is in no layer.

    A layer is whole for as long as it is computed. All ranks must compute the same layers in the
    same order, once for each chunk of a gradient cache.

    Args:
        system: a `System`, which may be sharded already; mesh: the ranks, one axis.

    Raises:
        ValueError: the system does what shards cannot.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    from transformers.modeling_layers import GradientCheckpointingLayer

    if isinstance(system, FSDPModule):
        return
    _check(system)
    for module in list(system.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(system, mesh=mesh)
    for name in _METHODS:
        register_fsdp_forward_method(system, name)


def _check(system: "System") -> None:
    if system.hparams.get("gradient_cache") == 1:
        raise ValueError("model.gradient_cache=1: must be ≥ 2 or null under trainer=fsdp")
    if system.hparams.get("trained_rows") == "new":  # a gradient's hook, which a shard forgets
        raise ValueError("model.trained_rows=new: must be all under trainer=fsdp")
    head = getattr(system, "head", None)
    if head is not None and head.table_state() is not None:
        raise ValueError(
            "model.head=NonParametricHead: cannot be trained under trainer=fsdp, its table is made "
            "between the epochs, by an encoder that is in shards then"
        )
