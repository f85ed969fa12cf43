"""Candidates and negatives, whatever file they came from, as TREC runs."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from data_modules.formats.layout import Ranked


def write_run(ranked: Iterable[Ranked], file: Path, tag: str = "given") -> int:
    """Writes a TREC run, ``query Q0 document rank score tag``; answers how many lines it has.

    Args:
        ranked: a query's documents together, in the order of their ranks.
    """
    count = 0
    with file.open("w", encoding="utf-8") as run:
        for query, documents in groupby(ranked, key=lambda row: row.query_id):
            for rank, row in enumerate(documents, start=1):
                run.write(f"{query} Q0 {row.document_id} {rank} {row.score!r} {tag}\n")
                count += 1
    return count
