"""The formats by name, and which of them a folder is in."""

from pathlib import Path
from types import ModuleType

from data_modules.formats import (
    beir,
    dpr,
    dsi_qg,
    genret,
    glen,
    kilt,
    natural_questions,
    nci,
    trec,
    ultron,
    wu,
)
from data_modules.formats.layout import Layout

FORMATS: dict[str, ModuleType] = {
    "beir": beir,
    "wu": wu,
    "genret": genret,
    "nci": nci,
    "glen": glen,
    "dsi_qg": dsi_qg,
    "ultron": ultron,
    "kilt": kilt,
    "dpr": dpr,
    "trec": trec,
    "nq": natural_questions,
}


def read_layout(path: str | Path, format: str | None = None) -> Layout:
    """Finds the collection in a folder or file.

    Args:
        path: as the user typed it.
        format: one of `FORMATS`; None = the one that recognises the files.

    Raises:
        FileNotFoundError: there is no such path, or one of the format's files is missing.
        ValueError: an unknown format, or none or several that recognise the path.
    """
    place = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise ValueError(f"data.format={format}: must be one of {', '.join(FORMATS)}")
    if not place.exists():
        raise FileNotFoundError(f"data.path={path}: no such folder or file")
    return FORMATS[format or _recognised(place)].read(place)


def _recognised(path: Path) -> str:
    found = [name for name, reader in FORMATS.items() if reader.recognises(path)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"data.path={path}: may be {' or '.join(found)}: say data.format=…")
    raise ValueError(
        f"data.path={path}: no known format in {_content(path)}; name it with data.format= "
        f"({', '.join(FORMATS)})"
    )


def _content(path: Path) -> str:
    """What stands there, for a message."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "an empty folder"
