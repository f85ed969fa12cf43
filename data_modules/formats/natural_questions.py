"""The raw Natural Questions v1.0: one file a split, or the original release's shards."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Layout
from data_modules.formats.lines import PACKED, find_all
from data_modules.formats.nq_records import FIELDS
from data_modules.formats.titled_pages import TitledPages, TitleKey

_PARTS = ("dev_seen", "dev_unseen")  # of a part of the files, one may be empty
SPLITS = ("train", "dev", *_PARTS)
# The simplified release is one file a split, with or without the bucket's name before its own.
_NAMES = {
    "train": ("*simplified-nq-train.jsonl", "nq-train-[0-9][0-9].jsonl"),
    "dev": ("*nq-dev-all.jsonl", "nq-dev-[0-9][0-9].jsonl"),
}
_SHARE = {True: 1.0, False: 0.25}  # of a file (packed, plain) that its pages' texts take


def recognises(path: Path) -> bool:
    """Whether this is a folder with files of the raw release."""
    return path.is_dir() and any(_found(path, split) for split in _NAMES)


def read(
    path: Path,
    text: str | Sequence[str] = FIELDS,
    first_tokens: int | None = None,
    title_vocabulary: Path | None = None,
    check: Callable[[TitledPages], None] | None = None,
) -> Layout:
    """The pages as documents, one a title, and the questions that were asked of them.

    A document's id is its number in the order of first appearance, training before development,
    as in NCI's and GenRet's files; a query's is its ``example_id``.

    Args:
        path: a folder with the training and the development files.
        text: what a document's text is made of: abstract, content.
        first_tokens: white-space tokens kept of it; None = all.
        title_vocabulary: BERT's vocab.txt, by which titles are compared (`TitleKey`).
        check: called once all pages were read.

    Raises:
        FileNotFoundError: the files of a split are missing.
        ValueError: an unknown choice, or (on reading) a line that breaks the format.
    """
    fields = [text] if isinstance(text, str) else list(text)
    if not fields or set(fields) - set(FIELDS):
        raise ValueError(f"data.text={text}: must be one or both of {', '.join(FIELDS)}")
    if first_tokens is not None and first_tokens < 1:
        raise ValueError(f"data.first_tokens={first_tokens}: must be ≥ 1, or null for all")
    files = {split: raw_files(path, split) for split in _NAMES}
    found = TitledPages(files, fields, first_tokens, TitleKey(title_vocabulary), check)
    all_files = (*files["train"], *files["dev"])
    return Layout(
        name=path.resolve().name,
        files=all_files if title_vocabulary is None else (*all_files, title_vocabulary),
        options={
            "reader": "natural_questions/1",
            "text": fields,
            "first_tokens": first_tokens,
            "title_vocabulary": title_vocabulary is not None,
        },
        documents=found.documents,
        queries=found.queries,
        judgements={split: partial(found.judgements, split) for split in SPLITS},
        may_lack=frozenset(_PARTS),
        needed_bytes=int(sum(f.stat().st_size * _SHARE[f.suffix in PACKED] for f in all_files)),
    )


def raw_files(folder: Path, split: str) -> list[Path]:
    """The files of a split, in the folder or in its folder of the split's name.

    Raises:
        FileNotFoundError: there is none.
        ValueError: both releases are there.
    """
    whole, shards = ([*_matching(folder, split, name)] for name in _NAMES[split])
    if whole and (shards or len(whole) > 1):
        names = ", ".join(file.name for file in (*whole, *shards)[:4])
        raise ValueError(f"data.path={folder}: {split} questions twice ({names}): keep one copy")
    if not whole and not shards:
        raise FileNotFoundError(
            f"data.path={folder}: the {split} questions are missing: "
            f"{' or '.join(name + '.gz' for name in _NAMES[split])}"
        )
    return whole or shards


def _found(folder: Path, split: str) -> list[Path]:
    return [file for name in _NAMES[split] for file in _matching(folder, split, name)]


def _matching(folder: Path, split: str, name: str) -> list[Path]:
    places = [place for place in (folder, folder / split) if place.is_dir()]
    return [file for place in places for file in find_all(place, name)]
