"""DPR's training files: JSON arrays of questions with passages that answer them or do not."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from data_modules.formats.json_array import array_items
from data_modules.formats.lines import plain_name, string, word

POSITIVE = "positive_ctxs"
NEGATIVE_KINDS = ("negative_ctxs", "hard_negative_ctxs")
_ID_KEYS = ("passage_id", "psg_id", "id")
_SPLIT = re.compile(r"(?:^|[-_.])(train|dev|test)(?=$|[-_.])")


def split_of(file: Path) -> str | None:
    """The split that a file's name names: ``biencoder-nq-train.json`` is "train"."""
    found = _SPLIT.findall(plain_name(file))
    return found[-1] if found else None


def items(file: Path) -> Iterator[tuple[str, str, dict]]:
    """(``file:line``, made id, record) of each question; the first of the train file is train-0.

    Raises:
        ValueError: an item is no question with contexts; names ``file:line``.
    """
    split = split_of(file) or "test"
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
    content = f"{context_title(where, context)}\n{string(where, 'text', context)}"
    # The store names halves of surrogate pairs.
    digest = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
    return f"ctx-{digest[:16]}"


def context_title(where: str, context: dict) -> str:
    """A context's title, which may be empty or missing."""
    return "" if context.get("title") is None else string(where, "title", context)
