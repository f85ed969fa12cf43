"""Does a generative system generate the answer? The decoded identifiers' tokens against the gold.

Where an identifier occurs in the relevant document's own tokens (an n-gram, a title), its tokens
can be held against those that answer the question. Docids that are no text occur nowhere.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from analysis.analysis import Findings
from analysis.statistics import spread
from analysis.tables import Row
from data_modules.gold import gold_tokens
from gr_mvdr.batch import cut
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import EOS_ID

PREFIX = "analysis/gold/decoded/"
_SEARCHED = 16  # queries at once
# What is held against the gold: the most probable identifier, or all that the search ended with.
FORMS = ("best", "all")


class Overlap(NamedTuple):
    """Tokens of a document that identifiers cover, against its gold.

    precision and possible_precision: the share of them that answer the question, or answer it or
    state what it gives; recall: the share of the answer's tokens that they are.
    """

    precision: float
    possible_precision: float
    recall: float


def occurrences(document: Tensor, identifier: Sequence[int]) -> Tensor:
    """(m,) bool: the document's tokens that belong to an occurrence of the identifier.

    Args:
        document: (m,) int64; identifier: token ids, without an end token.
    """
    covered = torch.zeros(len(document), dtype=torch.bool)
    size = len(identifier)
    if not 0 < size <= len(document):
        return covered
    equal = (document.unfold(0, size, 1) == torch.tensor(identifier)).all(1)
    places = equal.nonzero() + torch.arange(size)
    covered[places.flatten()] = True
    return covered


def overlap(covered: Tensor, answer: Tensor, evidence: Tensor) -> Overlap | None:
    """Covered tokens (m,) against answer and evidence, all bool; None if nothing is covered."""
    total = int(covered.sum())
    if not total:
        return None
    sure = int((covered & answer).sum())
    possible = int((covered & (answer | evidence)).sum())
    return Overlap(sure / total, possible / total, sure / int(answer.sum()))


@part("experiment")
def measure_decoded_identifiers(model: Any, data: Any, queries: int) -> Findings:
    """Searches with test queries and looks for what was generated in the relevant documents.

    The identifiers are the sequences that the search ended with, not the n-grams on their way.

    Args:
        model: a generative system whose index is built; data: a `RetrievalDataModule`.
        queries: test queries at most, spread evenly over the first test split.

    Returns:
        Metrics over all identifiers: "found", the share of pairs whose document holds one;
        means over these of `Overlap`; "best_…", the same of the most probable identifier; and
        "random_precision", the answers' share of a document. Nothing for other systems, without
        gold, and for docids that are no text.
    """
    if not queries or model.paradigm != "generative" or model.searcher is None:
        return Findings()
    split = data.test_splits[0]
    table = spread(data.test_queries(split), queries)
    grades = data.judgements(split, table)
    pairs = [(query, d) for query in table["id"][:] for d, g in grades[query].items() if g > 0]
    gold = gold_tokens(data, split, pairs)
    if not gold:
        return Findings()
    rows = [_row(form, found) for form, found in _overlaps(model, data, table, gold).items()]
    if not rows[-1]["found"]:
        return Findings()
    # The end token, the last one, is no candidate.
    chance = fmean(float(answer[:-1].float().mean()) for answer, _ in gold.values())
    return Findings(_metrics(rows, chance), {"decoded_identifiers": rows})


def _overlaps(model: Any, data: Any, table: Any, gold: dict) -> dict[str, list[Overlap | None]]:
    """Of each form one value a pair with gold."""
    documents = _documents(data, {document for _, document in gold})
    decoded = _decoded(model, table)
    found: dict[str, list[Overlap | None]] = {form: [] for form in FORMS}
    for (query, name), sides in gold.items():
        covered = [occurrences(documents[name], one) for one in decoded[query]]
        covered = torch.stack(covered or [torch.zeros_like(sides[0])])
        found["best"].append(overlap(covered[0], *sides))
        found["all"].append(overlap(covered.any(0), *sides))
    return found


def _documents(data: Any, names: set[str]) -> dict[str, Tensor]:
    """(m,) int64 tokens of documents as they stand in a batch, the end token included."""
    rows = [row for row, name in enumerate(data.documents["id"][:]) if name in names]
    table = data.documents.select(rows)
    return {
        name: torch.tensor(cut(tokens, data.document_length, EOS_ID))
        for name, tokens in zip(table["id"][:], table["tokens"][:], strict=True)
    }


@torch.inference_mode()
def _decoded(model: Any, table: Any) -> dict[str, list[list[int]]]:
    """Of each query its identifiers without end tokens, the most probable first."""
    model.eval()
    decoded = {}
    for start in track(range(0, len(table), _SEARCHED), "decoding identifiers"):
        rows = table[start : start + _SEARCHED]
        found = model.search(rows["tokens"]).final
        for number, query in enumerate(rows["id"]):
            decoded[query] = [_without_end(tokens) for tokens, _ in found.of(number)]
    return decoded


def _without_end(tokens: list[int]) -> list[int]:
    return tokens[:-1] if tokens[-1:] == [EOS_ID] else tokens


def _row(form: str, overlaps: Sequence[Overlap | None]) -> Row:
    some = [one for one in overlaps if one is not None]
    means = [fmean(values) for values in zip(*some, strict=True)] if some else []
    row = {"identifiers": form, "pairs": len(overlaps), "found": len(some) / len(overlaps)}
    return row | dict(zip(Overlap._fields, means or [float("nan")] * 3, strict=True))


def _metrics(rows: Sequence[Row], chance: float) -> dict[str, float]:
    best, every = rows
    flat = {name: every[name] for name in ("found", *Overlap._fields)}
    if best["found"]:
        flat |= {f"best_{name}": best[name] for name in ("found", *Overlap._fields)}
    flat["random_precision"] = chance
    return {PREFIX + name: float(value) for name, value in flat.items()}
