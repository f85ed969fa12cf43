"""The layout of DPR: passages as a table, questions with their contexts as JSON arrays.

- ``psgs_w100.tsv``: id, text, title with a header and texts in quotes. Without a header the columns
  must be in this order (KILT's is another): a file whose titles are longer than its texts is
  refused.
- ``…-train.json``, ``…-dev.json``, ``…-test.json``: ``[{"question", "positive_ctxs",
  "negative_ctxs", "hard_negative_ctxs"}, …]``, a split each. A question's id is made of its split
  and its place, from 0: train-17. All positive contexts are relevant; a question without any is
  judged in no split. The other contexts of the training questions are the negatives
  "negative_ctxs" and "hard_negative_ctxs". Files of other names that hold no contexts are left
  aside.

Contexts are named by the passage that they are (``passage_id``, ``psg_id``); one without gets an id
made of its title and text. Without ``psgs_w100.tsv`` all contexts of all splits are the documents,
each once. ``data.path`` may be one of the JSON files. Those files are read in one pass for each of
documents, queries, judgements and negatives, an item at a time.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.dpr_contexts import (
    NEGATIVE_KINDS,
    POSITIVE,
    context_id,
    context_title,
    items,
    split_of,
)
from data_modules.formats.json_array import begins_with
from data_modules.formats.layout import Document, Judgement, Layout, Query, Ranked
from data_modules.formats.lines import find, find_all, opened, plain_name, string
from data_modules.formats.passages import DPR, passages

_PASSAGES = "psgs_w100.tsv"
_START = 1 << 16  # bytes that show what a JSON file holds


def recognises(path: Path) -> bool:
    """Whether there are DPR's passages, or questions with contexts."""
    return find(path, _PASSAGES) is not None or any(map(_has_contexts, _json_files(path)))


def read(path: Path) -> Layout:
    """A folder in DPR's layout, or one of its JSON files.

    Raises:
        FileNotFoundError: there are no questions with contexts.
        ValueError: two files of one split; (on reading) an item breaks the format.
    """
    splits: dict[str, Path] = {}
    for file in _json_files(path):
        if split_of(file) is None and not _has_contexts(file):
            continue
        other = splits.setdefault(split_of(file) or "test", file)
        if other != file:
            raise ValueError(
                f"data.path={path}: {other.name} and {file.name} are both of the split "
                f"{split_of(file)!r}"
            )
    if not splits:
        raise FileNotFoundError(
            f'data.path={path}: a file …-train.json with [{{"question", "positive_ctxs"}}, …] is '
            "missing"
        )
    table = find(path, _PASSAGES)
    files = tuple(splits.values())
    asked = [splits["train"]] if "train" in splits else []
    return Layout(
        name=path.resolve().name.split(".")[0],
        files=(*([table] if table else ()), *files),
        options={"reader": "dpr/1"},
        documents=partial(passages, table, DPR) if table else partial(_contexts, files),
        queries=partial(_queries, files),
        judgements={split: partial(_judgements, file) for split, file in splits.items()},
        negatives={kind: partial(_negatives, *asked, kind) for kind in NEGATIVE_KINDS if asked},
    )


def _json_files(path: Path) -> list[Path]:
    return [path] if plain_name(path).endswith(".json") else find_all(path, "*.json")


def _has_contexts(file: Path) -> bool:
    if not begins_with(file, "["):
        return False
    with opened(file) as content:
        return f'"{POSITIVE}"'.encode() in content.read(_START)


def _contexts(files: tuple[Path, ...]) -> Iterator[Document]:
    seen = set()
    for file in files:
        for where, _, record in items(file):
            for kind in (POSITIVE, *NEGATIVE_KINDS):
                for context in record.get(kind, ()):
                    identifier = context_id(where, context)
                    if identifier not in seen:
                        seen.add(identifier)
                        text = string(where, "text", context)
                        yield Document(where, identifier, context_title(where, context), text)


def _queries(files: tuple[Path, ...]) -> Iterator[Query]:
    for file in files:
        for where, query, record in items(file):
            yield Query(where, query, string(where, "question", record))


def _judgements(file: Path) -> Iterator[Judgement]:
    for where, query, record in items(file):
        for document in _ids(where, record, POSITIVE):
            yield Judgement(where, query, document, 1)


def _negatives(file: Path, kind: str) -> Iterator[Ranked]:
    for where, query, record in items(file):
        for place, document in enumerate(_ids(where, record, kind)):
            yield Ranked(where, query, document, float(-place))


def _ids(where: str, record: dict, kind: str) -> list[str]:
    """Of a question's contexts, each once: the public files repeat some."""
    return list(dict.fromkeys(context_id(where, context) for context in record.get(kind, ())))
