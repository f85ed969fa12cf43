"""Gold alignments: which of a document's tokens answer a query (docs/data.md)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from data_modules.module import RetrievalDataModule
from gr_mvdr.texts import SEPARATOR

Pair = tuple[str, str]
Spans = Sequence[Mapping[str, int]]  # {"start", "end"}: characters of a document's `text`

COLUMNS = ("gold", "evidence")
_CHUNK = 256  # documents tokenised at once


def find_gold_tokens(
    data: RetrievalDataModule, split: str, pairs: Sequence[Pair]
) -> dict[Pair, tuple[Tensor, Tensor]]:
    """Where the documents of some pairs answer their queries.

    A token counts if one of its characters is in a span. Those around a text never do, nor does
    what `document_length` cuts off; a title may name the answer too, but is no gold.

    Args:
        split: that the queries belong to.
        pairs: (query id, relevant document id), as of `data.test_pairs`.

    Returns:
        Of each pair whose answer is among the tokens that are kept: answer (m,) bool, the tokens
        that answer the question, and evidence (m,) bool, those that state what it gives. m counts
        the tokens as in a batch, those around the text included. {} where the collection knows no
        answers, where documents are read without their text, or where the tokeniser cannot say
        which characters a token is of (ByT5's).
    """
    queries = data.queries(split)
    known = set(COLUMNS) <= set(queries.column_names)
    if not known or "text" not in data.text_fields or not data.tokenizer.is_fast:
        return {}
    columns = (queries[name][:] for name in ("id", *COLUMNS))
    spans = {query: parts for query, *parts in zip(*columns, strict=True)}
    characters = _characters(data, {document for _, document in pairs})
    found = {}
    for query, document in pairs:
        answer, evidence = (_inside(characters[document], part) for part in spans[query])
        if answer.any():
            found[query, document] = answer, evidence
    return found


def _characters(data: RetrievalDataModule, documents: set[str]) -> dict[str, np.ndarray]:
    """Of each document (m, 2) int32: the characters [start, end) of its `text` that a token covers.

    Those of a title are negative; the tokens around a text cover none.
    """
    template = data.template
    before, after = [(0, 0)] * len(template.document), [(0, 0)] * len(template.suffix)
    room = data.document_length - len(before) - len(after)
    rows = [row for row, name in enumerate(data.documents["id"][:]) if name in documents]
    found = {}
    for start in range(0, len(rows), _CHUNK):
        read = data.documents[rows[start : start + _CHUNK]]
        encoded = data.tokenizer(
            read["text"], add_special_tokens=False, return_offsets_mapping=True
        )
        for number, (name, offsets) in enumerate(
            zip(read["id"], encoded["offset_mapping"], strict=True)
        ):
            fields = {field: read[field][number] for field in data.text_fields}
            own = np.array(offsets[:room], dtype=np.int32).reshape(-1, 2) - _shift(fields)
            found[name] = np.array([*before, *own, *after], dtype=np.int32).reshape(-1, 2)
    return found


def _shift(fields: Mapping[str, str]) -> int:
    """Characters before `text` where fields are joined, empty ones left out."""
    names = list(fields)
    before = [fields[name] for name in names[: names.index("text")] if fields[name]]
    return sum(len(part) + len(SEPARATOR) for part in before)


def _inside(characters: np.ndarray, spans: Spans) -> Tensor:
    """(m,) bool: the tokens of which a character is in a span."""
    bounds = np.array([(span["start"], span["end"]) for span in spans]).reshape(-1, 2)
    starts, ends = characters[:, :1], characters[:, 1:]
    overlap = np.minimum(ends, bounds[:, 1]) - np.maximum(starts, bounds[:, 0])
    return torch.from_numpy((overlap > 0).any(1))
