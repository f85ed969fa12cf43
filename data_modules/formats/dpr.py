"""The layout of DPR: passages as a table, questions with their contexts as JSON arrays.

- ``psgs_w100.tsv``: id, text, title with a header and texts in quotes. Without a header the columns
  must be in this order (KILT's is another): a file whose titles are longer than its texts is
  refused.
- ``…-train.json``, ``…-dev.json``, ``…-test.json``: ``[{"question", "positive_ctxs",
  "negative_ctxs", "hard_negative_ctxs"}, …]``, a split each. A question's id is made of its split
  and its place, from 0: train-17. All positive contexts are relevant; a question without any is
  judged in no split. The other contexts of the training questions are the negatives
  "negative_ctxs" and "hard_negative_ctxs". Files of other names that hold no contexts are not
  read.

Contexts are named by the passage that they are (``passage_id``, ``psg_id``); one without gets an id
made of its title and text. Without ``psgs_w100.tsv`` all contexts of all splits are the documents,
each once. ``data.path`` may be one of the JSON files. Those files are read in one pass for each of
documents, queries, judgements and negatives, an item at a time.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.files import begins_with, by_split, find, find_all, opened, plain_name
from data_modules.formats.layout import Asked, Document, Layout, Ranked, asked_layout
from data_modules.formats.lines import array_items, string, word
from data_modules.formats.tables import DPR, passages

POSITIVE = "positive_ctxs"
NEGATIVE_KINDS = ("negative_ctxs", "hard_negative_ctxs")
_PASSAGES = "psgs_w100.tsv"
_ID_KEYS = ("passage_id", "psg_id", "id")
_SPLIT = re.compile(r"(?:^|[-_.])(train|dev|test)(?=$|[-_.])")
_START = 1 << 16  # bytes that show what a JSON file holds


def recognises(path: Path) -> bool:
    return find(path, _PASSAGES) is not None or any(map(_has_contexts, _json_files(path)))


def read(path: Path, dataset: str = "") -> Layout:
    """The layout of a folder; of several data sets in one, those files whose names have it."""
    found = [f for f in _json_files(path) if _SPLIT.search(plain_name(f)) or _has_contexts(f)]
    if dataset:  # nq-dev.json, biencoder-nq-dev.json
        found = [f for f in found if dataset in re.split("[-_.]", plain_name(f))]
    if not found:
        raise FileNotFoundError(
            f"data.path={path}: a file …{dataset}-train.json with "
            f'[{{"question", "{POSITIVE}"}}, …] is missing'
        )
    splits = by_split(path, found, split_of)
    files, table = tuple(splits.values()), find(path, _PASSAGES)
    asked = [splits["train"]] if "train" in splits else []
    return asked_layout(
        path,
        reader="dpr/1",
        files=(*([table] if table else ()), *files),
        documents=partial(passages, table, DPR) if table else partial(_contexts, files),
        splits={split: partial(_asked, file) for split, file in splits.items()},
        name=f"dpr-{dataset}" if dataset else path.resolve().name.split(".")[0],
        negatives={kind: partial(_negatives, *asked, kind) for kind in NEGATIVE_KINDS if asked},
    )


def _json_files(path: Path) -> list[Path]:
    return [path] if plain_name(path).endswith(".json") else find_all(path, "*.json")


def _has_contexts(file: Path) -> bool:
    if not begins_with(file, "["):
        return False
    with opened(file) as content:
        return f'"{POSITIVE}"'.encode() in content.read(_START)


def split_of(file: Path) -> str:
    """The split that a file's name names, else "test": ``biencoder-nq-train.json`` is "train"."""
    return next(reversed(_SPLIT.findall(plain_name(file))), "test")


def items(file: Path) -> Iterator[tuple[str, str, dict]]:
    """(``file:line``, made id, record) of each question; the first of the train file is train-0.

    Raises:
        ValueError: an item is no question with contexts; names ``file:line``.
    """
    split = split_of(file)
    for number, (where, record) in enumerate(array_items(file)):
        if not isinstance(record, dict) or not isinstance(record.get(POSITIVE), list):
            raise ValueError(
                f'{where}: expected {{"question": …, "{POSITIVE}": […], …}}, got {record!r:.60}'
            )
        for kind in (POSITIVE, *NEGATIVE_KINDS):
            contexts = record.get(kind, [])
            if not isinstance(contexts, list) or not all(isinstance(c, dict) for c in contexts):
                raise ValueError(
                    f'{where}: expected "{kind}": [{{"title", "text", …}}, …], got {contexts!r:.60}'
                )
        yield where, f"{split}-{number}", record


def context_id(where: str, context: dict) -> str:
    """A context's id: of psgs_w100.tsv if the file gives it, else made of its title and text."""
    for key in _ID_KEYS:
        if key in context:
            return word(where, key, context)
    content = f"{string(where, 'title', context, '')}\n{string(where, 'text', context)}"
    # The store names halves of surrogate pairs.
    digest = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
    return f"ctx-{digest[:16]}"


def _contexts(files: Iterable[Path]) -> Iterator[Document]:
    seen = set()
    for file in files:
        for where, _, record in items(file):
            for kind in (POSITIVE, *NEGATIVE_KINDS):
                for context in record.get(kind, ()):
                    identifier = context_id(where, context)
                    if identifier not in seen:
                        seen.add(identifier)
                        title = string(where, "title", context, "")
                        yield Document(where, identifier, title, string(where, "text", context))


def _asked(file: Path) -> Iterator[Asked]:
    for where, query, record in items(file):
        yield Asked(where, query, string(where, "question", record), _ids(where, record, POSITIVE))


def _negatives(file: Path, kind: str) -> Iterator[Ranked]:
    for where, query, record in items(file):
        for place, document in enumerate(_ids(where, record, kind)):
            yield Ranked(where, query, document, float(-place))


def _ids(where: str, record: dict, kind: str) -> list[str]:
    """Of a question's contexts, each once: the public files repeat some."""
    return list(dict.fromkeys(context_id(where, context) for context in record.get(kind, ())))
