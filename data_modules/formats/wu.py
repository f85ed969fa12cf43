"""The layout of the scripts of gr_as_mvdr.txt ("Wu").

- ``collection.tsv``: id, text and, if the first line has one, title. Plain columns: a tab within a
  text is refused, and so is a header.
- ``qrel.<split>.tsv``: TREC judgements, a split each; several documents of a query are all
  relevant.
- ``queries.all.tsv``, or ``queries.<split>.tsv`` of each split: id, query.
- ``triples.train*.tsv``: query, relevant document, then one or more negatives. Where ``qrel.train``
  is missing, as in the public scripts, the pairs of query and relevant document are the split
  "train"; the negatives have the name of the file.
- ``candidate.json``: {query: [document, …]}, the candidates of every split but "train".
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from data_modules.formats.column_order import check_title_and_text
from data_modules.formats.layout import Document, Judgement, Layout
from data_modules.formats.lines import find, find_all, needed, numbered_lines, plain_name, rows
from data_modules.formats.named_pairs import (
    RANKING,
    RUN,
    TRIPLE,
    located_pairs,
    read_negatives,
)
from data_modules.formats.trec_files import judgements_by_split, queries, query_files, split_of

_COLUMNS = ("pid", "text", "title")
_NAMES = {*_COLUMNS, "id", "docid", "doc_id", "passage", "body"}  # that headers give them
_LOOKED_AT = 100  # lines, for the order of the columns


def recognises(path: Path) -> bool:
    """Whether there is a collection.tsv with judgements or triples in Wu's names."""
    named = find_all(path, "qrel.*.tsv", "triples.*.tsv")
    return find(path, "collection.tsv") is not None and bool(named)


def read(path: Path) -> Layout:
    """A folder in Wu's layout.

    Raises:
        FileNotFoundError: one of its files is missing.
        ValueError: (on reading) a line breaks the format.
    """
    collection = needed(path, "collection.tsv")
    judged = {split_of(file): file for file in find_all(path, "qrel.*.tsv")}
    triples = find_all(path, "triples.*.tsv")
    judgements = judgements_by_split(judged)
    if "train" not in judged and triples:
        judgements = {"train": partial(_training_pairs, triples[0]), **judgements}
    if not judgements:
        raise FileNotFoundError(f"data.path={path}: qrel.<split>.tsv and triples.*.tsv are missing")
    asked = query_files(
        path, {"train": triples[0], **judged} if triples else judged, "queries*.tsv"
    )
    candidates = find(path, "candidate.json", "candidates.json")
    return Layout(
        name=path.resolve().name,
        files=tuple(filter(None, (collection, *asked, *judged.values(), *triples, candidates))),
        options={"reader": "wu/1"},
        documents=partial(_documents, collection),
        queries=partial(queries, asked),
        judgements=judgements,
        candidates=_candidates(candidates, judgements),
        negatives={_name(file): partial(read_negatives, file, TRIPLE) for file in triples},
    )


def _candidates(file: Path | None, judgements: dict[str, Callable]) -> dict[str, Callable]:
    splits = [split for split in judgements if split != "train"]
    return (
        {}
        if file is None
        else {split: partial(read_negatives, file, RUN, RANKING) for split in splits}
    )


def _name(triples: Path) -> str:
    return plain_name(triples).removesuffix(".tsv")


def _documents(file: Path) -> Iterator[Document]:
    columns = _columns(file)
    if "title" in columns:
        first = islice(_rows(file, columns), _LOOKED_AT)
        check_title_and_text(((row.where, row.title, row.text) for row in first), "pid text title")
    yield from _rows(file, columns)


def _columns(file: Path) -> tuple[str, ...]:
    """What the first line has: a title or none.

    Raises:
        ValueError: it is a header, which would become a document.
    """
    where, first = next(numbered_lines(file), ("", ""))
    if {name.strip(' "').lower() for name in first.split("\t")} <= _NAMES:
        raise ValueError(
            f"{where}: expected a document, got the header {first!r}: remove this line"
        )
    return _COLUMNS if first.count("\t") > 1 else _COLUMNS[:2]


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[Document]:
    for where, row in rows(file, columns):
        yield Document(where, row["pid"], row.get("title", ""), row["text"])


def _training_pairs(file: Path) -> Iterator[Judgement]:
    """Each pair of a query and a document that a triple calls relevant, where it stands first."""
    seen = set()
    for where, pair in located_pairs(file, TRIPLE):
        if pair.positive and pair[:2] not in seen:
            seen.add(pair[:2])
            yield Judgement(where, pair.query, pair.document, 1)
