"""A folder of numpy arrays that is written whole or not at all, and opened by memory map.

One `.npy` file an array and one `arrays.json` with every file's size and checksum, so that a folder
that was cut short or damaged is refused instead of giving wrong results. Nothing is pickled.
"""

import json
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gr_mvdr.files.reading import read_text
from gr_mvdr.files.writing import name_errors, new_folder, write_text

CONTENTS = "arrays.json"


def write_arrays(
    path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any], replace: bool = False
) -> None:
    """Writes arrays and settings (anything JSON can hold) as the folder `path`.

    Raises:
        ValueError: `path` exists already and is not to be replaced.
    """
    with new_folder(path, replace=replace) as folder:
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        files = {f"{name}.npy": checksum(folder / f"{name}.npy") for name in arrays}
        write_sealed(folder / CONTENTS, {"settings": settings, "files": files}, indent=1)


def write_array(file: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file in place: for folders that take their name when they are whole."""
    with name_errors(file), file.open("wb") as stream:
        np.lib.format.write_array(_Stream(stream), np.asanyarray(array), allow_pickle=False)


class _Stream:
    """A file that numpy does not take for one: what it writes to files by itself fails without
    saying why, and here the system's error passes."""

    def __init__(self, file: BinaryIO):
        self.write = file.write


def check(holds: Any, path: str | Path, rule: str) -> None:
    """Raises ValueError, which names the file or folder, unless what was read from it holds."""
    if not holds:
        raise ValueError(f"{path}: is damaged, {rule}")


def check_offsets(offsets: np.ndarray, first: int, last: int, count: int, path: str | Path) -> None:
    """Raises ValueError unless `count` + 1 integers go from `first` to `last` without falling."""
    fits = offsets.shape == (count + 1,) and offsets.dtype == np.int64
    fits = fits and count >= 0 and offsets[0] == first and offsets[-1] == last
    rule = f"must hold {count + 1:,} ascending int64 from {first} to {last:,}"
    check(fits and bool((offsets[1:] >= offsets[:-1]).all()), path, rule)


def read_arrays(path: Path, names: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Opens the named arrays of a folder by memory map (read-only), and its settings.

    Raises:
        OSError: there is no such folder, or a file may not be read.
        ValueError: a file is missing, cut short or changed; the message names it.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    try:
        contents = read_sealed(path / CONTENTS)
        files, settings = dict(contents["files"]), dict(contents["settings"])
    except (FileNotFoundError, KeyError, TypeError) as error:
        raise ValueError(f"{path / CONTENTS}: must list the folder's files ({error})") from error
    arrays = {}
    for name in names:
        file = path / f"{name}.npy"
        if file.name not in files or not file.is_file():
            raise ValueError(f"{file}: is missing, the folder must hold {', '.join(names)}")
        verify(file, files[file.name])
        # A plain array over the map: np.memmap's own indexing is slow.
        arrays[name] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    return arrays, settings


SMALL = 1 << 26  # bytes of a file that is read whole
_SAMPLES, _SAMPLE_BYTES = 256, 1 << 16
_BLOCK = 1 << 22
_SEAL = "checksum"
_SEALED = 2**30  # bytes of a file that lists all documents' ids

Checksum = dict[str, int]


def checksum(file: Path, size: int | None = None) -> Checksum:
    """Of a file's first `size` bytes, None = all: "bytes", "crc32", and "sampled" of a large one.

    Raises:
        ValueError: the file has fewer bytes.
    """
    size = file.stat().st_size if size is None else size
    return with_samples(file, {"bytes": size, "crc32": _whole(file, size)})


def with_samples(file: Path, known: Checksum) -> Checksum:
    """The checksum of a file that was summed up while it was written."""
    return known | ({"sampled": _sampled(file, known["bytes"])} if known["bytes"] > SMALL else {})


def continued(known: Checksum, array: np.ndarray) -> Checksum:
    """The checksum, without its samples, of a file to which these rows were added; {} = empty."""
    crc = zlib.crc32(array.reshape(-1).data.cast("B"), known.get("crc32", 0))
    return {"bytes": known.get("bytes", 0) + array.nbytes, "crc32": crc}


def verify(file: Path, expected: Checksum, whole: bool = False) -> None:
    """Compares a file's first bytes with their checksum.

    Args:
        whole: read a large file whole, too.

    Raises:
        ValueError: the file is missing, shorter, or other than it was; names it.
    """
    size = expected["bytes"]
    found = file.stat().st_size if file.is_file() else 0
    if found < size:
        raise ValueError(f"{file}: is damaged, {found} bytes, expected {size}: it was cut short")
    part = "sampled" if "sampled" in expected and not whole else "crc32"
    value = _sampled(file, size) if part == "sampled" else _whole(file, size)
    if value != expected[part]:
        raise ValueError(f"{file}: is damaged, its {part} is {value}, expected {expected[part]}")


def _whole(file: Path, size: int) -> int:
    crc = 0
    with file.open("rb") as stream:
        while size and (block := stream.read(min(size, _BLOCK))):
            crc, size = zlib.crc32(block, crc), size - len(block)
    if size:
        raise ValueError(f"{file}: is damaged, {size} bytes are missing at its end")
    return crc


def _sampled(file: Path, size: int) -> int:
    crc = 0
    with file.open("rb") as stream:
        for start in np.linspace(0, size - _SAMPLE_BYTES, _SAMPLES).astype(np.int64).tolist():
            stream.seek(start)
            crc = zlib.crc32(stream.read(_SAMPLE_BYTES), crc)
    return crc


def write_sealed(path: Path, content: dict[str, Any], indent: int | None = None) -> None:
    """Writes JSON that holds a checksum of itself."""
    sealed = {**content, _SEAL: _seal(content)}
    write_text(path, json.dumps(sealed, indent=indent, ensure_ascii=False) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads it back; JSON without a checksum, of earlier versions, is taken as it is.

    Raises:
        ValueError: not a JSON object, or not the one that was written; names the file.
    """
    try:
        content = json.loads(read_text(path, _SEALED))
        seal = content.pop(_SEAL, None)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged, must be a JSON object ({error})") from None
    if seal is not None and seal != _seal(content):
        raise ValueError(f"{path}: is damaged, its content does not fit its checksum")
    return content


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
