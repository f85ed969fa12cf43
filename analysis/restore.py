"""A finished run as it was after training: its data, and its model from the last checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis.provenance import VERSION
from gr_mvdr.configured import target
from models.pipeline_stage import FinishedRun


def restored(run: Path, version: str, instantiate: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The run's model, as it was after training, and its data.

    Args:
        run: a finished run's folder; version: of this library that made it.
        instantiate: Hydra's, which only entry points import.

    Raises:
        FileNotFoundError: a trained system has no checkpoint, or a file of the data is missing.
        ValueError: this version cannot restore the run.
    """
    config = OmegaConf.load(run / "config.yaml")
    weights = run / "checkpoints" / "last.ckpt"
    if target(config.model["_target_"]).trainable and not weights.is_file():
        taken = config.get("weights")
        reason = f", as it was searched with weights={taken}: name that run" if taken else ""
        raise FileNotFoundError(
            f"{weights} is missing: a run without a checkpoint cannot be restored{reason}"
        )
    try:
        data = instantiate(config.data)
        finished = FinishedRun.read("run", run)
        return finished.load_model(data.documents, data.known_documents), data
    except OSError:  # a file that is not there is no question of versions
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise ValueError(
            f"run={run}: made by gr-mvdr {version}, which {VERSION} cannot restore: {cause}"
        ) from error
