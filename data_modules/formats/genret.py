"""The layout of GenRet's NQ320k.

- ``corpus_lite.json``: a JSON array of texts, or JSON lines ``{"title", "abstract"}``. A document's
  id is its place, from 0; a ``doc_id`` that says otherwise is refused.
- ``train.json``, ``dev.json``, ``test.json``: arrays ``[[query, place or [place, …]], …]``, a split
  each; all places of a query are relevant. A query's id is made of its split and its place, from 0:
  dev-17.
- ``dev.json.seen``, ``dev.json.unseen``: arrays of places in ``dev.json``: the splits dev_seen and
  dev_unseen, whose queries keep their ids.

``train.json.qg.json`` holds generated queries: `data_modules.formats.named_pairs` reads it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_modules.formats.files import begins_with, find, needed
from data_modules.formats.layout import Asked, Document, Layout, asked_layout
from data_modules.formats.lines import array_items, json_lines, json_value, string


def recognises(path: Path) -> bool:
    return find(path, "corpus_lite.json") is not None


def read(path: Path) -> Layout:
    corpus = needed(path, "corpus_lite.json")
    splits = {s: file for s in ("train", "dev", "test") if (file := find(path, f"{s}.json"))}
    if not splits:
        raise FileNotFoundError(f"data.path={path}: train.json and dev.json are missing")
    parts = {
        (split, part): file
        for split in splits
        for part in ("seen", "unseen")
        if (file := find(path, f"{split}.json.{part}"))
    }
    return asked_layout(
        path,
        reader="genret/1",
        files=(corpus, *splits.values(), *parts.values()),
        documents=partial(_documents, corpus),
        splits={split: partial(read_asked, file, split) for split, file in splits.items()},
        parts={
            f"{split}_{part}": partial(_part, splits[split], split, file)
            for (split, part), file in parts.items()
        },
    )


def _documents(file: Path) -> Iterator[Document]:
    if begins_with(file, "["):
        for place, (where, text) in enumerate(array_items(file)):
            if not isinstance(text, str):
                raise ValueError(f"{where}: expected a document's text, got {text!r:.60}")
            yield Document(where, str(place), "", text)
        return
    for place, (where, record) in enumerate(json_lines(file)):
        if str(record.get("doc_id", place)) != str(place):
            raise ValueError(
                f"{where}: expected the documents in the order of their ids: doc_id "
                f"{record['doc_id']!r} is at place {place}"
            )
        title = string(where, "title", record) if record.get("title") else ""
        yield Document(where, str(place), title, string(where, "abstract", record))


def read_asked(file: Path, split: str) -> Iterator[Asked]:
    """The queries of a split's file, or generated ones, and their documents."""
    for number, (where, item) in enumerate(array_items(file)):
        found = item[1] if isinstance(item, list) and len(item) == 2 else None
        places = found if isinstance(found, list) else [found]
        if not (found is not None and isinstance(item[0], str) and all(map(_is_place, places))):
            raise ValueError(f"{where}: expected [query, place] or [query, [place, …]], got {item}")
        yield Asked(where, f"{split}-{number}", item[0], list(dict.fromkeys(map(str, places))))


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _part(file: Path, split: str, places: Path) -> Iterator[Asked]:
    """The queries at some places."""
    chosen = json_value(places)
    if not isinstance(chosen, list) or not all(map(_is_place, chosen)):
        raise ValueError(f"{places}: expected an array of places in {file.name}")
    wanted, number = set(chosen), -1
    for number, asked in enumerate(read_asked(file, split)):
        if number in wanted:
            yield asked
    if outside := [place for place in chosen if place > number]:
        raise ValueError(
            f"{places}: names place {outside[0]}, but the last of {file.name} is {number}"
        )
