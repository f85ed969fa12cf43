"""What configurations compute, `${NAME:…}`: run_name, wandb_offline, one_of, pretrained."""

import hashlib
import netrc
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gr_mvdr.files.run_files import CIRCUMSTANCES


def register_resolvers() -> None:
    """Makes the resolvers known to OmegaConf."""
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
    OmegaConf.register_new_resolver("wandb_offline", wandb_offline, replace=True)
    OmegaConf.register_new_resolver("one_of", one_of, replace=True)
    OmegaConf.register_new_resolver("pretrained", pretrained, replace=True)


def run_name(model: str, data: str, overrides: list[str]) -> str:
    """model-collection-seed1, and a short hash of all other overrides of the command line.

    The same command means the same folder: that is how `resume=true` finds it again.

    Args:
        model, data: the groups' chosen options.
        overrides: of the command line, such as "seed=2".
    """
    asked = dict(override.split("=", 1) for override in overrides if "=" in override)
    name = [model, Path(asked.get("data.path", data)).name, f"seed{asked.pop('seed', 1)}"]
    for key in ("model", "data", *CIRCUMSTANCES):
        asked.pop(key, None)
    if asked:
        name.append(hashlib.sha256(str(sorted(asked.items())).encode()).hexdigest()[:6])
    return "-".join(name)


def one_of(value: str, *options: str) -> bool:
    """Whether a value is one of the options."""
    return value in options


def pretrained(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """One value for a pretrained backbone, another for a small one with random weights."""
    return value if _root_.backbone.name else otherwise


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
