"""Ends a sweep with a comparison of its runs (a Hydra callback, named in `conf/`)."""

import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from analysis.compare import compare, comparison_logger


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, into its folder.

    Args:
        mixed: show runs over different collections or splits apart instead of refusing them.
        paper: a paper's table to set beside the runs: a name in `conf/paper`, a path, or content.
    """

    def __init__(self, mixed: bool = False, paper: str | dict[str, Any] | None = None):
        self.mixed, self.paper = mixed, paper
        self.runs: list[Path] = []

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        self.runs.append(Path(config.hydra.runtime.output_dir))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        # Jobs of a launcher with processes of its own are not seen here: then the folder says.
        runs = self.runs or [folder]
        # Hydra turns a callback's exception into a warning, so that a sweep without its
        # comparison would exit with 0; SystemExit passes.
        try:
            with comparison_logger(config, folder) as logger:
                compare(runs, folder, self.mixed, logger, self.paper)
        except (ValueError, FileNotFoundError) as error:
            sys.exit(f"error: the sweep's runs could not be compared: {error}")
        except Exception:
            traceback.print_exc()
            sys.exit("error: the sweep's runs could not be compared")
