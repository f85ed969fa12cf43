"""MS MARCO's own files, and others with TREC judgements.

- ``msmarco-docs.tsv``: id, url, title, text (the url is not read); or ``collection.tsv``: id, text,
  for MS MARCO's passages. Plain columns: a tab within a text is refused.
- ``*qrels*``: ``query 0 document grade``, a split each, named by the file: "train" and "dev" of
  ``msmarco-doctrain-qrels.tsv`` and ``msmarco-docdev-qrels.tsv``, "dev_small" of
  ``qrels.dev.small.tsv``, "2019" of ``2019qrels-docs.txt``, "test" where it names none.
- ``*queries*.tsv``: id, query. One file of all, or one for each split; a name may say more than the
  split (``msmarco-test2019-queries.tsv`` for 2019). A query may be in several with one text.
- ``*top100*``, ``*.trec``, ``*.run``: runs, ``query Q0 document rank score tag``: the candidates of
  the split that the name names, which may say more as those of queries. A run that names none is
  not read, and a line says so (``data.candidates_run`` takes any).

Wu's and Ultron's folders have queries and judgements in the same files.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.files import by_split, find, find_all, needed, plain_name
from data_modules.formats.layout import Judgement, Layout, Query
from data_modules.formats.lines import integer, numbered_lines
from data_modules.formats.named_pairs import RUN, read_negatives
from data_modules.formats.tables import rows, table_documents

_DOCUMENTS, _PASSAGES = "msmarco-docs.tsv", "collection.tsv"
COLUMNS = ("id", "url", "title", "text")  # of MS MARCO's documents
_QRELS = ("*qrels*.tsv", "*qrels*.txt")
# What a name says besides the split: msmarco-doctrain-qrels.tsv, nq_queries_dev.tsv.gz,
# qrels.dev.small.tsv, 2019qrels-docs.txt, 2019qrels-pass.txt, msmarco-docdev-top100.
_OTHER_WORDS = re.compile(
    r"\.(tsv|txt|trec|run)$|msmarco|nq(?=[_-])|doc(?=train|dev|eval|test)|docs|pass(?:ages?)?"
    r"|qrels?|queries|query|top\d+"
)
_SEPARATORS = re.compile(r"[-_.]+")


def recognises(path: Path) -> bool:
    passages = find(path, _PASSAGES) is not None and bool(find_all(path, *_QRELS))
    return find(path, _DOCUMENTS) is not None or passages


def read(path: Path) -> Layout:
    documents = needed(path, _DOCUMENTS, _PASSAGES)
    columns = COLUMNS if plain_name(documents) == _DOCUMENTS else ("id", "text")
    judged = judgement_files(path, *_QRELS)
    asked = query_files(path, judged, "*queries*.tsv")
    candidates = _run_files(path, judged, "*top100*", "*.trec", "*.run")
    return Layout(
        name=path.resolve().name,
        files=(documents, *asked, *judged.values(), *candidates.values()),
        options={"reader": "trec/1"},
        documents=partial(table_documents, documents, columns),
        queries=partial(queries, asked),
        judgements={split: partial(judgements, file) for split, file in judged.items()},
        candidates={s: partial(read_negatives, file, RUN) for s, file in candidates.items()},
    )


def split_of(file: Path) -> str:
    """The split that a file's name names: "dev_small" of ``qrels.dev.small.tsv``."""
    return _SEPARATORS.sub("_", _OTHER_WORDS.sub("-", plain_name(file))).strip("_")


def judgement_files(folder: Path, *patterns: str) -> dict[str, Path]:
    """The files of judgements by split.

    Raises:
        FileNotFoundError: there is none.
        ValueError: two files of one split.
    """
    found = find_all(folder, *patterns)
    if not found:
        raise FileNotFoundError(f"data.path={folder}: judgements ({' or '.join(patterns)}) missing")
    return by_split(folder, found, lambda file: split_of(file) or "test")


def query_files(folder: Path, splits: dict[str, Path], *patterns: str) -> tuple[Path, ...]:
    """The files with the queries of the judged splits.

    One file of all queries (``queries.all.tsv``) is enough; otherwise each split has its own, whose
    name may say more ("test2019" for "2019"). Files of other splits are not read: they may hold
    queries of these splits once more.

    Raises:
        FileNotFoundError: a split has none.
    """
    found = find_all(folder, *patterns)
    if everything := [file for file in found if split_of(file) in ("", "all")]:
        return (min(everything, key=split_of),)
    files = []
    for split, judged in splits.items():
        if not (named := _of_split(split, found)):
            raise FileNotFoundError(
                f"data.path={folder}: the queries ({' or '.join(patterns)}) of the split "
                f"{split!r}, which {judged.name} judges, are missing"
            )
        files.append(named[0])
    return tuple(dict.fromkeys(files))


def _of_split(split: str, files: list[Path]) -> list[Path]:
    """Those whose names name just the split, else those that say more."""
    exact = [file for file in files if split_of(file) == split]
    return exact or [file for file in files if _ends_with(split_of(file), split)]


def _ends_with(name: str, split: str) -> bool:
    """Whether a name ends with a split's: "test2019" with "2019", but "latest" not with "test"."""
    if not name.endswith(split):
        return False
    before, first = name.removesuffix(split)[-1:], split[:1]
    return not ((before.isalpha() and first.isalpha()) or (before.isdigit() and first.isdigit()))


def _run_files(folder: Path, splits: Iterable[str], *patterns: str) -> dict[str, Path]:
    """The runs of the judged splits, whose names may say more; says which runs are of none.

    Raises:
        ValueError: two runs of one split.
    """
    found = find_all(folder, *patterns)
    runs: dict[str, Path] = {}
    for split in splits:
        chosen = _of_split(split, found)
        if len(chosen) > 1:
            raise ValueError(
                f"data.path={folder}: {chosen[0].name} and {chosen[1].name} are both runs of the "
                f"split {split!r}: keep one (data.candidates_run=FILE takes any)"
            )
        if chosen:
            runs[split] = chosen[0]
    for file in found:
        if file not in runs.values():
            print(f"{file}: is not read: its name names no split that is judged")
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
