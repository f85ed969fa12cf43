"""A system from the folder that `models.export.write` wrote, without the run that it came from."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from gr_mvdr.files.printable import shown
from gr_mvdr.files.reading import read_json, read_tensors, reading
from gr_mvdr.parts import TARGET, admitting, build, check_parts, find_part
from models.base import System
from models.export.head import make_head
from models.export.write import (
    FORMAT,
    IDENTIFIERS,
    PARTS,
    ROWS,
    SETTINGS,
    check_exportable,
    t5_of,
)
from models.identified import IdentifiedSystem


def load_exported(folder: str | Path, trust: bool = False) -> System:
    """The system in a folder, with the scores that it had when it was exported.

    It scores, aligns and, once it has indexed documents, searches. To train on from its T5, name
    the folder as a backbone (`backbone.name`). Nothing that the folder names runs besides this
    library's parts (docs/security.md).

    Args:
        folder: written by `python -m analysis.export`.
        trust: whether it may name classes that are not this library's: they run.

    Raises:
        FileNotFoundError: the folder, or a file in it, is missing.
        ValueError: another format, a broken file, files that do not belong together, or a class
            that is no part of this library.
    """
    folder = Path(folder)
    settings = _read(folder / SETTINGS)
    admitted = admitting(settings) if trust else nullcontext()
    with admitted, reading(f"{folder}: cannot be loaded"):
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
    settings = read_json(file)
    if settings.get("format") != FORMAT:
        raise ValueError(f"{file}: format={shown(settings.get('format'))}: must be {FORMAT}")
    if not isinstance(settings.get("hyper_parameters"), dict):
        raise ValueError(f"{file}: hyper_parameters: must be a group of keys")
    return {**settings, TARGET: settings.get("system")}


def _new_system(settings: dict[str, Any], folder: Path) -> System:
    """The system on the exported T5, its other parts still untrained."""
    check_parts("model", settings)
    check_exportable(find_part("model", settings[TARGET]))
    options = dict(settings["hyper_parameters"])
    options["backbone"] = {**options["backbone"], "name": str(folder.resolve()), "shape": None}
    if "tokenizer" in options:
        options["tokenizer"] = str(folder)
    if "decoder_layers" in options:  # they are trained now, a new decoder would not be
        options["decoder_layers"] = None
    return build("model", {TARGET: settings[TARGET], **options})


def _tensors(file: Path) -> dict[str, Tensor]:
    return read_tensors(file) if file.is_file() else {}


def _load_parts(system: System, file: Path) -> None:
    """Everything learned besides the T5, which has loaded itself."""
    missing, unexpected = system.load_state_dict(_tensors(file), strict=False)
    own = f"{t5_of(system)[0]}."
    # A head's further state says for which tokens it was trained: `make_head` knows.
    missing = [n for n in missing if not n.startswith(own) and not n.endswith("_extra_state")]
    if missing or unexpected:
        raise ValueError(f"{file}: lacks {missing}, has {unexpected} that the system has not")
