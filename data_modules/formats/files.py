"""Files as they are downloaded: found by name, packed or not, opened, hashed."""

import gzip
import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from gr_mvdr.files import check_file

PACKED = (".gz", ".zip")  # endings that any file may have after its own
# What a name says besides the split: msmarco-doctrain-qrels.tsv, nq_queries_dev.tsv.gz,
# qrels.dev.small.tsv, 2019qrels-docs.txt, 2019qrels-pass.txt, msmarco-docdev-top100.
_OTHER_WORDS = re.compile(
    r"\.(tsv|txt|trec|run|jsonl)$|msmarco|nq(?=[_-])|doc(?=train|dev|eval|test)|docs|pass(?:ages?)?"
    r"|qrels?|queries|query|top\d+"
)
_SEPARATORS = re.compile(r"[-_.]+")


def given_path(key: str, path: str | None, kind: str = "file") -> Path | None:
    """A path as the user typed it, or None.

    Args:
        key: of the option that names it.
        kind: "file", "folder" or "folder or file".

    Raises:
        FileNotFoundError: there is nothing of this kind at the path.
    """
    if path is None:
        return None
    place = Path(path).expanduser()
    if not {"file": place.is_file, "folder": place.is_dir}.get(kind, place.exists)():
        raise FileNotFoundError(f"data.{key}={path}: no such {kind}")
    return place


def find(folder: Path, *names: str) -> Path | None:
    """The first of these names that is a file in the folder, as it is or packed (.gz, .zip)."""
    return next((file for name in names for file in find_all(folder, name)), None)


def needed(folder: Path, *names: str) -> Path:
    """The file that `find` finds; raises FileNotFoundError if there is none."""
    if (file := find(folder, *names)) is None:
        raise missing(folder, *names)
    return file


def missing(folder: Path, *names: str) -> FileNotFoundError:
    """The error that a file is missing, whose name is one of these."""
    return FileNotFoundError(f"data.path={folder}: the file {' or '.join(names)} is missing")


def find_all(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder whose names match a pattern such as "qrels/*.tsv", sorted by name.

    Packed files match without their ending; a file that is there plain and packed counts once. Of a
    path of a file that file alone is looked at.
    """
    found: dict[str, Path] = {}
    for parent, _, name in (pattern.rpartition("/") for pattern in patterns):
        place = folder / parent
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            if file.is_file() and fnmatchcase(plain_name(file), name):
                found.setdefault(plain_name(file), file)
    return sorted(found.values())


def find_splits(folder: Path, *patterns: str) -> dict[str, Path]:
    """Split → the file whose name names it.

    Args:
        patterns: what braces hold is the split's name: "{train|dev}.json", "GTQ_*_{*}.tsv"; several
            pairs of braces are joined by "_". Without braces it is what `split_of` finds, or
            "test". Files are in the order of the patterns that they match, then of their names.

    Raises:
        ValueError: two files are of one split.
    """
    matched: dict[Path, str] = {}
    for pattern in patterns:
        regex = re.escape(pattern.rpartition("/")[2]).replace(r"\*", ".*?").replace(r"\|", "|")
        regex = regex.replace(r"\{", "(").replace(r"\}", ")")
        for file in find_all(folder, re.sub(r"\{.*?\}", "*", pattern)):
            if match := re.fullmatch(regex, plain_name(file)):
                matched.setdefault(file, "_".join(match.groups()) or split_of(file) or "test")
    return group_by_split(matched)


def group_by_split(split_of: Mapping[Path, str]) -> dict[str, Path]:
    """Split → file; raises ValueError if two files are of one split."""
    splits: dict[str, Path] = {}
    for file, split in split_of.items():
        if (other := splits.setdefault(split, file)) != file:
            raise ValueError(
                f"data.path={file.parent}: {other.name} and {file.name} are both of the split "
                f"{split!r}: keep one"
            )
    return splits


def split_of(file: Path) -> str:
    """The split that a file's name names: "dev_small" of ``qrels.dev.small.tsv``."""
    return _SEPARATORS.sub("_", _OTHER_WORDS.sub("-", plain_name(file))).strip("_")


def plain_name(file: Path) -> str:
    """The file's name without the ending of its packing."""
    return file.stem if file.suffix in PACKED else file.name


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """The content of a file: plain, gzip, or a zip archive with one file in it.

    Raises:
        ValueError: it is a pipe or a device; an archive is damaged or holds several files.
    """
    check_file(file)
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                if len(names := archive.namelist()) != 1:
                    raise ValueError(f"{file}: must be an archive of one file, has {len(names)}")
                with archive.open(names[0]) as content:
                    yield content
        else:
            with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as content:
                yield content
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{file}: a damaged archive ({error}): fetch the file again") from None


def begins_with(file: Path, characters: str) -> bool:
    """Whether the first character that is not blank is one of these."""
    with opened(file) as content:
        start = content.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[:1].decode("ascii", "replace") in tuple(characters)


def sha256(file: Path) -> str:
    """The hash of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
