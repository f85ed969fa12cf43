"""NQ320k from the raw Natural Questions, with the counts that every paper on it gives (Table 4)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_modules.builders.given import given_file, given_folder
from data_modules.formats.layout import Layout
from data_modules.formats.natural_questions import raw_files, read
from data_modules.formats.nq_records import FIELDS
from data_modules.formats.titled_pages import TitledPages

COUNTS = {
    "documents": 109_739,
    "train": 307_373,
    "dev": 7_830,
    "dev_seen": 6_075,
    "dev_unseen": 1_755,
}
_SHARDS = {"train": 50, "dev": 5}  # of the original release
_RELAX = "data.check_counts=false builds what is there"


def nq320k(
    path: str,
    text: str | Sequence[str] = FIELDS,
    first_tokens: int | None = None,
    title_vocabulary: str | None = None,
    check_counts: bool = True,
) -> Layout:
    """The collection of gr_as_mvdr.txt Table 4, in a folder of the raw files.

    Args:
        path: the folder.
        text, first_tokens, title_vocabulary: see `natural_questions.read`.
        check_counts: refuse other counts than `COUNTS`; false for a part of the files.

    Raises:
        FileNotFoundError: files or shards are missing.
        ValueError: an unknown choice; (on reading) a line breaks the format, or a count differs.
    """
    folder, vocabulary = given_folder(path), given_file("title_vocabulary", title_vocabulary)
    if check_counts:
        _check_shards(folder)
    check = _check_counts if check_counts else None
    layout = read(folder, text, first_tokens, vocabulary, check)
    return replace(
        layout,
        name="nq320k",
        options={**layout.options, "check_counts": check_counts},
        expected=COUNTS if check_counts else {},
    )


def _check_shards(folder: Path) -> None:
    """Refuses an original release that is incomplete, before anything is read."""
    for split, count in _SHARDS.items():
        found = {file.name.split(".")[0] for file in raw_files(folder, split)}
        expected = [f"nq-{split}-{number:02}" for number in range(count)]
        missing = [name for name in expected if name not in found]
        if 0 < len(missing) < count:
            more = ", …" if len(missing) > 5 else ""
            raise FileNotFoundError(
                f"data.path={folder}: {len(missing)} of {count} {split} files are missing: "
                f"{', '.join(missing[:5])}{more} ({_RELAX})"
            )


def _check_counts(pages: TitledPages) -> None:
    """Refuses other counts than `COUNTS`, and says where the difference begins (ValueError)."""
    for name, expected in COUNTS.items():
        if name == "documents":
            items, what = pages.places, "titles"
        else:
            items = [(asked.where, asked.text) for asked in pages.questions(name)]
            what = f"{name} questions"
        if len(items) != expected:
            raise ValueError(
                f"nq320k: expected {expected:,} {what}, found {len(items):,}; "
                f"{_difference(items, expected)}; by file: {_by_file(items)} ({_RELAX})"
            )


def _difference(items: Sequence[tuple[str, str]], expected: int) -> str:
    if not items:
        return "there is none"
    beyond = len(items) > expected
    where, text = items[expected if beyond else -1]
    what = "the first beyond them" if beyond else "the last before they end"
    return f"{what} is {text[:60]!r} at {where}"


def _by_file(items: Sequence[tuple[str, str]]) -> str:
    counts = Counter(Path(where.rsplit(":", 1)[0]).name for where, _ in items)
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
