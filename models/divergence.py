"""A training that has diverged stops at the first number that is not finite."""

import math
from typing import Any

from torch import Tensor

from gr_mvdr.distributed.ranks import rank

# With an fp16 scaler gradients that overflow are normal: it takes a smaller scale and goes on.
_LEAST_SCALE = 1.0


def check_loss(model: Any, loss: Tensor) -> None:
    """Stops the training, on every rank, unless the loss is finite.

    Args:
        loss: () the mean over ranks, so that all of them decide alike.

    Raises:
        ValueError: names the key that most likely is at fault (rank 0; SystemExit elsewhere).
    """
    if not math.isfinite(value := float(loss)):
        _stop(model, f"the loss is {value}")


def check_norm(model: Any, norm: Tensor, scaler: Any = None) -> None:
    """Stops the training unless the norm of all gradients, that of all ranks, is finite.

    Args:
        scaler: of fp16, which skips a step whose gradients overflow.

    Raises: as `check_loss`.
    """
    value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    is_skipped = scaler is not None and scaler.get_scale() >= _LEAST_SCALE
    if not math.isfinite(value) and not is_skipped:
        _stop(model, f"the gradient's norm is {value}")


def check_weights(model: Any, state: dict[str, Tensor]) -> None:
    """Stops the training before weights that are not finite take the place of a checkpoint.

    Raises: as `check_loss`.
    """
    for name, _ in model.named_parameters():
        if name in state and not state[name].isfinite().all():
            _stop(model, f"{name} is not finite")


def _stop(model: Any, what: str) -> None:
    if rank() > 0:
        raise SystemExit(1)
    rate = model.hparams.optimizer["learning_rate"]
    raise ValueError(
        f"model.optimizer.learning_rate={rate}: {what} at step {model.global_step + 1}: take a "
        f"smaller one, or another trainer.precision (it is {model.trainer.precision})"
    )
