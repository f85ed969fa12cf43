"""What readers of text files share: opening, numbered lines, JSON, columns, hashes."""

import gzip
import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO

PACKED = (".gz", ".zip")  # endings that any file may have beside its own
_INTEGER = re.compile(r" *[+-]?[0-9]{1,9} *")  # grades are stored in 64 bits


def find(folder: Path, *names: str) -> Path | None:
    """The first of these names that is a file in the folder, as it is or packed (.gz, .zip)."""
    candidates = (folder / f"{name}{ending}" for name in names for ending in ("", *PACKED))
    return next((file for file in candidates if file.is_file()), None)


def needed(folder: Path, *names: str) -> Path:
    """What `find` finds.

    Raises:
        FileNotFoundError: there is none of these files.
    """
    file = find(folder, *names)
    if file is None:
        raise FileNotFoundError(f"data.path={folder}: the file {' or '.join(names)} is missing")
    return file


def find_all(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder whose names match, in the order of their names.

    Packed ones match without their ending; a file that is there plain and packed counts once.
    """
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.is_file() and any(fnmatchcase(plain_name(file), pattern) for pattern in patterns):
            found.setdefault(plain_name(file), file)
    return list(found.values())


def plain_name(file: Path) -> str:
    """The file's name without the ending of its packing."""
    return file.stem if file.suffix in PACKED else file.name


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """The content of a file: plain, gzip, or a zip archive with one file in it.

    Raises:
        ValueError: an archive is damaged, truncated, encrypted or holds more than one file.
    """
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive, _member(file, archive) as content:
                yield content
        else:
            with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as content:
                yield content
    except EOFError:
        raise ValueError(f"{file}: the archive ends too early: fetch the file again") from None
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file}: a damaged archive ({error}){page_hint(file)}") from None


def _member(file: Path, archive: zipfile.ZipFile) -> IO[bytes]:
    members = [member for member in archive.namelist() if not member.endswith("/")]
    if len(members) != 1:
        raise ValueError(f"{file}: expected one file in the archive, found {len(members)}")
    with unpacking(file):
        return archive.open(members[0])


@contextmanager
def unpacking(file: Path) -> Iterator[None]:
    """Names a zip archive that Python cannot unpack, whatever is right with it.

    Raises:
        ValueError: it is encrypted, or packed by an unknown method.
    """
    try:
        yield
    except RuntimeError:  # also NotImplementedError
        raise ValueError(
            f"{file}: the archive is encrypted, or packed by a method that Python does not know: "
            "unpack it by other means"
        ) from None


def page_hint(file: Path) -> str:
    """What a message about a broken file adds if the file is a web page."""
    with file.open("rb") as content:
        start = content.read(1024)
    return ": it is an HTML page, not the download" if is_page(start) else ""


def is_page(start: bytes) -> bool:
    """Whether a file begins like a web page: what a failed download leaves."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return text.startswith((b"<!doctype html", b"<html"))


def numbered_lines(file: Path) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of the lines that are not blank; split at newlines only.

    Raises:
        ValueError: a line is not UTF-8, the file is a web page, or its archive is damaged.
    """
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            if number == 1 and is_page(line[:1024]):
                raise ValueError(f"{where}: an HTML page, not the download: {line[:60]!r}")
            text = _decoded(where, line, first=number == 1).rstrip("\r\n")
            if text.strip():
                yield where, text


def _decoded(where: str, content: bytes, first: bool) -> str:
    if first and content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{where}: expected UTF-8, this begins like UTF-16")
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8: {error.reason}") from None


def json_object(where: str, line: str) -> dict:
    """The JSON object on a line.

    Raises:
        ValueError: it is something else; names ``file:line``.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers and nests beyond any sense
        reason = getattr(error, "msg", error)
        raise ValueError(f"{where}: expected a JSON object, but {reason}: {line[:60]!r}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected a JSON object, got {line[:60]!r}")
    return record


def string(where: str, key: str, record: dict) -> str:
    """The text under a key of a JSON object.

    Raises:
        ValueError: there is none, or it is no text.
    """
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f'{where}: expected a string "{key}", got {json.dumps(value)[:60]}')
    return value


def check_characters(where: str, what: str, *texts: str) -> None:
    """Refuses halves of surrogate pairs, which JSON can write (``"\\ud800"``) and UTF-8 cannot.

    Raises:
        ValueError: there is one; names ``file:line`` and what the texts are.
    """
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{where}: {what} holds half a surrogate pair, which is no character"
        ) from None


def word(where: str, key: str, record: dict) -> str:
    """The id under a key of a JSON object, which may be a string or an integer.

    Raises:
        ValueError: there is none, or it is something else.
    """
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string(where, key, record)


def json_value(file: Path) -> Any:
    """The one JSON value that a file is.

    Raises:
        ValueError: it is no JSON; names ``file:line``.
    """
    with opened(file) as content:
        text = _decoded(str(file), content.read(), first=True)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        page = ": an HTML page, not the download" if is_page(text[:1024].encode()) else ""
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ValueError(f"{file}:{line}: expected JSON, but {reason}{page}") from None


def rows(
    file: Path, columns: Sequence[str], header: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """(``file:line``, column → text) of a file of tab-separated columns.

    Args:
        columns: their names, all that the file has, in its order.
        header: whether the first line names them.

    Raises:
        ValueError: another header, or a line with more or fewer columns (a tab within a text).
    """
    expected = "\t".join(columns)
    lines = numbered_lines(file)
    if header:
        where, first = next(lines, (f"{file}:1", ""))
        if first.split("\t") != list(columns):
            raise ValueError(f"{where}: expected the header {expected!r}, got {first[:60]!r}")
    for where, line in lines:
        found = line.split("\t")
        if len(found) != len(columns):
            raise ValueError(
                f"{where}: expected {len(columns)} columns separated by tabs "
                f"({', '.join(columns)}), got {len(found)}: {line[:60]!r}"
            )
        yield where, dict(zip(columns, found, strict=True))


def integer(where: str, name: str, text: str) -> int:
    """A column as an integer.

    Raises:
        ValueError: it is none, or has more than nine digits; names ``file:line`` and the column.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{where}: expected an integer {name}, got {text[:60]!r}")
    return int(text)


def sha256(file: Path) -> str:
    """The hash of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
