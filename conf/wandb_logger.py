"""How runs reach wandb: offline without an account, and without warnings."""

import os
from pathlib import Path
from typing import Any


def make_logger(**settings: Any) -> Any:
    """Makes Lightning's `WandbLogger`, which starts its run when it is first used.

    Lightning always passes `anonymous`, a setting that wandb has dropped and warns of. It is
    removed here.

    Returns:
        None under WANDB_MODE=disabled: nothing is logged.
    """
    if os.environ.get("WANDB_MODE") == "disabled":
        return None
    from pytorch_lightning.loggers import WandbLogger

    logger = WandbLogger(**settings)
    logger._wandb_init.pop("anonymous", None)
    return logger


def wandb_offline() -> bool:
    """Whether wandb runs offline: as WANDB_MODE says, else True unless the user has logged in.

    A login is WANDB_API_KEY or a netrc entry. Any WANDB_MODE but "online" counts as offline.
    """
    if mode := os.environ.get("WANDB_MODE"):
        return mode != "online"
    if os.environ.get("WANDB_API_KEY"):
        return False
    accounts = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return not (accounts.is_file() and "wandb" in accounts.read_text())
