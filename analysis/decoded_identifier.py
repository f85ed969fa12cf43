"""Does a generative system generate the answer? The decoded identifiers' tokens against the gold.

Where an identifier occurs in the relevant document's own tokens (an n-gram, a title), its tokens
can be compared with those that answer the question. Docids that are not text occur nowhere.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.gold import find_gold_tokens
from analysis.statistics import spread
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track

_SEARCHED = 16  # queries at once
# What is compared with the gold: the most probable identifier, or all that the search ended with.
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


@part("analysis")
class DecodedIdentifiers(Analysis):
    """Searches with test queries and looks for what was generated in the relevant documents.

    The identifiers are the sequences that the search ended with, not the n-grams on their way.

    Args:
        queries: test queries at most, spread evenly over the first test split.
    """

    name = "gold"
    metrics = (
        Metric("found", "The share of pairs whose document holds a generated identifier."),
        Metric("precision", "The share of the chosen tokens that answer the question."),
        Metric(
            "possible_precision",
            "The share of the chosen tokens that answer the question or state what it gives.",
        ),
        Metric("best_found", "The share of pairs whose document holds the best identifier."),
        Metric(
            "best_precision",
            "Of the most probable identifier alone: the share of its tokens that answer the "
            "question.",
        ),
        Metric(
            "best_possible_precision",
            "Of the most probable identifier alone: the share of its tokens that answer the "
            "question or state what it gives.",
        ),
        Metric(
            "best_recall",
            "Of the most probable identifier alone: the share of the answer that it holds.",
        ),
    )
    words: ClassVar[dict[str, str]] = {
        "decoded": "The tokens of what the system generated, against those that answer the "
        "question."
    }

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "names", None) is not None

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data = subject.model, subject.data
        self.split = self.data.test_splits[0]
        self.queries = spread(self.data.test_queries(self.split), queries)

    def finish(self) -> Findings:
        """Metrics "decoded/…" over all identifiers: "found", the share of pairs whose document
        holds one; means over these of `Overlap`; "best_…", the same of the most probable
        identifier; and "random_precision", the answers' share of a document. Nothing without gold,
        and for docids that are no text.
        """
        grades = self.data.judgements(self.split, self.queries)
        queries = self.queries["id"][:]
        pairs = [(query, d) for query in queries for d, grade in grades[query].items() if grade > 0]
        gold = find_gold_tokens(self.data, self.split, pairs)
        if not gold:
            return Findings()
        rows = [_row(form, found) for form, found in self._overlaps(gold).items()]
        best, every = rows
        if not every["found"]:
            return Findings()
        names = ("found", *Overlap._fields)
        flat = {name: every[name] for name in names}
        if best["found"]:
            flat |= {f"best_{name}": best[name] for name in names}
        # The tokens around a text are no candidates.
        around = len(self.data.template.read_document((), 0))
        sizes = [(int(answer.sum()), len(answer) - around) for answer, _ in gold.values()]
        flat["random_precision"] = fmean(answers / tokens for answers, tokens in sizes)
        return Findings(named(f"{self.name}/decoded", flat), {"decoded_identifiers": rows})

    def _overlaps(self, gold: dict) -> dict[str, list[Overlap | None]]:
        """Of each form one value a pair with gold."""
        documents = self._documents({document for _, document in gold})
        decoded = self._decoded()
        found: dict[str, list[Overlap | None]] = {form: [] for form in FORMS}
        for (query, name), sides in gold.items():
            covered = [occurrences(documents[name], one) for one in decoded[query]]
            covered = torch.stack(covered or [torch.zeros_like(sides[0])])
            found["best"].append(overlap(covered[0], *sides))
            found["all"].append(overlap(covered.any(0), *sides))
        return found

    def _documents(self, names: set[str]) -> dict[str, Tensor]:
        """(m,) int64 tokens of documents as they are in a batch, those around included."""
        table, length = self.data.documents, self.data.document_length
        table = table.select([row for row, name in enumerate(table["id"][:]) if name in names])
        rows = zip(table["id"][:], table["tokens"][:], strict=True)
        read = self.data.template.read_document
        return {name: torch.tensor(read(tokens, length)) for name, tokens in rows}

    @torch.inference_mode()
    def _decoded(self) -> dict[str, list[list[int]]]:
        """Of each query its identifiers without end tokens, the most probable first."""
        model, decoded = self.model.eval(), {}
        around = {*model.template.target, model.template.stop}
        for start in track(range(0, len(self.queries), _SEARCHED), "decoding identifiers"):
            rows = self.queries[start : start + _SEARCHED]
            found = model.search(rows["tokens"], texts=rows["text"]).final
            for number, query in enumerate(rows["id"]):
                outputs = [tokens for tokens, _ in found.of(number)]
                decoded[query] = [[t for t in tokens if t not in around] for tokens in outputs]
        return decoded


def _row(form: str, overlaps: Sequence[Overlap | None]) -> Row:
    some = [one for one in overlaps if one is not None]
    means = [fmean(values) for values in zip(*some, strict=True)] or [float("nan")] * 3
    row = {"identifiers": form, "pairs": len(overlaps), "found": len(some) / len(overlaps)}
    return row | dict(zip(Overlap._fields, means, strict=True))
