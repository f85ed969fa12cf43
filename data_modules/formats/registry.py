"""The formats by name, and which of them a folder is in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from data_modules.builders import nq320k
from data_modules.formats import (
    beir,
    dpr,
    dsi_qg,
    genret,
    glen,
    kilt,
    nci,
    passages,
    trec,
    ultron,
    wu,
)
from data_modules.formats.files import given_path
from data_modules.formats.layout import Layout, join_layouts


class Format(Protocol):
    """What the module of a format has."""

    def recognises(self, path: Path) -> bool:
        """Whether a folder or a file looks like the format, complete or not."""

    def read(self, path: Path) -> Layout:
        """The collection in a folder, or in a file if one file is enough.

        Raises:
            FileNotFoundError: one of its files is missing.
            ValueError: two files are of one split or set; (on reading) a line breaks the format,
                named with ``file:line`` and what was expected.
        """


FORMATS: dict[str, Format] = {
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
    "nq": nq320k,
    "passages": passages,
}


def read_layouts(
    paths: str | Sequence[str],
    format: str | None = None,
    fields: Sequence[str | int] | None = None,
) -> Layout:
    """`read_layout` of a path, or of several, whose collections become one (`join_layouts`).

    Raises:
        ValueError: two of them have the same name.
    """
    if isinstance(paths, str):
        return read_layout(paths, format, fields)
    found = [read_layout(path, format, fields) for path in paths]
    layouts = {layout.name: layout for layout in found}
    if len(layouts) < len(found):
        names = ", ".join(layout.name for layout in found)
        raise ValueError(f"data.path: must be folders of different names, got {names}")
    return join_layouts("+".join(layouts), layouts)


def read_layout(
    path: str | Path, format: str | None = None, fields: Sequence[str | int] | None = None
) -> Layout:
    """Finds the collection in a folder or file.

    Args:
        path: as the user typed it.
        format: one of `FORMATS`; None = the one that recognises the files, which are plain
            passages only if no other does.
        fields: of plain passages, see `passages.read`.

    Raises:
        FileNotFoundError: there is no such path, or one of the format's files is missing.
        ValueError: an unknown format, or none or several that recognise the path; `fields` of
            another format.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"data.format={format}: must be one of {', '.join(FORMATS)}")
    place = given_path("path", str(path), "folder or file")
    found = [format] if format else [n for n, reader in FORMATS.items() if reader.recognises(place)]
    found = [name for name in found if name != "passages"] or found
    if found == ["passages"]:
        return passages.read(place, fields)
    if fields:
        names = " or ".join(found) or "unknown"
        raise ValueError(f"data.fields={list(fields)}: must be null, the format is {names}")
    if len(found) == 1:
        return FORMATS[found[0]].read(place)
    if found:
        raise ValueError(f"data.path={path}: may be {' or '.join(found)}: say data.format=…")
    names = sorted(file.name for file in place.iterdir()) if place.is_dir() else [place.name]
    content = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "an empty folder"
    raise ValueError(
        f"data.path={path}: no known format in {content}; name it with data.format= "
        f"({', '.join(FORMATS)})"
    )
