"""Ends a sweep with a comparison of its runs, and with one table of their studies.

Hydra makes this callback before the values of a command line are checked. Heavy modules are
therefore imported only when a sweep has ended.
"""

import hashlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from conf.wandb_logger import GROUP
from gr_mvdr.files import CIRCUMSTANCES

SHOWN_KEYS = 50  # letters of the swept keys in a group's name


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, and merges their studies.

    Args:
        mixed: show runs on different collections or splits in sections instead of refusing them;
            so are the runs of a sweep over a key of `PROTOCOL`.
        paper: a paper's table to compare the runs with: a name in `conf/papers/*.csv`, or a path.
        curves: what to draw of the merged studies: arguments of `Curves`, or a list of them.
        out: the comparison's folder; by default the sweep's. Sweeps that share runs need different
            ones.
    """

    def __init__(
        self, mixed: bool = False, paper: str | None = None, curves: Any = None, out: str = ""
    ):
        self.mixed, self.paper, self.curves, self.out = mixed, paper, curves, out
        self.runs: list[Path] = []
        self.names_group = False

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Names the group of a sweep's runs in an environment variable, for any launcher."""
        experiment = OmegaConf.select(config, "hydra.runtime.choices.experiment")
        self.names_group = not (experiment or os.environ.get(GROUP))
        if self.names_group:
            os.environ[GROUP] = name_sweep(config)

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        self.runs.append(Path(config.run).absolute())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra turns a callback's exception into a warning, so that a sweep without its
        # comparison would exit with 0; SystemExit passes.
        try:
            self._compare(config)
        except Exception as error:
            if not isinstance(error, ValueError | FileNotFoundError):
                traceback.print_exc()
            sys.exit(f"error: the sweep's runs could not be compared: {error}")
        finally:
            if self.names_group:
                del os.environ[GROUP]

    def _compare(self, config: DictConfig) -> None:
        from analysis.compare import compare
        from analysis.runs.run_folder import PROTOCOL
        from analysis.studies.study import read_curves, write_sweep_study

        sweep = Path(config.hydra.sweep.dir)
        # Jobs that a launcher ran in other processes are not recorded: then compare the folder's.
        runs = list(dict.fromkeys(self.runs)) or [sweep]
        logger = config.get("logger") or None
        if logger:  # without the settings of a single run
            logger = OmegaConf.merge(logger, {"name": None, "save_dir": None})
            logger = OmegaConf.to_container(logger, resolve=True)
        folder, swept = Path(self.out or sweep), find_swept_keys(config)
        mixed = self.mixed or not {*PROTOCOL}.isdisjoint(swept)
        comparison = compare(runs, folder, mixed, logger, self.paper)
        curves = read_curves(self.curves)
        for file in write_sweep_study(comparison, comparison.folder, swept, curves):
            print(file)


def name_sweep(config: DictConfig) -> str:
    """Returns `sweep-model-seed-1a2b3c`: the keys that it varies, and a hash of its overrides."""
    keys = [re.sub(r"[^\w.]+", "-", key.rpartition(".")[2]) for key in find_swept_keys(config)]
    asked = [line for line in _overrides(config) if line.partition("=")[0] not in CIRCUMSTANCES]
    digest = hashlib.sha256("\n".join(sorted(asked)).encode()).hexdigest()
    return f"{'-'.join(['sweep', *keys])[:SHOWN_KEYS]}-{digest[:6]}"


def find_swept_keys(config: DictConfig) -> list[str]:
    """Returns the keys that a sweep varies, in its configuration or on its command line."""
    keys = list(OmegaConf.select(config, "hydra.sweeper.params") or ())
    parsed = OverridesParser.create().parse_overrides(_overrides(config))
    keys += [override.get_key_element() for override in parsed if override.is_sweep_override()]
    return list(dict.fromkeys(key.lstrip("+") for key in keys))


def _overrides(config: DictConfig) -> list[str]:
    """Returns the typed overrides, such as "seed=1,2" for a sweep or "seed=1" for its job."""
    return list(OmegaConf.select(config, "hydra.overrides.task") or ())
