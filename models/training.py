"""Training: optimiser, callbacks, curves, atomic checkpoints, sharding."""

import csv
import os
import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)
from transformers import get_scheduler

from gr_mvdr.files import CHECKPOINT, name_errors, new_file, new_folder, read_checkpoint
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import Count, NonNegative, Positive, Rate
from gr_mvdr.ranks import rank, rank_zero_first
from gr_mvdr.tokenizers import load_tokenizer
from models.validation import Validation

CURVES = "training/metrics.csv"  # in a run's folder

# An fp16 scaler skips steps whose gradients overflow and halves its scale; below this it never
# recovers.
_LEAST_SCALE = 1.0

# The least number of logged steps, if a training has as many: a curve needs more than one point.
_LOGGED = 20
_COUNTS = ("batches", "counted", "operations")  # of all resumptions together
# Every twentieth batch is counted: while counting, each operation passes through Python.
_COUNTED = 20
_ATEN = torch.ops.aten
_FORMULAS = {  # of attention's kernel on a CPU; torch has those of a GPU
    _ATEN._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
    ),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, query, key, value, *_, **__: sdpa_backward_flop_count(
            gradient, query, key, value
        )
    ),
}


def make_optimizer(
    system: pl.LightningModule,
    learning_rate: Positive,
    weight_decay: NonNegative,
    schedule: Literal["constant", "linear", "cosine", "one_cycle"],
    warmup: Count | Rate | None = None,
    decay: Literal["all", "matrices"] = "all",
    rates: dict[str, Positive] | None = None,
) -> Any:
    """Makes AdamW and its schedule, as `configure_optimizers` returns them.

    Args:
        system: a `System`; what requires no gradient is left out.
        schedule: how the learning rate goes on after it has risen: "constant", as in the papers;
            "linear" and "cosine" fall to zero; "one_cycle" falls along a cosine and begins at
            1/25, as a model without pretraining needs.
        warmup: the steps in which the learning rate rises, or their share of all steps; None =
            30 % under "one_cycle", else 0.
        decay: what `weight_decay` shrinks; "matrices" leaves out biases and the weights of norms.
        rates: submodule, such as `head` or `backbone` → its learning rate. The innermost counts.

    Raises:
        ValueError: no parameter that trains belongs to a submodule of `rates`, or the warm-up takes
            all steps.
    """
    groups: dict[tuple[float, float], list[Tensor]] = {}
    left, rates = {*(rates or {})}, rates or {}
    trained = [(f".{name}", x) for name, x in system.named_parameters() if x.requires_grad]
    if not trained:
        raise ValueError(
            "backbone.frozen=all: leaves nothing to train, the system has no own parts"
        )
    for name, tensor in trained:
        within = {name.rindex(f".{part}."): part for part in rates if f".{part}." in name}
        left -= {*within.values()}
        rate = rates[within[max(within)]] if within else learning_rate
        shrinks = decay == "all" or tensor.ndim > 1
        groups.setdefault((rate, shrinks * weight_decay), []).append(tensor)
    if left:
        parts = sorted({part for name, _ in trained for part in name.split(".")[1:3]})
        rule = f"trains no parameter, must be a submodule such as {', '.join(parts)}"
        raise ValueError(f"model.optimizer.rates.{min(left)}={rates[min(left)]}: {rule}")
    optimizer = torch.optim.AdamW(
        [dict(params=group, lr=lr, weight_decay=each) for (lr, each), group in groups.items()],
        fused=True,  # one pass over the parameters
    )
    # Gradients are clipped before the step, so fp16's scaler must unscale them before that.
    optimizer._step_supports_amp_scaling = False
    if schedule == "constant" and not warmup:
        return optimizer
    steps = int(system.trainer.estimated_stepping_batches)
    warmup = 0.3 * (schedule == "one_cycle") if warmup is None else warmup
    share = warmup / steps if isinstance(warmup, int) else warmup
    if share >= 1:
        raise ValueError(f"model.optimizer.warmup={warmup}: must be below the {steps:,} steps")
    if schedule == "one_cycle":
        most = [group["lr"] for group in optimizer.param_groups]
        scheduler = OneCycleLR(optimizer, most, total_steps=steps, pct_start=share)
    else:
        name = "constant_with_warmup" if schedule == "constant" else schedule
        scheduler = get_scheduler(name, optimizer, round(share * steps), steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


OptimizerOptions = Annotated[dict[str, Any], make_optimizer]  # the keys of `model.optimizer`


class TrainingCosts(Timer):
    """Measures the seconds of training and counts the operations of its matrix products.

    Both cover all resumptions. The timer does not start if the checkpoint already holds the last
    step.
    """

    def __init__(self):
        super().__init__()
        self.counter: FlopCounterMode | None = None  # counts the current batch
        self.batches = self.counted = self.operations = 0

    def measured(self, validation: float = 0.0) -> list[Measured]:
        """Returns the seconds, and the operations on this rank, estimated from the counted batches.

        The operations are missing if no batch was counted.

        Args:
            validation: seconds of validation, which are not training's.
        """
        spent = {"train_seconds": self.time_elapsed() - validation}
        spent |= {"validation_seconds": validation} if validation else {}
        if self.counted:
            spent["train_flops"] = self.operations * self.batches / self.counted
        return costs(spent)

    def on_train_batch_start(self, trainer: pl.Trainer, model: Any, batch: Any, place: int) -> None:
        if place % _COUNTED == 0:
            torch.compiler.set_stance("force_eager")  # a compiled graph hides its operations
            self.counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS).__enter__()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        super().on_train_batch_end(trainer)
        self.batches += 1
        if self.counter is not None:
            self.counter.__exit__(None, None, None)
            torch.compiler.set_stance("default")
            self.operations += self.counter.get_total_flops()
            self.counter, self.counted = None, self.counted + 1

    def on_exception(self, *_: Any) -> None:
        if self.counter is not None:
            self.counter.__exit__(None, None, None)
            torch.compiler.set_stance("default")

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {key: getattr(self, key) for key in _COUNTS}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        vars(self).update({key: state_dict[key] for key in _COUNTS})


class StepSeed(pl.Callback):
    """Seeds every batch: a resumed run draws the same dropout as an uninterrupted one.

    Each accumulated batch and each rank draws different numbers.
    """

    def on_train_batch_start(self, trainer: pl.Trainer, model: Any, batch: Any, place: int) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        torch.manual_seed(hash((seed, trainer.global_step, place, rank())))


class StopRules(pl.Callback):
    """Stops a training that diverges or learns nothing, and logs learning rate and gradient norm.

    A training diverges if the loss or a gradient is not finite; it learns nothing if every gradient
    of an epoch is exactly zero. An accelerator is checked only in logged steps and at the end of an
    epoch, so that the other steps need not wait for it.

    Raises, from its hooks:
        ValueError: names the key that is most likely at fault (rank 0; SystemExit elsewhere).
    """

    norm: Tensor | None = None  # of the last step's gradients; None = no step yet
    sum_of_norms: Tensor | float = 0.0  # in this epoch
    saved_step = 0

    def on_train_start(self, trainer: pl.Trainer, model: Any) -> None:
        self.saved_step = trainer.global_step

    def on_before_optimizer_step(self, trainer: pl.Trainer, model: Any, optimizer: Any) -> None:
        # The gradients are summed over ranks, unscaled and not clipped yet.
        parameters = trainer.precision_plugin.main_params(optimizer)
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of shards
        self.sum_of_norms = self.sum_of_norms + self.norm
        # A CPU tensor, since Lightning would copy a number to the accelerator, and wait.
        model.log("train/learning_rate", torch.tensor(optimizer.param_groups[0]["lr"]))
        model.log("train/gradient_norm", self.norm)
        step, every = trainer.global_step + 1, trainer.log_every_n_steps
        if self.norm.device.type == "cpu" or (every and step % every == 0):
            self.check_step(trainer, model, step)

    def check_step(self, trainer: pl.Trainer, model: Any, step: int) -> None:
        """Waits for the last step's loss and gradients, which must be finite."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not trainer.callback_metrics["train/loss"].isfinite():
            self._stop_diverged(trainer, model, "the loss", step)
        skips = scaler is not None and scaler.get_scale() >= _LEAST_SCALE
        if not (skips or self.norm.isfinite()):
            self._stop_diverged(trainer, model, "the gradient's norm", step)

    def on_train_epoch_end(self, trainer: pl.Trainer, model: Any) -> None:
        if self.norm is None:
            return
        self.check_step(trainer, model, trainer.global_step)
        if self.sum_of_norms == 0:
            _stop(
                f"system={type(model).__name__}: every gradient of epoch "
                f"{trainer.current_epoch + 1} is exactly zero, nothing is learned: a batch must "
                "hold documents that are not relevant (data.batch_size, data.mask_relevant)"
            )
        self.norm, self.sum_of_norms = None, 0.0

    def on_save_checkpoint(self, trainer: pl.Trainer, model: Any, checkpoint: dict) -> None:
        state = checkpoint["state_dict"]
        for name, _ in model.named_parameters():
            if name in state and not state[name].isfinite().all():
                self._stop_diverged(trainer, model, name, trainer.global_step)
        self.saved_step = trainer.global_step

    def _stop_diverged(self, trainer: pl.Trainer, model: Any, what: str, step: int) -> None:
        rate, saved = model.hparams.optimizer["learning_rate"], self.saved_step
        kept = f"; the checkpoint of step {saved} is from before" if saved else ""
        _stop(
            f"model.optimizer.learning_rate={rate}: {what} is not finite at step {step}: take a "
            f"smaller one, or another trainer.precision (it is {trainer.precision}){kept}"
        )


def _stop(message: str) -> None:
    raise ValueError(message) if rank() == 0 else SystemExit(1)


class CompleteCurve(pl.Callback):
    """Logs a short training more often than `trainer.log_every_n_steps`, and always its last step.

    Lightning alone would not log the last step.
    """

    def on_train_start(self, trainer: pl.Trainer, model: Any) -> None:
        if every := trainer.log_every_n_steps:  # 0 = no step is logged
            most = trainer.estimated_stepping_batches / _LOGGED
            trainer.log_every_n_steps = int(max(1, min(every, most)))

    def on_train_end(self, trainer: pl.Trainer, model: Any) -> None:
        if (every := trainer.log_every_n_steps) and trainer.global_step % every:
            values = trainer.logged_metrics.items()
            last = {name: float(value) for name, value in values if name.startswith("train/")}
            for logger in trainer.loggers:
                logger.log_metrics(last, trainer.global_step - 1)


class LastCheckpoint(pl.Callback):
    """Writes the checkpoint of the last step unless ModelCheckpoint has done so.

    ModelCheckpoint may be missing (`trainer.callbacks=[]`), write elsewhere, or be off
    (`fast_dev_run`).

    Args:
        checkpoint: the path of the run's checkpoint.
    """

    def __init__(self, checkpoint: Path):
        self.checkpoint, self.saved_step = checkpoint, 0

    def on_train_start(self, trainer: pl.Trainer, model: Any) -> None:
        self.saved_step = trainer.global_step
        if self.saved_step and trainer.is_global_zero:
            where = f"step {self.saved_step:,}, the end of epoch {trainer.current_epoch}"
            print(f"resume: training goes on from the checkpoint of {where}")

    def on_save_checkpoint(self, trainer: pl.Trainer, model: Any, checkpoint: dict) -> None:
        self.saved_step = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, model: Any) -> None:
        kept = self.checkpoint.is_file() and self.saved_step == trainer.global_step
        if not trainer.strategy.broadcast(kept):  # all ranks decide alike
            trainer.save_checkpoint(self.checkpoint)


def training_callbacks(checkpoint: Path) -> list[pl.Callback]:
    """Returns the callbacks of every training; `checkpoint` is the path of the run's checkpoint."""
    return [TrainingCosts(), StepSeed(), StopRules(), CompleteCurve(), LastCheckpoint(checkpoint)]


class CurveLogger(CSVLogger):
    """Writes the metrics that training logs to `training/metrics.csv` in a run's folder.

    A resumed training continues the file. Steps after its checkpoint occur twice; the last row
    counts.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: str | Path):
        super().__init__(run, name=Path(CURVES).parent.name, version="")
        self.file, rows = Path(run) / CURVES, []
        if rank() == 0 and self.file.is_file():  # CSVLogger's writer removes the file
            with self.file.open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.experiment.metrics = rows
        self.save()

    def log_hyperparams(self, params: Any = None) -> None:
        """Writes nothing: the run's `config.yaml` holds the hyperparameters."""

    def save(self) -> None:
        with name_errors(self.file):
            super().save()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self.save()


class CheckpointFile(TorchCheckpointIO):
    """Writes a checkpoint under a temporary name beside its destination, then renames it.

    Lightning writes to the system's temporary folder and copies the file if that is another disk.
    A kill during the copy would leave half a checkpoint instead of the previous one.
    """

    def save_checkpoint(self, checkpoint: dict, path: str | Path, *_: Any, **__: Any) -> None:
        """Writes a checkpoint.

        Raises:
            OSError: the file cannot be written; names `path`. The previous one is untouched.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial, partial.open("wb") as stream:
            try:
                torch.save(checkpoint, stream)
            except RuntimeError as error:  # of torch's writer, which hides the system's error
                raise error.__context__ or error from None

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint.

        Raises:
            ValueError: the file is not a complete checkpoint.
        """
        try:
            checkpoint = read_checkpoint(Path(path))
        except ValueError as error:
            raise ValueError(f"{error}: remove it, and training begins again") from error
        # Lightning would delete the checkpoint files that a checkpoint names, in any folder.
        for state in checkpoint.get("callbacks", {}).values():
            state |= {key: "" for key in state if key.endswith("_model_path")}
            state |= {"best_k_models": {}} if "best_k_models" in state else {}
        return checkpoint


def fit(
    model: pl.LightningModule, data: Any, trainer: pl.Trainer, run: Path
) -> tuple[Path | None, list[Measured]]:
    """Trains a system, from the run's last checkpoint if there is one.

    Args:
        model: a `System`; it stays on the trainer's device.
        data: the system's data module.
        run: the run's folder, which receives the tokeniser and the checkpoint.

    Returns:
        The file of the weights to keep (None = the model has them), and the costs.

    Raises:
        ValueError: the trainer's settings contradict each other, no step was trained, or the
            checkpoint belongs to another tokeniser.
    """
    with rank_zero_first():  # caches negatives and spans
        data.epoch(0)
    costs, *others = training_callbacks(checkpoint := run / CHECKPOINT)
    resumed = str(checkpoint) if checkpoint.is_file() else None
    if rank() == 0:
        save_tokenizer(data.tokenizer, run, resumed is not None)
    accumulated = trainer.accumulate_grad_batches
    if accumulated > 1 and "gradient_cache" in model.hparams and rank() == 0:
        print(
            f"trainer.accumulate_grad_batches={accumulated}: in-batch negatives come from one "
            f"batch; {accumulated} times data.batch_size with model.gradient_cache keeps them all"
        )
    validation = Validation(data, checkpoint.parent)
    trainer.callbacks[:0] = [costs, *others, validation]  # before those that save checkpoints
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(model, data, ckpt_path=resumed, weights_only=True)
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from None
    except SystemExit:  # Lightning raises it after Ctrl-C, and ignores further ones
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
    if not trainer.global_step:  # such as under trainer.max_time
        raise ValueError("trainer: training ended before its first step, nothing was trained")
    if rank() == 0 and costs.start_time() is None:
        step = f"checkpoint of step {trainer.global_step:,}"
        print(f"resume: training is finished ({step}), goes on with the index")
    validation.finish()
    # The model keeps its trainer; Adam and gradients would take three times the weights' memory.
    trainer.strategy.optimizers = trainer.strategy.lr_scheduler_configs = []
    model.zero_grad()
    return validation.kept, costs.measured(validation.seconds)


def save_tokenizer(tokenizer: Any, run: Path, resumed: bool = False) -> None:
    """Saves the tokeniser in a run's folder.

    Raises:
        ValueError: a resumed run began with another tokeniser, since the collection's files or the
            version of this library have changed.
    """
    own = run / "tokenizer"
    if resumed and own.is_dir() and load_tokenizer(own).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"run={run}: cannot resume, its tokeniser is not the one that would be trained now: "
            "the texts or the library's version have changed; choose another run with name=…"
        )
    with new_folder(own, replace=True) as folder:
        tokenizer.save_pretrained(folder)


# Methods that the trainer and its callbacks call; in them, parameters outside layers are unsharded.
_METHODS = ("training_step", "validation_loss", "explain", "index", "retrieve", "rerank")


def shard(system: pl.LightningModule, mesh: Any) -> None:
    """Shards every backbone layer, and the parameters outside the layers, over the ranks.

    A layer is gathered while it is computed. All ranks must compute the same layers in the same
    order, once for each chunk of a gradient cache.

    Args:
        system: a `System`; left unchanged if it is sharded already.
        mesh: the ranks, one axis.

    Raises:
        ValueError: the system has an option that sharding excludes.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    from transformers.modeling_layers import GradientCheckpointingLayer

    if isinstance(system, FSDPModule):
        return
    if system.hparams.get("gradient_cache") == 1:
        raise ValueError("model.gradient_cache=1: must be ≥ 2 or null under trainer=fsdp")
    head = getattr(system, "head", None)  # a cross-encoder's is a projection
    if hasattr(head, "table_state") and head.table_state() is not None:
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
