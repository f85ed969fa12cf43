"""What readers of line-based files share: numbered lines, JSON objects, hashes of files."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path


def numbered_lines(file: Path) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of the lines that are not blank; split at newlines only.

    Raises:
        ValueError: a line is not UTF-8.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: expected UTF-8: {error.reason}") from None
            if text.strip():
                yield where, text


def json_object(where: str, line: str) -> dict:
    """The JSON object on a line.

    Raises:
        ValueError: it is something else; names ``file:line``.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: expected a JSON object, but {error.msg}: {line[:60]!r}"
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
    return record


def sha256(file: Path) -> str:
    """The hash of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
