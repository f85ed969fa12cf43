"""A folder of numpy arrays that is written whole or not at all, and opened by memory map.

One `.npy` file an array and one `arrays.json` with every file's size and checksum, so that a folder
that was cut short or damaged is refused instead of giving wrong results. Nothing is pickled.
"""

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

CONTENTS = "arrays.json"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` when all is written, and else disappears.

    Raises:
        ValueError: `path` exists already.
    """
    if path.exists():
        raise ValueError(f"{path}: exists already, an index is never overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
        folder.chmod(0o755)  # mkdtemp's folders are closed to everyone else
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_arrays(path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Writes arrays and settings (anything JSON can hold) as the new folder `path`.

    Raises:
        ValueError: `path` exists already.
    """
    with new_folder(path) as folder:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        files = {f"{name}.npy": _checksum(folder / f"{name}.npy") for name in arrays}
        contents = json.dumps({"settings": settings, "files": files}, indent=1)
        (folder / CONTENTS).write_text(contents + "\n", encoding="utf-8")


def read_arrays(path: Path, names: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Opens the named arrays of a folder by memory map (read-only), and its settings.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a file is missing, cut short or changed; the message names it.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    try:
        contents = json.loads((path / CONTENTS).read_text(encoding="utf-8"))
        files, settings = dict(contents["files"]), dict(contents["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / CONTENTS}: must list the folder's files ({error})") from error
    arrays = {}
    for name in names:
        file = path / f"{name}.npy"
        if file.name not in files or not file.is_file():
            raise ValueError(f"{file}: is missing, the folder must hold {', '.join(names)}")
        found = _checksum(file)
        if found != files[file.name]:
            raise ValueError(f"{file}: is damaged, expected {files[file.name]}, found {found}")
        # A plain array over the map: np.memmap's own indexing is slow.
        arrays[name] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    return arrays, settings


def _checksum(file: Path) -> dict[str, int]:
    """The file's size in bytes and its CRC-32."""
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return {"bytes": file.stat().st_size, "crc32": crc}
