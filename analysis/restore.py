"""A finished run as it was after training: its data, and its model from the last checkpoint."""

from pathlib import Path
from typing import Any

from analysis.provenance import VERSION
from gr_mvdr.files.reading import reading
from gr_mvdr.parts import TARGET, build, find_part
from models.pipeline_stage import FinishedRun


def restored(run: Path, version: str, trust: bool = False) -> tuple[Any, Any]:
    """The run's model, as it was after training, and its data.

    Args:
        run: a finished run's folder; version: of this library that made it.
        trust: whether the folder may name classes that are not this library's (docs/security.md).

    Raises:
        FileNotFoundError: a trained system has no checkpoint, or a file of the data is missing.
        ValueError: this version cannot restore the run, or the folder names other code.
    """
    found = "cannot be restored"
    if version != VERSION:
        found = f"made by gr-mvdr {version}, which {VERSION} cannot restore"
    with reading(f"run={run}: {found}"):
        finished = FinishedRun.read("run", run, trust)
        config = finished.config
        with finished.trusting(config):
            _check_weights(finished)
            data = build("data", _at_home(config["data"], trust))
        return finished.load_model(data.documents, data.known_documents), data


def _check_weights(run: FinishedRun) -> None:
    weights = run.path / "checkpoints" / "last.ckpt"
    if find_part("model", run.config["model"].get(TARGET)).trainable and not weights.is_file():
        taken = run.config.get("weights")
        reason = f", as it was searched with weights={taken}: name that run" if taken else ""
        raise FileNotFoundError(
            f"{weights} is missing: a run without a checkpoint cannot be restored{reason}"
        )


def _at_home(settings: dict[str, Any], trust: bool) -> dict[str, Any]:
    """The data's settings; what is built of them goes where the user's own caches are."""
    if trust:
        return settings
    settings = {**settings, "store": None}
    path = settings.get("path")
    if isinstance(path, str) and Path(path).suffix == ".zip":  # it would be unpacked next to itself
        folder = Path(path).expanduser().with_suffix("")
        if not folder.is_dir():
            raise ValueError(f"data.path={path}: must be unpacked first, as {folder}")
        settings["path"] = str(folder)
    return settings
