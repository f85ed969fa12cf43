"""Ends a sweep with a comparison of its runs (a Hydra callback, named in `conf/`)."""

import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.utils import instantiate
from omegaconf import DictConfig

from analysis.compare import compare


class CompareRuns(Callback):
    """After `python train.py -m …`: compares the sweep's runs, in the folder that holds them.

    Args:
        mixed: show runs over different collections or splits apart instead of refusing them.
    """

    def __init__(self, mixed: bool = False):
        self.mixed = mixed
        self.runs: list[Path] = []

    def on_job_end(self, config: DictConfig, **kwargs: Any) -> None:
        self.runs.append(Path(config.run))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra turns a callback's exception into a warning, so that a sweep without its
        # comparison would exit with 0; SystemExit passes.
        try:
            logger = instantiate(config.logger, name="comparison", save_dir=config.output) or None
            compare(self.runs, Path(config.output), self.mixed, logger)
            if logger is not None:
                logger.experiment.finish()
        except (ValueError, FileNotFoundError) as error:
            sys.exit(f"error: the sweep's runs could not be compared: {error}")
        except Exception:
            traceback.print_exc()
            sys.exit("error: the sweep's runs could not be compared")
