"""The layout of DSI-QG: JSON lines ``{"text_id", "text"}`` that tell by a prefix what they are.

- ``<set>_DSI_train_data.json``: lines ``Passage: …``, the documents, and ``Question: …``, the
  queries of the split "train". text_id is the document; several questions may have the same.
- ``<set>_DSI_dev_data.json``: questions, the split "dev".
- ``<set>_corpus.tsv``: id, passage and, in XORQA, title. Documents are read from here if it is
  there, else from the passages of the training file, where a title ends at ``</s>``.

A question has no id of its own: it is made of the split and the line, train-17.
``<set>_corpus.tsv.q10.docTquery`` holds generated queries: `data_modules.formats.generated` reads
it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.column_order import check_title_and_text
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.lines import (
    find_all,
    json_object,
    numbered_lines,
    plain_name,
    rows,
    string,
    word,
)

_SPLITS = ("train", "dev")
_FILE = "*_DSI_{}_data.json"
_PASSAGE, _QUESTION = "Passage: ", "Question: "
_TITLE_END = "</s>"


def recognises(path: Path) -> bool:
    """Whether there is a training file in DSI-QG's name."""
    return bool(find_all(path, _FILE.format("train")))


def read(path: Path) -> Layout:
    """A folder in DSI-QG's layout.

    Raises:
        FileNotFoundError: one of its files is missing.
        ValueError: two sets lie together; (on reading) a line breaks the format.
    """
    splits = {split: _one(path, _FILE.format(split)) for split in _SPLITS}
    corpus = find_all(path, "*_corpus.tsv")
    files = {split: file for split, file in splits.items() if file is not None}
    if "train" not in files:
        raise FileNotFoundError(f"data.path={path}: <set>_DSI_train_data.json is missing")
    return Layout(
        name=path.resolve().name,
        files=(*corpus[:1], *files.values()),
        options={"reader": "dsi_qg/1"},
        documents=partial(_table, corpus[0]) if corpus else partial(_passages, files["train"]),
        queries=partial(_queries, files),
        judgements={split: partial(_judgements, file, split) for split, file in files.items()},
    )


def _one(folder: Path, pattern: str) -> Path | None:
    found = find_all(folder, pattern)
    if len(found) > 1:
        names = ", ".join(plain_name(file) for file in found)
        raise ValueError(f"data.path={folder}: expected one file {pattern}, found {names}")
    return found[0] if found else None


def _table(file: Path) -> Iterator[Document]:
    _, first = next(numbered_lines(file), ("", ""))
    columns = ("id", "passage", "title")[: 3 if first.count("\t") == 2 else 2]
    looked_at = ((w, row.get("title", ""), row["passage"]) for w, row in rows(file, columns))
    check_title_and_text(looked_at, " ".join(columns))
    for where, row in rows(file, columns):
        yield Document(where, row["id"], row.get("title", ""), row["passage"])


def _lines(file: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """(where, document's id, text without its prefix) of the lines with a prefix."""
    for where, line in numbered_lines(file):
        record = json_object(where, line)
        text = string(where, "text", record)
        if not text.startswith((_PASSAGE, _QUESTION)):
            raise ValueError(
                f"{where}: expected a text that begins with {_PASSAGE!r} or {_QUESTION!r}, got "
                f"{text[:40]!r}"
            )
        if text.startswith(prefix):
            yield where, word(where, "text_id", record), text.removeprefix(prefix)


def _passages(file: Path) -> Iterator[Document]:
    for where, document, text in _lines(file, _PASSAGE):
        title, end, passage = text.partition(_TITLE_END)
        yield Document(where, document, title if end else "", passage if end else text)


def _identifier(split: str, where: str) -> str:
    """The id made for the question on a line."""
    return f"{split}-{where.rpartition(':')[2]}"


def _queries(files: dict[str, Path]) -> Iterator[Query]:
    for split, file in files.items():
        for where, _, text in _lines(file, _QUESTION):
            yield Query(where, _identifier(split, where), text)


def _judgements(file: Path, split: str) -> Iterator[Judgement]:
    for where, document, _ in _lines(file, _QUESTION):
        yield Judgement(where, _identifier(split, where), document, 1)
