"""Queries and TREC judgements in files of their own, paired by the split that both names name."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Judgement, Query
from data_modules.formats.lines import find_all, integer, numbered_lines, plain_name, rows

# What a name says beside the split: msmarco-doctrain-qrels.tsv, nq_queries_dev.tsv.gz,
# qrels.dev.small.tsv, 2019qrels-docs.txt, 2019qrels-pass.txt, msmarco-docdev-top100.
_OTHER_WORDS = re.compile(
    r"\.(tsv|txt|trec|run)$|msmarco|nq(?=[_-])|doc(?=train|dev|eval|test)|docs|pass(?:ages?)?"
    r"|qrels?|queries|query|top\d+"
)
_SEPARATORS = re.compile(r"[-_.]+")
EVERYTHING = ("", "all")  # "splits" of files with the queries of every split


def split_of(file: Path) -> str:
    """The split that a file's name names: "dev_small" of ``qrels.dev.small.tsv``."""
    return _SEPARATORS.sub("_", _OTHER_WORDS.sub("-", plain_name(file))).strip("_")


def judgement_files(folder: Path, *patterns: str) -> dict[str, Path]:
    """The files of judgements by split.

    Raises:
        FileNotFoundError: there is none.
        ValueError: two files of one split.
    """
    files: dict[str, Path] = {}
    for file in find_all(folder, *patterns):
        split = split_of(file) or "test"
        if split in files:
            raise ValueError(
                f"data.path={folder}: {files[split].name} and {file.name} both judge the split "
                f"{split!r}"
            )
        files[split] = file
    if not files:
        raise FileNotFoundError(f"data.path={folder}: judgements ({' or '.join(patterns)}) missing")
    return files


def query_files(folder: Path, splits: dict[str, Path], *patterns: str) -> tuple[Path, ...]:
    """The files with the queries of the judged splits.

    One file of all queries (``queries.all.tsv``) is enough; otherwise each split has its own, whose
    name may say more ("test2019" for "2019"). Files of other splits are left aside: they may
    hold queries of these splits once more.

    Raises:
        FileNotFoundError: a split has none.
    """
    found = {split_of(file): file for file in find_all(folder, *patterns)}
    for name in EVERYTHING:
        if name in found:
            return (found[name],)
    files = {split: _of(split, found) for split in splits}
    if missing := [split for split, file in files.items() if file is None]:
        raise FileNotFoundError(
            f"data.path={folder}: the queries ({' or '.join(patterns)}) of the split "
            f"{missing[0]!r}, which {splits[missing[0]].name} judges, are missing"
        )
    return tuple(dict.fromkeys(files.values()))


def _of(split: str, files: dict[str, Path]) -> Path | None:
    exact = files.get(split)
    return exact or next((file for name, file in files.items() if _ends_with(name, split)), None)


def _ends_with(name: str, split: str) -> bool:
    """Whether a name ends with a split's: "test2019" with "2019", but "latest" not with "test"."""
    if not name.endswith(split):
        return False
    before, first = name.removesuffix(split)[-1:], split[:1]
    return not ((before.isalpha() and first.isalpha()) or (before.isdigit() and first.isdigit()))


def run_files(folder: Path, splits: Iterable[str], *patterns: str) -> dict[str, Path]:
    """The runs of the judged splits, whose names may say more; says which runs are of none.

    Raises:
        ValueError: two runs of one split.
    """
    found = find_all(folder, *patterns)
    runs: dict[str, Path] = {}
    for split in splits:
        exact = [file for file in found if split_of(file) == split]
        chosen = exact or [file for file in found if _ends_with(split_of(file), split)]
        if len(chosen) > 1:
            raise ValueError(
                f"data.path={folder}: {chosen[0].name} and {chosen[1].name} are both runs of the "
                f"split {split!r}: keep one (data.candidates_run=FILE takes any)"
            )
        if chosen:
            runs[split] = chosen[0]
    for file in found:
        if file not in runs.values():
            print(f"{file}: is left aside: its name names no split that is judged")
    return runs


def queries(files: tuple[Path, ...]) -> Iterator[Query]:
    """The queries of some files of lines ``id<TAB>query``.

    A query that one of the files before holds with the same text is the same query (MS MARCO's dev
    and dev.small); with another text it comes a second time, which no collection allows.
    """
    before: dict[str, str] = {}
    for file in files:
        here: dict[str, str] = {}
        for where, row in rows(file, ("qid", "query")):
            id, text = row["qid"], row["query"]
            if file != files[-1]:
                here[id] = text
            if before.get(id) != text:
                yield Query(where, id, text)
        before |= here


def judgements(file: Path) -> Iterator[Judgement]:
    """TREC judgements: ``query 0 document grade``, separated by blanks or tabs."""
    for where, line in numbered_lines(file):
        columns = line.split()
        if len(columns) != 4:
            raise ValueError(f"{where}: expected 'query 0 document grade', got {line[:60]!r}")
        query, _, document, grade = columns
        yield Judgement(where, query, document, integer(where, "grade", grade))


def judgements_by_split(files: dict[str, Path]) -> dict:
    """What a layout has as its judgements."""
    return {split: partial(judgements, file) for split, file in files.items()}
