"""Training: the optimiser, a watch over divergence, progress, curves, whole checkpoints, shards."""

import csv
import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.nn.utils import get_total_norm

from gr_mvdr.files import name_errors, new_file, read_checkpoint
from gr_mvdr.options import NonNegative, Positive
from gr_mvdr.progress import track
from gr_mvdr.ranks import rank

CURVES = "training/metrics.csv"  # in a run's folder

# An fp16 scaler skips steps whose gradients overflow and halves its scale; below this it never
# recovers.
_LEAST_SCALE = 1.0


def make_optimizer(
    system: pl.LightningModule,
    learning_rate: Positive,
    weight_decay: NonNegative,
    schedule: Literal["constant", "one_cycle"],
) -> Any:
    """AdamW and its schedule, as `configure_optimizers` returns them.

    Args:
        system: a `System`; its parameters `without_decay` have none.
        schedule: "constant" is the paper's; "one_cycle" rises to the learning rate for 30 % of the
            steps and falls to zero, which a model without pretraining needs.
    """
    plain = system.without_decay
    decayed = [p for p in system.parameters() if all(p is not other for other in plain)]
    groups = [{"params": decayed, "weight_decay": weight_decay}]
    groups += [{"params": list(plain), "weight_decay": 0.0}] if plain else []
    optimizer = torch.optim.AdamW(groups, learning_rate, fused=True)  # one pass over the parameters
    # Gradients are clipped before the step, so fp16's scaler must unscale them before that.
    optimizer._step_supports_amp_scaling = False
    if schedule == "constant":
        return optimizer
    steps = int(system.trainer.estimated_stepping_batches)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


OptimizerOptions = Annotated[dict[str, Any], make_optimizer]  # the keys of `model.optimizer`


class TrainingWatch(pl.Callback):
    """Seeds every step, logs it, and stops on every rank a training that diverges.

    Training diverges when the loss or a gradient is not finite. It learns nothing when every
    gradient of an epoch is exactly zero. The first bad step is kept on the device: on an
    accelerator it is read only at the steps that are logged, and nothing waits for it in between.

    Raises, from its hooks:
        ValueError: names the key that is most likely at fault (rank 0; SystemExit elsewhere).
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        # Loss or gradient → () int64, the first step at which it was not finite; 0 = none.
        self.first_bad: dict[str, Tensor] = {}
        self.largest_norm: Tensor | None = None  # of this epoch's gradients; None = no step yet

    def on_train_start(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.started = time.perf_counter() - model.train_seconds

    def on_train_batch_start(
        self, trainer: pl.Trainer, model: pl.LightningModule, batch: Any, batch_index: int
    ) -> None:
        # Dropout depends on these alone: a resumed run draws the same numbers as an unbroken one,
        # and each accumulated batch and each rank its own.
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        torch.manual_seed(hash((seed, trainer.global_step, batch_index, rank())))

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, model: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        # The gradients are summed over ranks, unscaled and not clipped yet.
        parameters = trainer.precision_plugin.main_params(optimizer)
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        model.gradient_norm = norm
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of shards
        # As a tensor on the CPU: Lightning would copy a number to the accelerator, and wait.
        model.log("train/learning_rate", torch.tensor(optimizer.param_groups[0]["lr"]))
        model.log("train/gradient_norm", norm)
        step = trainer.global_step + 1
        self.note("loss", trainer.callback_metrics["train/loss"], step)
        self.note("gradient's norm", norm, step)
        last = norm if self.largest_norm is None else self.largest_norm
        self.largest_norm = torch.maximum(last, norm)
        every = trainer.log_every_n_steps  # 0 = no step is logged
        if norm.device.type == "cpu" or (every and step % every == 0):
            self.stop_if_diverged(model)

    def note(self, name: str, value: Tensor, step: int) -> None:
        """Keeps the step if the value, () and the same on all ranks, is the first bad one."""
        bad = value.detach().isfinite().logical_not() * step
        first = self.first_bad.get(name)
        self.first_bad[name] = bad if first is None else bad.where(first == 0, first)

    def stop_if_diverged(self, model: pl.LightningModule) -> None:
        """Waits for the steps up to here. Raises as documented above."""
        scaler = getattr(model.trainer.precision_plugin, "scaler", None)
        first_bad, self.first_bad = self.first_bad, {}
        for name, first in first_bad.items():
            if not (step := int(first)):
                continue
            if name == "loss" or scaler is None or scaler.get_scale() < _LEAST_SCALE:
                _stop_diverged(model, f"the {name} is not finite", step)

    def on_train_epoch_end(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.stop_if_diverged(model)
        largest, self.largest_norm = self.largest_norm, None
        if largest is not None and float(largest) == 0:
            _stop(
                f"system={type(model).__name__}: every gradient of epoch "
                f"{trainer.current_epoch + 1} is exactly zero, nothing is learned: a loss that "
                "compares documents needs batches with documents that are not relevant "
                "(data.batch_size, data.mask_relevant)"
            )

    def on_train_end(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.stop_if_diverged(model)
        model.train_seconds = time.perf_counter() - self.started

    def on_save_checkpoint(
        self, trainer: pl.Trainer, model: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.stop_if_diverged(model)
        state = checkpoint["state_dict"]
        for name, _ in model.named_parameters():
            if name in state and not state[name].isfinite().all():
                _stop_diverged(model, f"{name} is not finite", trainer.global_step + 1)
        model.saved_step = trainer.global_step
        # A resumed run reports the time of all its parts.
        checkpoint["train_seconds"] = time.perf_counter() - self.started

    def on_load_checkpoint(
        self, trainer: pl.Trainer, model: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        model.train_seconds = checkpoint.get("train_seconds", 0.0)
        model.saved_step = checkpoint["global_step"]


def _stop(message: str) -> None:
    if rank() > 0:
        raise SystemExit(1)
    raise ValueError(message)


def _stop_diverged(model: pl.LightningModule, what: str, step: int) -> None:
    rate = model.hparams.optimizer["learning_rate"]
    kept = f"; the checkpoint of step {model.saved_step} is from before" if model.saved_step else ""
    _stop(
        f"model.optimizer.learning_rate={rate}: {what} at step {step}: take a smaller one, or "
        f"another trainer.precision (it is {model.trainer.precision}){kept}"
    )


class TrainingProgress(pl.callbacks.ProgressBar):
    """Progress of the whole training, all epochs together."""

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
        step, every = trainer.global_step, trainer.log_every_n_steps
        if every and step % every == 0:  # between logged steps nothing waits for the loss
            epochs = trainer.max_epochs
            of = f" of {epochs}" if epochs and epochs > 0 and trainer.max_steps == -1 else ""
            loss = trainer.callback_metrics.get("train/loss")
            note = "" if loss is None else f", loss {float(loss):.4g}"
            self.bar.set_postfix_str(f"epoch {trainer.current_epoch + 1}{of}{note}", refresh=False)
        self.bar.update(step - self.bar.n)

    def on_train_end(self, *_: Any) -> None:
        self.bar.close()

    def on_exception(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class CurveLogger(CSVLogger):
    """Writes what training logs into `training/metrics.csv` of a run's folder.

    A resumed training continues the file; steps after its checkpoint are there twice, the last row
    counts.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: str | Path):
        super().__init__(run, name="", version=Path(CURVES).parent.name)
        self.file, rows = Path(run) / CURVES, []
        if rank() == 0 and self.file.is_file():  # which its writer removes
            with self.file.open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.experiment.metrics = rows
        self.save()

    def log_hyperparams(self, params: Any = None) -> None:
        """Writes nothing: the run's `config.yaml` holds them."""

    def save(self) -> None:
        with name_errors(self.file):
            super().save()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self.save()


class CheckpointFile(TorchCheckpointIO):
    """Writes a checkpoint under a temporary name beside its destination, and renames it.

    Lightning writes into the system's temporary folder and copies from there if that is another
    disk: a kill during the copy would leave half a checkpoint in the place of the previous one.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint.

        Raises:
            OSError: it cannot be written; names `path`. The previous checkpoint is untouched.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial, partial.open("wb") as stream:
            file = _Written(stream)
            try:
                torch.save(checkpoint, file)
            except RuntimeError:  # of torch's writer, which hides the cause
                raise file.error or RuntimeError(f"{path}: could not be written") from None

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint.

        Raises:
            ValueError: the file is no whole checkpoint.
        """
        try:
            checkpoint = read_checkpoint(Path(path))
        except ValueError as error:
            raise ValueError(f"{error}: remove it, and training begins again") from error
        # Lightning removes the checkpoint that a checkpoint names, wherever that is.
        for state in checkpoint.get("callbacks", {}).values():
            state |= {key: "" for key in state if key.endswith("_model_path")}
            state |= {"best_k_models": {}} if "best_k_models" in state else {}
        return checkpoint


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


class RunCheckpoint(pl.Callback):
    """Writes the run's checkpoint of the last step, unless ModelCheckpoint has written it.

    ModelCheckpoint may be left out (`trainer.callbacks=[]`), write elsewhere, or be switched off
    (`fast_dev_run`), and a run without a checkpoint could not be opened again. Resumed training
    says where it continues.

    Attributes:
        trains: whether training has begun; with a checkpoint of the last step it does not.
    """

    def __init__(self, path: Path):
        """
        Args:
            path: of the run's checkpoint.
        """
        self.path, self.trains = path, False

    def on_train_start(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.trains = True
        if trainer.global_step and trainer.is_global_zero:
            where = f"step {trainer.global_step:,}, the end of epoch {trainer.current_epoch}"
            print(f"resume: training goes on from the checkpoint of {where}")

    def on_train_end(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        kept = self.path.is_file() and model.saved_step == trainer.global_step
        if not trainer.strategy.broadcast(kept):  # all ranks decide alike
            trainer.save_checkpoint(self.path)


# Called by the trainer and its callbacks: the parameters outside the layers are whole in them.
_METHODS = ("training_step", "validation_step", "explain")


def shard(system: pl.LightningModule, mesh: Any) -> None:
    """Leaves each rank its shard of every backbone layer, and of the parameters outside the layers.

    A layer is whole while it is computed. All ranks must compute the same layers in the same
    order, once for each chunk of a gradient cache.

    Args:
        system: a `System`, sharded or not; mesh: the ranks, one axis.

    Raises:
        ValueError: the system has an option that sharding excludes.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    from transformers.modeling_layers import GradientCheckpointingLayer

    if isinstance(system, FSDPModule):
        return
    if system.hparams.get("gradient_cache") == 1:
        raise ValueError("model.gradient_cache=1: must be ≥ 2 or null under trainer=fsdp")
    if system.hparams.get("trained_rows") == "new":  # a gradient's hook, which a shard forgets
        raise ValueError("model.trained_rows=new: must be all under trainer=fsdp")
    head = getattr(system, "head", None)
    if head is not None and head.table_state() is not None:
        raise ValueError(
            "model.head=NonParametricHead: cannot be trained under trainer=fsdp: an encoder in "
            "shards cannot make its table between the epochs"
        )
    for module in list(system.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(system, mesh=mesh)
    for name in _METHODS:
        register_fsdp_forward_method(system, name)
