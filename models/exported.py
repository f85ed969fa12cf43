"""A system from the folder that `models.export` wrote, without the run that it came from."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from gr_mvdr.configured import target
from models.base import System
from models.export import FORMAT, IDENTIFIERS, PARTS, ROWS, SETTINGS, t5_of
from models.exported_head import make_head
from models.identified import IdentifiedSystem


def load_exported(folder: str | Path) -> System:
    """The system in a folder, with the scores that it had when it was exported.

    It scores, aligns and, once it has indexed documents, searches. To train on from its T5, name
    the folder as a backbone (`backbone.name`).

    Args:
        folder: written by `python -m analysis.export`.

    Raises:
        FileNotFoundError: the folder, or a file in it, is missing.
        ValueError: another format, a class that is no system or no part of one, or files that do
            not belong together.
    """
    folder = Path(folder)
    settings = _read(folder / SETTINGS)
    system = _new_system(settings, folder)
    make_head(system, settings["head"], _tensors(folder / ROWS))
    _load_parts(system, folder / PARTS)
    if isinstance(system, IdentifiedSystem):
        named = settings["identifiers"]
        system.load_identifiers(folder / IDENTIFIERS, named["collection"], named["first_token"])
    return system.eval()


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, python -m analysis.export writes it")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{error.lineno}: not valid JSON ({error.msg})") from None
    if settings.get("format") != FORMAT:
        raise ValueError(f"{file}: format={settings.get('format')}: must be {FORMAT}")
    return settings


def _new_system(settings: dict[str, Any], folder: Path) -> System:
    """The system on the exported T5, its other parts still untrained."""
    kind, options = settings["system"], dict(settings["hyper_parameters"])
    _check_targets(options, folder / SETTINGS)
    made = target(kind) if kind.startswith("models.") else None
    if not (isinstance(made, type) and issubclass(made, System)):
        raise ValueError(f"{folder / SETTINGS}: system={kind}: must be a system of models/")
    options["backbone"] = {**options["backbone"], "name": str(folder), "shape": None}
    if "tokenizer" in options:
        options["tokenizer"] = str(folder)
    if "decoder_layers" in options:  # they are trained now, a new decoder would not be
        options["decoder_layers"] = None
    return made(**options)


def _check_targets(value: Any, file: Path) -> None:
    """Refuses classes that are not this library's: a file from elsewhere could name any."""
    if isinstance(value, dict):
        path = value.get("_target_")
        if path is not None and not _is_own(path):
            raise ValueError(f"{file}: _target_={path}: must be a part of gr_mvdr/")
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        _check_targets(item, file)


def _is_own(path: str) -> bool:
    return path.startswith("gr_mvdr.") and target(path).__module__.startswith("gr_mvdr.")


def _tensors(file: Path) -> dict[str, Tensor]:
    return load_file(file) if file.is_file() else {}


def _load_parts(system: System, file: Path) -> None:
    """Everything learned besides the T5, which has loaded itself."""
    missing, unexpected = system.load_state_dict(_tensors(file), strict=False)
    own = f"{t5_of(system)[0]}."
    # A head's further state says for which tokens it was trained: `make_head` knows.
    missing = [n for n in missing if not n.startswith(own) and not n.endswith("_extra_state")]
    if missing or unexpected:
        raise ValueError(f"{file}: lacks {missing}, has {unexpected} that the system has not")
