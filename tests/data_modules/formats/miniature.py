"""What the miniatures say, whatever their format."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_modules.formats.catalogue import read_layout

MINIATURES = Path(__file__).parent / "miniatures"
FORMATS = ("beir", "wu", "nci", "dpr", "trec")


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (MINIATURES / "beir" / name).read_text().splitlines()]


TITLES = [record["title"] for record in lines("corpus.jsonl")]
TEXTS = [record["text"] for record in lines("corpus.jsonl")]
QUESTIONS = {record["_id"]: record["text"] for record in lines("queries.jsonl")}


def pairs(split: str) -> list[tuple[str, int]]:
    """(question, number of a relevant document), sorted."""
    rows = (MINIATURES / f"beir/qrels/{split}.tsv").read_text().splitlines()[1:]
    return sorted((QUESTIONS[query], int(document)) for query, document, _ in map(str.split, rows))


def found_pairs(layout, split: str) -> list[tuple[str, int]]:
    """The same of a layout, whatever its ids."""
    texts = {query.id: query.text for query in layout.queries()}
    numbers = {document.id: number for number, document in enumerate(layout.documents())}
    judged = list(layout.judgements[split]())
    assert all(judgement.relevance == 1 for judgement in judged)
    return sorted((texts[row.query_id], numbers[row.document_id]) for row in judged)


def copied(format: str, folder: Path) -> Path:
    """A miniature that a test may change."""
    return Path(shutil.copytree(MINIATURES / format, folder / format))


def rewritten(file: Path, content: str | Callable[[str], str | bytes]) -> Path:
    """A file, packed or not, with other content: a text, or what a function makes of the old."""
    packed = file.suffix == ".gz"
    if callable(content):
        old = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
        content = content(old.decode())
    new = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(new) if packed else new)
    return file


def read_all(path: Path, format: str | None = None) -> None:
    """Reads every row of a folder: what a broken line breaks."""
    layout = read_layout(path, format)
    list(layout.documents())
    list(layout.queries())
    for rows in (*layout.judgements.values(), *layout.candidates.values()):
        list(rows())
    for rows in layout.negatives.values():
        list(rows())


def assert_refused(folder: Path, name: str, content, message: str, read=read_all) -> None:
    """Reading a folder with one file rewritten fails: the error begins with the file's path.

    `content` is as in `rewritten`; the error matches the pattern `message`, too.
    """
    file = rewritten(folder / name, content)
    with pytest.raises(ValueError, match=message) as error:
        read(folder)
    assert str(error.value).startswith(str(file)), error.value
