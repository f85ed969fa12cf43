"""Inputs to Hydra: computed values (`${NAME:…}`), and the experiments.

A file of `conf/papers` stands for many of Hydra's: it holds group → option → content. The group
`shared` is what all systems of a paper have in common on a collection, `specific/SHARED` is what
one model adds, and `smoke` is what `smoke=true` changes in the file's experiments.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from gr_mvdr.files import CIRCUMSTANCES
from gr_mvdr.options import show

SHOWN_CHANGES = 48  # letters of a run's name for all changes
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)


def register_resolvers() -> None:
    """Registers the resolvers with OmegaConf."""
    for resolver in (run_name, wandb_offline, one_of, if_asked, pretrained, pretrained_decoder):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)


def run_name(model: str, data: str, overrides: list[str]) -> str:
    """Returns model-collection-seed1, the other overrides in short form, and a hash of them.

    The short form has room for a few overrides. Numbers, which sweeps vary most, come first, and
    lists and paths last; among them, the keys of the model come first.

    The same command gives the same folder, so that `resume=true` finds it again. The hash
    distinguishes overrides whose short forms are equal.

    Args:
        model, data: the chosen options of these groups.
        overrides: those of the command line, such as "seed=2".
    """
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    changes = {key: value for key, _, value in pairs}
    folders = changes.get("data.path", data).strip("[]").split(",")
    collection = "+".join(Path(folder.strip(" '\"")).name for folder in folders)
    name = [model, collection, f"seed{changes.pop('seed', 1)}"]
    for key in ("model", "data", *CIRCUMSTANCES):
        changes.pop(key, None)
    if changes:
        digest = hashlib.sha256(str(sorted(changes.items())).encode()).hexdigest()[:6]
        words = [changes.pop("experiment", "")]
        changes.pop("data.path", None)  # is in the collection's name
        for key, value in sorted(changes.items(), key=_place_in_name):
            words.append(f"{key.removesuffix('.name').rpartition('.')[2]}_{Path(value).name}")
        short_form = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(filter(None, words)))
        name += filter(None, [short_form[:SHOWN_CHANGES].strip("_.-"), digest])
    return "-".join(name)


def _place_in_name(change: tuple[str, str]) -> tuple[bool, bool, bool, str]:
    key, value = change
    is_long, is_number = bool({*value} & {*"/["}), bool(_NUMBER.fullmatch(value))
    return is_long, not is_number, not key.startswith("model."), key


def wandb_offline() -> bool:
    """Whether wandb runs offline: as WANDB_MODE says, else True unless the user has logged in.

    A login is WANDB_API_KEY or a netrc entry.
    """
    if mode := os.environ.get("WANDB_MODE"):
        return mode == "offline"
    if os.environ.get("WANDB_API_KEY"):
        return False
    accounts = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return not (accounts.is_file() and "wandb" in accounts.read_text())


def one_of(value: str, *options: str) -> bool:
    """Whether a value is one of the options."""
    return value in options


def if_asked(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """Returns `value` if an analysis is listed, `otherwise` if none is."""
    return value if _root_.analysis.questions else otherwise


def pretrained(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """Returns `value` for a pretrained backbone, `otherwise` for a small new one."""
    return value if _root_.backbone.name else otherwise


def pretrained_decoder(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """Returns `value` if the backbone's decoder was trained as one, else `otherwise`."""
    backbone = _root_.backbone
    return value if backbone.name and not backbone.get("from_encoder") else otherwise


EXPERIMENTS = Path(__file__).parent / "papers"
GROUPS = ("experiment", "shared", "smoke", "study")  # that have options only there


@cache
def read_experiments() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns file name → group → option → content, not resolved."""
    files = sorted(EXPERIMENTS.glob("*.yaml"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {file.stem: yaml.load(file.read_text("utf-8"), loader) for file in files}


@cache
def register_experiments(names_only: bool = False) -> None:
    """Registers the experiments with Hydra, once in a process.

    Args:
        names_only: for `--help`, which lists the user's choices and composes none.
    """
    # Hydra copies the store whenever it composes, and never changes the copy: `--help` would take
    # seconds longer.
    ConfigStore.__deepcopy__ = lambda store, memo: store
    store = ConfigStore.instance().store
    if names_only and "experiment" in ConfigStore.instance().repo:
        return  # a caller in Python has registered them whole
    for groups in read_experiments().values():
        for group, options in groups.items():
            for option, content in options.items() if not names_only or "/" not in group else ():
                content = {} if names_only else content
                store(option, content, group, "_global_", provider=EXPERIMENTS.name)


def prepare_arguments(arguments: list[str]) -> list[str]:
    """Registers the experiments if the arguments may name one, and replaces `smoke=true`.

    Hydra does not accept true as an option. It becomes the name of the experiment's file if that
    file has a `smoke` group, else `small`; `smoke=false` is removed.
    """
    groups = tuple(f"{group}=" for group in GROUPS)
    if not any(a.startswith(("-", *groups)) for a in arguments):
        return arguments  # reading them takes a tenth of a second
    register_experiments(names_only=bool({"--help", "-h"} & {*arguments}))
    chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
    names = {*re.findall(r"\w+", chosen[-1])} if chosen else set()
    files = [
        file
        for file, groups in read_experiments().items()
        if names & {*groups["experiment"]} and file in groups.get("smoke", ())
    ]
    option = f"smoke={files[0] if files else 'small'}"
    return [option if a == "smoke=true" else a for a in arguments if a != "smoke=false"]


def list_options(group: str) -> list[str]:
    """Returns the options that the experiments' files add to a group."""
    files = read_experiments().values()
    return [option for groups in files for option in groups.get(group, ())]


def find_typed(typed: Sequence[str] | None = None) -> list[str]:
    """Returns the overrides that the user typed.

    Args:
        typed: the overrides of a caller in Python; None = the command line's, if there is one.
    """
    if typed is None:
        typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return list(typed)


def take_settings(config: DictConfig, settings: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Applies the settings of a model that is taken over, except for keys that the user typed.

    Args:
        config: the composed configuration, which is changed.
        settings: key → value.
        typed: the user's overrides, as from `find_typed`.

    Raises:
        ValueError: the chosen model lacks a key.
    """
    keys = {argument.partition("=")[0].lstrip("+") for argument in typed}
    for key, value in settings.items():
        if key not in keys:
            group, _, name = key.rpartition(".")
            if name not in ((OmegaConf.select(config, group) or {}) if group else config):
                raise ValueError(
                    f"weights={config.weights}: has {key}={show(value)}, the chosen model has not"
                )
            OmegaConf.update(config, key, value, merge=False)
