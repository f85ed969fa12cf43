"""The layout of DPR: passages as a table, questions with their contexts as JSON arrays.

- ``psgs_w100.tsv``: id, text, title, see `table_documents`.
- ``…-train.json``, ``…-dev.json``, ``…-test.json``: one split each, ``[{"question",
  "positive_ctxs", "negative_ctxs", "hard_negative_ctxs"}, …]``. A question's id consists of its
  split and its place in the file, from 0: train-17. All positive contexts are relevant; a question
  without any has no judgements. The other contexts of the training questions are the negatives
  "negative_ctxs" and "hard_negative_ctxs". A JSON file is read if its name has a split.

The id of a context is that of its passage (``passage_id``, ``psg_id``); a context without one gets
an id computed from its title and text. Without ``psgs_w100.tsv``, the documents are the contexts of
all splits, each once. ``data.path`` may be one of the JSON files. Documents, queries, judgements
and negatives each take one pass over the JSON files, with one item in memory at a time.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.layout import Asked, Document, Layout, NamedPair, asked_layout
from data_modules.formats.readers import (
    array_items,
    find_all,
    group_by_split,
    missing,
    string,
    word,
)
from data_modules.formats.rows import DPR, table_documents
from gr_mvdr.files import plain_name

POSITIVE = "positive_ctxs"
NEGATIVE_KINDS = ("negative_ctxs", "hard_negative_ctxs")
PASSAGES = "psgs_w100.tsv"
_SPLIT = re.compile(r"(?:^|[-_.])(train|dev|test)(?=$|[-_.])")


def recognises(path: Path) -> bool:
    return bool(find_all(path, PASSAGES) or _questions(path))


def read(path: Path, dataset: str = "") -> Layout:
    """The layout of a folder; with `dataset`, only JSON files whose names contain it are read."""
    files = _questions(path)
    if dataset:  # nq-dev.json, biencoder-nq-dev.json
        files = [file for file in files if dataset in re.split("[-_.]", plain_name(file))]
    if not files:
        raise missing(path, f'…{dataset}-train.json with [{{"question", "{POSITIVE}"}}, …]')
    splits = group_by_split({file: split_of(file) for file in files})
    table = find_all(path, PASSAGES)
    files = tuple(splits.values())
    train = [splits["train"]] if "train" in splits else []
    return asked_layout(
        name=f"dpr-{dataset}" if dataset else path.resolve().name.split(".")[0],
        files=(*table, *files),
        options={"reader": "dpr/1"},
        documents=partial(table_documents, *table, DPR) if table else partial(_contexts, files),
        splits={split: partial(_asked, file) for split, file in splits.items()},
        negatives={kind: partial(_negatives, *train, kind) for kind in NEGATIVE_KINDS if train},
    )


def _questions(path: Path) -> list[Path]:
    return [file for file in find_all(path, "*.json") if _SPLIT.search(plain_name(file))]


def split_of(file: Path) -> str:
    """The split in a file's name, such as "train" in ``biencoder-nq-train.json``, else "test"."""
    return next(reversed(_SPLIT.findall(plain_name(file))), "test")


def items(file: Path) -> Iterator[tuple[str, str, dict]]:
    """Yields (``file: item``, id, record) for each question; the first training id is "train-0".

    Raises:
        ValueError: an item is not a question with contexts; names the file and the item.
    """
    split = split_of(file)
    for number, (where, record) in enumerate(array_items(file)):
        row = {kind: [] for kind in NEGATIVE_KINDS}
        row |= record if isinstance(record, dict) else {}
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            contexts = row.get(kind)
            if not isinstance(contexts, list) or not all(isinstance(c, dict) for c in contexts):
                rule = f'{{"question": …, "{kind}": [{{"title", "text", …}}, …], …}}'
                raise ValueError(f"{where}: expected {rule}, got {contexts or record!r:.60}")
        yield where, f"{split}-{number}", row


def contexts(file: Path) -> Iterator[tuple[str, str, str, dict]]:
    """Yields (``file: item``, the question's id, kind, context) for each context of a file."""
    for where, query, record in items(file):
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            yield from ((where, query, kind, context) for context in record[kind])


def context_id(where: str, context: dict) -> str:
    """A context's id: the passage's id if given, else computed from the title and text."""
    if {"passage_id", "psg_id", "id"} & context.keys():
        return word(where, "passage_id|psg_id|id", context)
    content = f"{string(where, 'title', context, '')}\n{string(where, 'text', context)}"
    return f"ctx-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def context_ids(where: str, record: dict, kind: str) -> list[str]:
    """The ids of a question's contexts of one kind, each once: the public files repeat some."""
    return list(dict.fromkeys(context_id(where, context) for context in record[kind]))


def _asked(file: Path) -> Iterator[Asked]:
    """Yields the questions of a file; all positive contexts are relevant."""
    for where, query, record in items(file):
        relevant = context_ids(where, record, POSITIVE)
        yield Asked(where, query, string(where, "question", record), relevant)


def _contexts(files: Iterable[Path]) -> Iterator[Document]:
    """Yields all contexts of all questions, each once."""
    seen = set()
    for file in files:
        for where, _, _, context in contexts(file):
            if (name := context_id(where, context)) not in seen:
                seen.add(name)
                title = string(where, "title", context, "")
                yield Document(where, name, title, string(where, "text", context))


def _negatives(file: Path, kind: str) -> Iterator[NamedPair]:
    for where, query, record in items(file):
        for place, document in enumerate(context_ids(where, record, kind)):
            yield NamedPair(where, query, document, float(-place))
