"""A folder of numpy arrays that is written whole or not at all, and opened by memory map.

One `.npy` file an array and one `arrays.json` with every file's size and checksum, so that a folder
that was cut short or damaged is refused instead of giving wrong results. Nothing is pickled.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gr_mvdr.files.checksums import checksum, read_sealed, verify, write_sealed
from gr_mvdr.files.writing import naming, new_folder

CONTENTS = "arrays.json"


def write_arrays(path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Writes arrays and settings (anything JSON can hold) as the new folder `path`.

    Raises:
        ValueError: `path` exists already.
    """
    with new_folder(path) as folder:
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        files = {f"{name}.npy": checksum(folder / f"{name}.npy") for name in arrays}
        write_sealed(folder / CONTENTS, {"settings": settings, "files": files}, indent=1)


def write_array(file: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file in place: for folders that take their name when they are whole."""
    with naming(file), file.open("wb") as stream:
        np.lib.format.write_array(_Stream(stream), np.asanyarray(array), allow_pickle=False)


class _Stream:
    """A file that numpy does not take for one: what it writes to files by itself fails without
    saying why, and here the system's error passes."""

    def __init__(self, file: BinaryIO):
        self.write = file.write


def check(holds: bool | np.bool_, path: str | Path, rule: str) -> None:
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
        FileNotFoundError: there is no such folder.
        ValueError: a file is missing, cut short or changed; the message names it.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    try:
        contents = read_sealed(path / CONTENTS)
        files, settings = dict(contents["files"]), dict(contents["settings"])
    except (OSError, KeyError, TypeError) as error:
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
