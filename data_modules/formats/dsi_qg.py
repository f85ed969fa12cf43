"""The layout of DSI-QG: JSON lines ``{"text_id", "text"}`` that tell by a prefix what they are.

- ``<set>_DSI_train_data.json``: lines ``Passage: …``, the documents, and ``Question: …``, the
  queries of the split "train". text_id is the document; several questions may have the same.
- ``<set>_DSI_dev_data.json``: questions, the split "dev".
- ``<set>_corpus.tsv``: id, passage and, in XORQA, title. Documents are read from here if it is
  there, else from the passages of the training file, where a title ends at ``</s>``.

A question has no id of its own: it is made of the split and the line, train-17.
``<set>_corpus.tsv.q10.docTquery`` holds generated queries: `data_modules.formats.named_pairs` reads
it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_modules.formats.files import find_all, find_one
from data_modules.formats.layout import Asked, Document, Layout, asked_layout, made_id
from data_modules.formats.lines import first_line, json_lines, string, word
from data_modules.formats.tables import table_documents

_FILE = "*_DSI_{}_data.json"
_PASSAGE, _QUESTION = "Passage: ", "Question: "
_TITLE_END = "</s>"


def recognises(path: Path) -> bool:
    return bool(find_all(path, _FILE.format("train")))


def read(path: Path) -> Layout:
    names = {split: _FILE.format(split) for split in ("train", "dev")}
    found = {split: find_one(path, f"file {name}", name) for split, name in names.items()}
    files = {split: file for split, file in found.items() if file is not None}
    corpus = find_all(path, "*_corpus.tsv")[:1]
    if "train" not in files:
        raise FileNotFoundError(f"data.path={path}: <set>_DSI_train_data.json is missing")
    return asked_layout(
        path,
        reader="dsi_qg/1",
        files=(*corpus, *files.values()),
        documents=partial(_table, *corpus) if corpus else partial(_passages, files["train"]),
        splits={split: partial(_asked, file, split) for split, file in files.items()},
    )


def _table(file: Path) -> Iterator[Document]:
    titled = first_line(file)[1].count("\t") == 2
    return table_documents(file, ("id", "text", "title")[: 2 + titled], unsure=True)


def _lines(file: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """(where, document's id, text without its prefix) of the lines with a prefix."""
    for where, record in json_lines(file):
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


def _asked(file: Path, split: str) -> Iterator[Asked]:
    for where, document, text in _lines(file, _QUESTION):
        yield Asked(where, made_id(split, where), text, [document])
