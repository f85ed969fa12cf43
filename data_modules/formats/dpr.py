"""The layout of DPR: passages as a table, questions with their contexts as JSON arrays.

- ``psgs_w100.tsv``: id, text, title, see `table_documents`.
- ``…-train.json``, ``…-dev.json``, ``…-test.json``: one split each, ``[{"question",
  "positive_ctxs", "negative_ctxs", "hard_negative_ctxs"}, …]``. A question's id consists of its
  split and its place in the file, from 0: train-17. All positive contexts are relevant; a question
  without any has no judgements. The other contexts of the training questions are the negatives
  "negative_ctxs" and "hard_negative_ctxs".

The id of a context (``passage_id``, ``psg_id``) is that of its passage. Queries, judgements and
negatives each take one pass over the JSON files, with one item in memory at a time.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Asked, Layout, NamedPair, asked_layout
from data_modules.formats.readers import (
    array_items,
    find_all,
    find_splits,
    missing,
    needed,
    string,
    word,
)
from data_modules.formats.rows import DPR, table_documents

POSITIVE = "positive_ctxs"
NEGATIVE_KINDS = ("negative_ctxs", "hard_negative_ctxs")
PASSAGES = "psgs_w100.tsv"


def recognises(path: Path) -> bool:
    return bool(find_all(path, PASSAGES))


def read(path: Path, dataset: str = "") -> Layout:
    """The layout of a folder; with `dataset`, only of the files of one data set ("nq")."""
    if not (splits := find_splits(path, f"*{dataset}-{{train|dev|test}}.json")):
        raise missing(path, f'…{dataset}-train.json with [{{"question", "{POSITIVE}"}}, …]')
    table = needed(path, PASSAGES)
    train = splits.get("train")
    return asked_layout(
        name=f"dpr-{dataset}" if dataset else path.resolve().name,
        files=(table, *splits.values()),
        options={"reader": "dpr/1"},
        documents=partial(table_documents, table, DPR),
        splits={split: partial(_asked, file, split) for split, file in splits.items()},
        negatives={kind: partial(_negatives, train, kind) for kind in NEGATIVE_KINDS if train},
    )


def _items(file: Path, split: str) -> Iterator[tuple[str, str, dict]]:
    """Yields (``file: item``, id, record) for each question; the first training id is "train-0".

    Raises:
        ValueError: an item is not a question with contexts; names the file and the item.
    """
    for number, (where, record) in enumerate(array_items(file)):
        row = {kind: [] for kind in NEGATIVE_KINDS}
        row |= record if isinstance(record, dict) else {}
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            contexts = row.get(kind)
            if not isinstance(contexts, list) or not all(isinstance(c, dict) for c in contexts):
                rule = f'{{"question": …, "{kind}": [{{"title", "text", …}}, …], …}}'
                raise ValueError(f"{where}: expected {rule}, got {contexts or record!r:.60}")
        yield where, f"{split}-{number}", row


def _context_ids(where: str, record: dict, kind: str) -> list[str]:
    """The ids of a question's contexts of one kind, each once: the public files repeat some."""
    ids = (word(where, "passage_id|psg_id|id", context) for context in record[kind])
    return list(dict.fromkeys(ids))


def _asked(file: Path, split: str) -> Iterator[Asked]:
    """Yields the questions of a file; all positive contexts are relevant."""
    for where, query, record in _items(file, split):
        relevant = _context_ids(where, record, POSITIVE)
        yield Asked(where, query, string(where, "question", record), relevant)


def _negatives(file: Path, kind: str) -> Iterator[NamedPair]:
    for where, query, record in _items(file, "train"):
        for place, document in enumerate(_context_ids(where, record, kind)):
            yield NamedPair(where, query, document, float(-place))
