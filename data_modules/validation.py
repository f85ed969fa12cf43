"""What is searched while a system trains: queries of the validation split, and documents."""

from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset

from data_modules.collection import TokenColumn, find_rows, sample_rows
from gr_mvdr.options import Positive, Rate, Size, Text
from gr_mvdr.passages import document_ids

# The splits that validate where `data.validation_split` is auto, in this order.
FOUND = ("dev", "validation")
HELD_OUT = "held_out"  # the split of the training queries that are held out
# With fewer held-out queries, chance would choose the step: then nothing is held out.
LEAST_HELD_OUT = 20
_QUERIES = 50  # at least, if the split has as many: a small budget gives fewer validations
_RERANKED = 10  # documents of a query, at least


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """The options of `validation`: rankings of the validation split during training.

    Attributes:
        keep: the step that a run keeps: the best by `metric` (ties go to the earlier), or the last.
        metric: of a ranking.
        every: steps (a whole number) or epochs between two validations; None = an epoch, or as many
            as the budget asks for.
        budget: the tokens that a validation reads, at most, for each token of training since the
            validation before.
        queries: the largest number of queries.
        patience: validations without a better value after which training stops; None = never.
        hold_out: the share of the training queries that are held out, drawn by their ids, where no
            other split can validate. Their documents stay.
    """

    keep: Literal["best", "last"] = "best"
    metric: Text = "mrr@10"
    every: Size | Positive | None = None
    budget: Positive = 0.1
    queries: Size = 200
    patience: Size | None = None
    hold_out: Rate = 0.0


class ValidationSet(NamedTuple):
    """What every validation of a training searches.

    Attributes:
        queries: a sample of the split's queries.
        documents: the ids of the documents in the pool; None = all that training may see.
        candidates: query id → documents to rerank, for systems that read pairs; else None.
        epochs: the epochs between two validations.
    """

    queries: Dataset
    documents: list[str] | None
    candidates: dict[str, list[str]] | None
    epochs: float

    def table(self, data: Any) -> Dataset:
        """The documents, or passages, to index."""
        if self.documents is None:
            return data.documents.select(data.known_documents)
        ids = data.evaluation.passage_map.of(self.documents)
        return data.documents.select(find_rows(pa.chunked_array([ids]), data.documents))

    def describe(self, data: Any) -> str:
        """What is searched and how often, in a line."""
        known = len({*document_ids(data.documents.select(data.known_documents))})
        if self.candidates is not None:
            mean = sum(map(len, self.candidates.values())) / len(self.queries)
            over = f"{mean:.0f} candidates each"
        elif self.documents is None:
            over = f"all {known:,} documents"
        else:
            over = f"{len(self.documents):,} of {known:,} documents"
        unit, count = "epoch", f"{self.epochs:.3g}"
        if isinstance(data.validation.every, int):
            unit, count = "step", f"{data.validation.every:,}"
        every = unit if count == "1" else f"{count} {unit}s"
        queries = f"{len(self.queries):,} queries of {data.validation_split}"
        return f"{queries} over {over}, every {every}"


def choose_validation(
    data: Any,
    reads: Literal["documents", "pairs", "queries"],
    decoded: int = 0,
    negatives: int = 0,
) -> ValidationSet:
    """Chooses queries and documents so that a validation keeps to its budget of tokens.

    If all documents are too many, a pool holds every query's relevant documents, BM25's best and
    random ones, as many as the budget allows; it stays the same in all validations.

    Args:
        data: a `RetrievalDataModule` with a validation split.
        reads: what a search encodes: an index of documents, pairs of texts, or queries alone.
        decoded: the tokens that it generates for a query.
        negatives: further documents that training reads with each query.
    """
    options, split, epoch = data.validation, data.validation_split, data.epoch(0)
    every, documents = data.queries(split), data.documents.select(data.known_documents)
    query, document = _mean(every, data.query_length), _mean(documents, data.document_length)
    negatives = getattr(data.examples.negatives, "n", negatives)
    allowed = options.budget * (epoch.lengths.sum() + len(epoch) * negatives * document)
    least = {"documents": 2 * document, "pairs": _RERANKED * document, "queries": decoded}
    cost = query + least[reads]  # of a query
    if isinstance(options.every, int):
        epochs = options.every * data.batch_size / len(epoch)
    else:
        fitting = max(1, np.ceil(cost * min(_QUERIES, len(every)) / allowed))
        epochs = options.every or float(fitting)
    allowed *= epochs
    count = min(len(every), options.queries, max(_QUERIES, int(allowed / cost)))
    chosen = ValidationSet(sample_rows(every, count), None, None, epochs)
    # The documents that each query adds to the pool, or is reranked with.
    share = (allowed / count - query) / document
    if reads == "queries" or (reads == "documents" and len(documents) <= share * count):
        return chosen
    depth = max(_RERANKED, share) if reads == "pairs" else max(1, share / 2)
    depth = min(int(depth), data.candidates)
    found = data.evaluation.list_candidates(split, chosen.queries, depth)
    known = dict.fromkeys(document_ids(documents))
    candidates = {name: [d for d in own if d in known] for name, own in found.items()}
    if reads == "pairs":
        return chosen._replace(candidates=candidates)
    relevant = data.evaluation.relevant(split, chosen.queries).values()
    others = np.random.default_rng(0).permutation([*known]).tolist()
    pool = (d for d in chain(*relevant, *candidates.values(), others) if d in known)
    size = count * max(2, share * len(known) / len(documents))  # a document may have many passages
    return chosen._replace(documents=[*islice(dict.fromkeys(pool), int(size))])


def _mean(table: Dataset, longest: int) -> float:
    """Returns the mean number of tokens that a system reads of a text."""
    return float(TokenColumn(table).lengths.clip(max=longest).mean())
