"""Searches a corpus by kernelised relevance, and exactly by what that estimates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from analysis.experiments.kernel_retrieval import Best, KernelVectors, keys_of
from analysis.kernel import LogFeatures, feature_maps
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors, stack

# Documents (B, M, …) → (B documents, C queries) scores.
Search = Callable[[TokenVectors], Tensor]

EXACT = "exact"
DEPTH = 10  # documents that the metrics look at
# Documents at once: with 128 × 256 numbers each, 4 MB of vectors.
_BATCH = 32
# What the kernels estimate.
_SOFTMAX = Scoring(Softmax("document_to_query"))


@torch.inference_mode()
def kernel_rankings(
    model: Any,
    documents: Any,
    queries: Any,
    sample: Any,
    features: Sequence[int],
    depth: int = DEPTH,
) -> dict[str, Ranking]:
    """The best documents of each query by every feature map, and by the softmax itself ("exact").

    Document vectors come and go in small groups: none is kept. All documents are encoded once
    more, which is why `measure_kernel` leaves out large corpora.

    Args:
        model: a multi-vector system.
        documents, queries: column tables with `id` and `tokens`.
        sample: queries, whose mean normaliser stands in for each query's own.
        features: numbers of random features.
        depth: documents a query.
    """
    (texts, names), (sampled, _) = (_encoded(model, table) for table in (queries, sample))
    maps = feature_maps(keys_of(texts).shape[-1], features)
    searches: dict[str, Search] = {
        name: _kernel(log_features, sampled, texts) for name, log_features in maps.items()
    }
    searches[EXACT] = lambda found: all_pairs_relevance(found, texts, _SOFTMAX)
    best = {name: Best(depth, documents["id"][:]) for name in searches}
    for rows, found in _encoded_documents(model, documents):
        for name, search in searches.items():
            best[name].add(search(found).cpu(), rows)
    return {name: Ranking(kept.results(names)) for name, kept in best.items()}


def _kernel(log_features: LogFeatures, sample: TokenVectors, queries: TokenVectors) -> Search:
    """Inner products of kernel vectors."""
    vectors = KernelVectors(log_features, sample)
    asked = vectors.queries(queries)
    return lambda documents: vectors.documents(documents) @ asked.T


def _encoded(model: Any, queries: Any) -> tuple[TokenVectors, list[str]]:
    """Queries as one padded batch on the model's device, without salience, and their ids."""
    names, texts = zip(*model.encoded_queries(queries), strict=True)
    return _bare(stack(texts).to(model.device)), list(names)


def _encoded_documents(model: Any, documents: Any) -> Iterator[tuple[list[int], TokenVectors]]:
    """Rows of documents of like length, and their vectors."""
    tokens = [model.cut_document(text) for text in documents["tokens"]]
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
    starts = range(0, len(order), _BATCH)
    for start in track(starts, "searching by kernels", total=len(starts)):
        rows = order[start : start + _BATCH]
        ids, mask = (part.to(model.device) for part in pad([tokens[row] for row in rows]))
        yield rows, _bare(model.encode_documents(ids, mask))


def _bare(texts: TokenVectors) -> TokenVectors:
    return replace(texts, salience=None)
