"""Checksums of files, by which damage is found before it gives wrong results.

A small file is read whole whenever it is opened. Of a large one blocks are read that are spread
evenly over it, its beginning and end among them: opening stays quick, a file that was cut, mixed up
or overwritten is found, a single flipped bit between the blocks only by `verify(…, whole=True)`.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gr_mvdr.files.writing import write_text

SMALL = 1 << 26  # bytes of a file that is read whole
_SAMPLES, _SAMPLE_BYTES = 256, 1 << 16
_BLOCK = 1 << 22
_SEAL = "checksum"

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
        content = json.loads(path.read_text(encoding="utf-8"))
        seal = content.pop(_SEAL, None)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged, must be a JSON object ({error})") from None
    if seal is not None and seal != _seal(content):
        raise ValueError(f"{path}: is damaged, its content does not fit its checksum")
    return content


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
