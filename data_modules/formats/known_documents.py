"""Judgements of a collection of which only a part of the documents is there."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from data_modules.formats.layout import Judgement


def without_unknown(file: Path, judgements: Iterable[Judgement | None]) -> Iterator[Judgement]:
    """The judgements of documents that are there; says how many are not.

    Args:
        judgements: None stands for one of a document that is not there.

    Raises:
        ValueError: all are: the file judges another collection.
    """
    kept = left_out = 0
    for judgement in judgements:
        if judgement is None:
            left_out += 1
        else:
            kept += 1
            yield judgement
    if left_out and not kept:
        raise ValueError(
            f"{file}: none of its {left_out:,} judgements is of a document that is there: it "
            "judges another collection"
        )
    if left_out:
        print(f"{file}: {left_out:,} judgements are of documents that are not there")
