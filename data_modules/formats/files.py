"""Files as downloads are: found by their names, packed or not, opened, hashed."""

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, BinaryIO

from gr_mvdr.files import check_file

PACKED = (".gz", ".zip")  # endings that any file may have after its own
PAGE = ": it is an HTML page, not the download"


def given_path(key: str, path: str | None, kind: str = "file") -> Path | None:
    """A path as the user typed it, or None; FileNotFoundError if there is nothing at it.

    Args:
        key: of the option that names it.
        kind: "file", "folder" or "folder or file".
    """
    if path is None:
        return None
    place = Path(path).expanduser()
    if not {"file": place.is_file, "folder": place.is_dir}.get(kind, place.exists)():
        raise FileNotFoundError(f"data.{key}={path}: no such {kind}")
    return place


def find(folder: Path, *names: str) -> Path | None:
    """The first of these names that is a file in the folder, as it is or packed (.gz, .zip)."""
    candidates = (folder / f"{name}{ending}" for name in names for ending in ("", *PACKED))
    return next((file for file in candidates if file.is_file()), None)


def needed(folder: Path, *names: str) -> Path:
    """What `find` finds; FileNotFoundError if there is none of these files."""
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


def find_one(folder: Path, what: str, *patterns: str) -> Path | None:
    """The only file of `find_all`, or None; ValueError names several, and what was expected."""
    found = find_all(folder, *patterns)
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"data.path={folder}: expected one {what}, found {names}")
    return found[0] if found else None


def by_split(
    folder: Path, files: Iterable[Path], split_of: Callable[[Path], str]
) -> dict[str, Path]:
    """Files by the split that their names name; ValueError names two of one split."""
    splits: dict[str, Path] = {}
    for file in files:
        other = splits.setdefault(split_of(file), file)
        if other != file:
            raise ValueError(
                f"data.path={folder}: {other.name} and {file.name} are both of the split "
                f"{split_of(file)!r}: keep one"
            )
    return splits


def plain_name(file: Path) -> str:
    """The file's name without the ending of its packing."""
    return file.stem if file.suffix in PACKED else file.name


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """The content of a file: plain, gzip, or a zip archive with one file in it.

    Raises:
        ValueError: it is a pipe or a device; an archive is damaged, truncated, encrypted or holds
            more than one file.
    """
    check_file(file)
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
    """Names a zip archive that is encrypted or packed by an unknown method (ValueError)."""
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
        return PAGE if is_page(content.read(1024)) else ""


def is_page(start: bytes) -> bool:
    """Whether a file begins like a web page: what a failed download leaves."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return text.startswith((b"<!doctype html", b"<html"))


def begins_with(file: Path, characters: str) -> bool:
    """Whether the first character that is no blank is one of these."""
    with opened(file) as content:
        start = content.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:1].decode("ascii", "replace") in tuple(characters)


def sha256(file: Path) -> str:
    """The hash of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
