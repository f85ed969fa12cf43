"""The layout of the scripts of gr_as_mvdr ("Wu").

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

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.files import find, find_all, needed, plain_name
from data_modules.formats.layout import Document, Judgement, Layout
from data_modules.formats.lines import first_line
from data_modules.formats.named_pairs import RANKING, RUN, TRIPLE, read_negatives, read_pairs
from data_modules.formats.tables import table_documents
from data_modules.formats.trec import judgements, queries, query_files, split_of

_HEADER = {"pid", "text", "title", "id", "docid", "doc_id", "passage", "body"}


def recognises(path: Path) -> bool:
    named = find_all(path, "qrel.*.tsv", "triples.*.tsv")
    return find(path, "collection.tsv") is not None and bool(named)


def read(path: Path) -> Layout:
    collection = needed(path, "collection.tsv")
    qrels = {split_of(file): file for file in find_all(path, "qrel.*.tsv")}
    triples = find_all(path, "triples.*.tsv")
    judged = {split: partial(judgements, file) for split, file in qrels.items()}
    if "train" not in qrels and triples:
        judged = {"train": partial(_training_pairs, triples[0]), **judged}
    if not judged:
        raise FileNotFoundError(f"data.path={path}: qrel.<split>.tsv and triples.*.tsv are missing")
    asking = {"train": triples[0], **qrels} if triples else qrels
    asked = query_files(path, asking, "queries*.tsv")
    candidates = find(path, "candidate.json", "candidates.json")
    return Layout(
        name=path.resolve().name,
        files=tuple(filter(None, (collection, *asked, *qrels.values(), *triples, candidates))),
        options={"reader": "wu/1"},
        documents=partial(_documents, collection),
        queries=partial(queries, asked),
        judgements=judged,
        candidates={
            split: partial(read_negatives, candidates, RUN, RANKING)
            for split in judged
            if candidates and split != "train"
        },
        negatives={
            plain_name(file).removesuffix(".tsv"): partial(read_negatives, file, TRIPLE)
            for file in triples
        },
    )


def _documents(file: Path) -> Iterator[Document]:
    where, first = first_line(file)
    if {name.strip(' "').lower() for name in first.split("\t")} <= _HEADER:
        raise ValueError(
            f"{where}: expected a document, got the header {first!r}: remove this line"
        )
    columns = ("id", "text", "title")[: 3 if first.count("\t") > 1 else 2]
    return table_documents(file, columns, unsure=True)


def _training_pairs(file: Path) -> Iterator[Judgement]:
    """Each pair of a query and a document that a triple calls relevant, once."""
    seen = set()
    for where, query, document, _, positive in read_pairs(file, TRIPLE):
        if positive and (query, document) not in seen:
            seen.add((query, document))
            yield Judgement(where, query, document, 1)
