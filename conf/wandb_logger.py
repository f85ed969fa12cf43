"""How runs reach wandb: offline without an account, in a group, and without warnings."""

import netrc
import os
from typing import Any

from hydra.core.hydra_config import HydraConfig

GROUP = "WANDB_RUN_GROUP"  # wandb's own variable; a sweep sets it for its jobs


def make_logger(**settings: Any) -> Any:
    """Makes Lightning's `WandbLogger`, which starts its run when it is first used.

    Lightning always passes `anonymous`, a setting that wandb has dropped and warns of. It is
    removed here.
    """
    from pytorch_lightning.loggers import WandbLogger

    logger = WandbLogger(**settings)
    logger._wandb_init.pop("anonymous", None)
    return logger


def wandb_offline() -> bool:
    """True unless the user has logged in to wandb (WANDB_API_KEY, or a netrc entry)."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"] != "online"
    if os.environ.get("WANDB_API_KEY"):
        return False
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return True
    return not any("wandb" in host for host in hosts)


def wandb_group() -> str | None:
    """Returns the group of this command's runs: the user's or the sweep's, else the experiment."""
    if group := os.environ.get(GROUP):
        return group
    if not HydraConfig.initialized():  # composed without a command line
        return None
    return HydraConfig.get().runtime.choices.get("experiment")
