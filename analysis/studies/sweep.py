"""Ends a sweep with a comparison of its runs, and with one table of their studies.

Hydra makes this callback before the values of a command line are checked. Heavy modules are
therefore imported only when a sweep has ended.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, and merges their studies.

    Args:
        paper: a paper's table to compare the runs with: a name in `conf/papers/*.csv`, or a path.
        curves: what to draw of the merged studies: arguments of `Curves`, or a list of them.
        out: the comparison's folder; by default the sweep's. Sweeps that share runs need different
            ones.
    """

    def __init__(self, paper: str | None = None, curves: Any = None, out: str = ""):
        self.paper, self.curves, self.out = paper, curves, out
        self.runs: list[Path] = []

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

    def _compare(self, config: DictConfig) -> None:
        from analysis.compare import compare
        from analysis.studies.study import read_curves, write_sweep_study

        sweep = Path(config.hydra.sweep.dir)
        # Jobs that a launcher ran in other processes are not recorded: then compare the folder's.
        runs = list(dict.fromkeys(self.runs)) or [sweep]
        logger = config.get("logger")
        if logger:  # without the settings of a single run
            logger = OmegaConf.merge(logger, {"name": None, "save_dir": None})
        folder, swept = Path(self.out or sweep), find_swept_keys(config)
        comparison = compare(runs, folder, logger, self.paper)
        curves = read_curves(self.curves)
        for file in write_sweep_study(comparison, comparison.folder, swept, curves):
            print(file)


def find_swept_keys(config: DictConfig) -> list[str]:
    """Returns the keys that a sweep varies, in its configuration or on its command line."""
    keys = list(OmegaConf.select(config, "hydra.sweeper.params") or ())
    typed = OmegaConf.select(config, "hydra.overrides.task") or ()
    parsed = OverridesParser.create().parse_overrides(list(typed))
    keys += [override.get_key_element() for override in parsed if override.is_sweep_override()]
    return list(dict.fromkeys(key.lstrip("+") for key in keys))
