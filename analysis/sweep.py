"""Ends a sweep with a comparison of its runs (a Hydra callback, named in `conf/`)."""

import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from analysis.compare import compare, comparison_logger
from analysis.studies.sweep_study import write_sweep_study


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, and merges their studies.

    Args:
        mixed: show runs over different collections or splits apart instead of refusing them.
        paper: a paper's table to set beside the runs: a name in `conf/paper`, a path, or content.
        curves: what to draw of the merged studies: arguments of `Curves`, or a list of such.
        out: the comparison's folder; by default the sweep's. Sweeps that share runs differ in it.
    """

    def __init__(
        self,
        mixed: bool = False,
        paper: str | dict[str, Any] | None = None,
        curves: dict[str, Any] | list[dict[str, Any]] | None = None,
        out: str | None = None,
    ):
        self.mixed, self.paper, self.out = mixed, paper, out
        plain = OmegaConf.to_container(curves) if OmegaConf.is_config(curves) else curves or []
        self.curves = [plain] if isinstance(plain, dict) else plain
        self.choices: dict[Path, dict[str, str]] = {}

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        pairs = (line.lstrip("+").split("=", 1) for line in _overrides(config) if "=" in line)
        self.choices[Path(config.run).absolute()] = dict(pairs)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        sweep = Path(config.hydra.sweep.dir)
        # Jobs of a launcher with processes of its own are not seen here: then the folder says.
        runs, folder = list(self.choices) or [sweep], Path(self.out or sweep)
        folder.mkdir(parents=True, exist_ok=True)
        # Hydra turns a callback's exception into a warning, so that a sweep without its
        # comparison would exit with 0; SystemExit passes.
        try:
            with comparison_logger(config, folder) as logger:
                comparison = compare(runs, folder, self.mixed, logger, self.paper)
                swept = swept_keys(config)
                files = write_sweep_study(comparison, folder, swept, self.choices, self.curves)
                print(*files, sep="\n", end="\n" * bool(files))
        except (ValueError, FileNotFoundError) as error:
            sys.exit(f"error: the sweep's runs could not be compared: {error}")
        except Exception:
            traceback.print_exc()
            sys.exit("error: the sweep's runs could not be compared")


def swept_keys(config: DictConfig) -> list[str]:
    """The keys that a sweep varies: those of its configuration and of its command line."""
    keys = list(OmegaConf.select(config, "hydra.sweeper.params") or ())
    parsed = OverridesParser.create().parse_overrides(_overrides(config))
    keys += [override.get_key_element() for override in parsed if override.is_sweep_override()]
    return list(dict.fromkeys(key.lstrip("+") for key in keys))


def _overrides(config: DictConfig) -> list[str]:
    """What the command line changed, such as "seed=1,2" of a sweep or "seed=1" of its job."""
    return list(OmegaConf.select(config, "hydra.overrides.task") or ())
