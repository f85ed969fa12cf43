"""MS MARCO documents that have a training judgement (gr_as_mvdr Table 4), or a list of them.

The 323,569 documents of the paper were never released. The closest public recipe keeps every
document with at least one training judgement, about 320,000.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data_modules.formats.files import given_path, needed
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.readers import numbered_lines
from data_modules.formats.rows import (
    MSMARCO,
    queries,
    query_table,
    table_documents,
    trec_judgements,
)

SPLITS = ("train", "dev")


def msmarco_doc(path: str, document_ids: str | None = None) -> Layout:
    """The documents that are kept, their training queries, and the dev queries about them.

    Args:
        path: a folder with msmarco-docs.tsv, msmarco-doc{train,dev}-queries.tsv,
            msmarco-doc{train,dev}-qrels.tsv, each plain, .gz or .zip. The official top-100 runs
            rank documents that are not kept: BM25's among the kept ones are the candidates (§6.3).
        document_ids: a file with an id on each line: keep these; None = those that training judges.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: (on reading) a line breaks a format, or a listed document is unknown.
    """
    folder = given_path("path", path, "folder")
    ids = given_path("document_ids", document_ids)
    documents = needed(folder, "msmarco-docs.tsv")
    asked = {split: needed(folder, f"msmarco-doc{split}-queries.tsv") for split in SPLITS}
    qrels = {split: needed(folder, f"msmarco-doc{split}-qrels.tsv") for split in SPLITS}
    others = [*asked.values(), *qrels.values(), *([ids] if ids else [])]
    kept = _Kept(documents, asked, qrels, ids)
    return Layout(
        name="msmarco_doc",
        files=(documents, *others),
        options={"reader": "msmarco_doc/2", "document_ids": ids is not None},
        documents=kept.documents,
        queries=kept.queries,
        judgements={split: partial(kept.judgements, split) for split in SPLITS},
    )


class _Kept(NamedTuple):
    """The part of the files that is about the documents that are kept."""

    file: Path
    asked: dict[str, Path]
    qrels: dict[str, Path]
    ids: Path | None

    def _wanted(self) -> dict[str, str]:
        """Document id → where it is named first."""
        if self.ids:
            named = ((where, line.strip()) for where, line in numbered_lines(self.ids))
        else:
            found = trec_judgements(self.qrels["train"])
            named = ((where, id) for where, _, id, grade in found if grade > 0)
        wanted: dict[str, str] = {}
        for where, id in named:
            wanted.setdefault(id, where)
        return wanted

    def documents(self) -> Iterator[Document]:
        wanted = self._wanted()
        missing = dict(wanted)
        for document in table_documents(self.file, MSMARCO):
            if document.id in wanted:
                missing.pop(document.id, None)
                yield document
        for id, where in missing.items():
            raise ValueError(
                f"{where}: document {id!r} is not in {self.file.name}, nor are "
                f"{len(missing) - 1:,} others of {len(wanted):,}: files of two collections?"
            )

    def queries(self) -> Iterator[Query]:
        for split, file in self.asked.items():
            judged = {row.query_id for row in trec_judgements(self.qrels[split])}
            kept = {row.query_id for row in self.judgements(split)}
            if left := len(judged - kept):
                print(
                    f"msmarco_doc: {left:,} of {len(judged):,} {split} queries are left out: "
                    "none of the kept documents is relevant to them"
                )
            yield from (query for query in queries(query_table, file) if query.id in kept)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Those of kept documents, and of queries to which one of these is relevant."""
        wanted = self._wanted()
        rows = [row for row in trec_judgements(self.qrels[split]) if row.document_id in wanted]
        asked = {row.query_id for row in rows if row.relevance > 0}
        return (row for row in rows if row.query_id in asked)
