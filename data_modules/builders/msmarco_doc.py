"""MS MARCO documents that are relevant to a training query (gr_as_mvdr Table 4), or a given list.

The 323,569 documents of the paper were never released. The closest public recipe keeps every
document that is relevant to at least one training query, about 320,000.
"""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.readers import needed, numbered_lines
from data_modules.formats.rows import MSMARCO, table_documents, table_queries, trec_judgements

SPLITS = ("train", "dev")


def msmarco_doc(path: str, document_ids: str | None = None) -> Layout:
    """The kept documents, and the training and dev queries to which one of them is relevant.

    The official top-100 runs rank documents that are not kept, so they are not read: the candidates
    are BM25's among the kept documents (§6.3).

    Args:
        path: a folder with msmarco-docs.tsv, msmarco-doc{train,dev}-queries.tsv and
            msmarco-doc{train,dev}-qrels.tsv, each plain, .gz or .zip.
        document_ids: a file that lists the ids of the documents to keep, one per line; None = keep
            the documents that are relevant to a training query.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: (on reading) a line breaks a format, or a listed document is unknown.
    """
    folder = Path(path).expanduser()
    ids = Path(document_ids).expanduser() if document_ids else None
    documents = needed(folder, "msmarco-docs.tsv")
    asked = {split: needed(folder, f"msmarco-doc{split}-queries.tsv") for split in SPLITS}
    qrels = {split: needed(folder, f"msmarco-doc{split}-qrels.tsv") for split in SPLITS}

    @cache
    def wanted() -> dict[str, str]:
        """Id of each document to keep → the ``file:line`` that names it first."""
        if ids:
            named = [(where, line.strip()) for where, line in numbered_lines(ids)]
        else:
            rows = trec_judgements(qrels["train"])
            named = [(where, id) for where, _, id, grade in rows if grade > 0]
        return {id: where for where, id in reversed(named)}

    def kept_documents() -> Iterator[Document]:
        missing = dict(wanted())
        for document in table_documents(documents, MSMARCO):
            if document.id in wanted():
                missing.pop(document.id, None)
                yield document
        for id, where in reversed(missing.items()):
            raise ValueError(
                f"{where}: document {id!r} is not in {documents.name}, nor are "
                f"{len(missing) - 1:,} others of {len(wanted()):,}: files of two collections?"
            )

    def kept_queries() -> Iterator[Query]:
        for split, file in asked.items():
            judged = {row.query_id for row in trec_judgements(qrels[split])}
            kept = {row.query_id for row in judgements(split)}
            if left := len(judged - kept):
                print(
                    f"msmarco_doc: {left:,} of {len(judged):,} {split} queries are left out: "
                    "none of the kept documents is relevant to them"
                )
            yield from (query for query in table_queries(file) if query.id in kept)

    def judgements(split: str) -> Iterator[Judgement]:
        """Judgements of kept documents, for queries to which a kept document is relevant."""
        rows = [row for row in trec_judgements(qrels[split]) if row.document_id in wanted()]
        answered = {row.query_id for row in rows if row.relevance > 0}
        return (row for row in rows if row.query_id in answered)

    return Layout(
        name="msmarco_doc",
        files=(documents, *asked.values(), *qrels.values(), *([ids] if ids else [])),
        options={"reader": "msmarco_doc/2", "document_ids": ids is not None},
        documents=kept_documents,
        queries=kept_queries,
        judgements={split: partial(judgements, split) for split in SPLITS},
    )
