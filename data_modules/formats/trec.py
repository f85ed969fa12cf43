"""MS MARCO's own files, and others with TREC judgements.

- ``msmarco-docs.tsv``: docid, url, title, body (the url is not read); or ``collection.tsv``: pid,
  passage, for MS MARCO's passages. Plain columns: a tab within a text is refused.
- ``*qrels*``: ``query 0 document grade``, a split each, named by the file: "train" and "dev" of
  ``msmarco-doctrain-qrels.tsv`` and ``msmarco-docdev-qrels.tsv``, "dev_small" of
  ``qrels.dev.small.tsv``, "2019" of ``2019qrels-docs.txt``, "test" where it names none.
- ``*queries*.tsv``: id, query. One file of all, or one for each split; a name may say more than the
  split (``msmarco-test2019-queries.tsv`` for 2019). A query may stand in several with one text.
- ``*top100*``, ``*.trec``, ``*.run``: runs, ``query Q0 document rank score tag``: the candidates of
  the split that the name names, which may say more as those of queries. A run that names none is
  left aside, in a line that says so (``data.candidates_run`` takes any).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Document, Layout
from data_modules.formats.lines import find, find_all, needed, plain_name, rows
from data_modules.formats.named_pairs import RUN, read_negatives
from data_modules.formats.trec_files import (
    judgement_files,
    judgements_by_split,
    queries,
    query_files,
    run_files,
)

_DOCUMENTS, _PASSAGES = "msmarco-docs.tsv", "collection.tsv"
_COLUMNS = {
    _DOCUMENTS: ("docid", "url", "title", "body"),
    _PASSAGES: ("docid", "body"),
}
_QRELS = ("*qrels*.tsv", "*qrels*.txt")


def recognises(path: Path) -> bool:
    """Whether there are MS MARCO's documents, or passages with judgements in MS MARCO's names."""
    passages = find(path, _PASSAGES) is not None and bool(find_all(path, *_QRELS))
    return find(path, _DOCUMENTS) is not None or passages


def read(path: Path) -> Layout:
    """A folder with MS MARCO's files.

    Raises:
        FileNotFoundError: one of its files is missing.
        ValueError: two files are of one split; (on reading) a line breaks the format.
    """
    documents = needed(path, _DOCUMENTS, _PASSAGES)
    judged = judgement_files(path, *_QRELS)
    asked = query_files(path, judged, "*queries*.tsv")
    candidates = run_files(path, judged, "*top100*", "*.trec", "*.run")
    return Layout(
        name=path.resolve().name,
        files=(documents, *asked, *judged.values(), *candidates.values()),
        options={"reader": "trec/1"},
        documents=partial(_documents, documents),
        queries=partial(queries, asked),
        judgements=judgements_by_split(judged),
        candidates={s: partial(read_negatives, file, RUN) for s, file in candidates.items()},
    )


def _documents(file: Path) -> Iterator[Document]:
    for where, row in rows(file, _COLUMNS[plain_name(file)]):
        yield Document(where, row["docid"], row.get("title", ""), row["body"])
