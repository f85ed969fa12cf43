"""Retrieval by kernelised relevance: one inner product a document (after gr_as_mvdr Eq. 25).

Lemma 5.2 makes the relevance a sum over document tokens of F(d_i), each against the one matrix
Σ_j F(q_j) of the query. But for the weights 1/p_i this is an inner product of a document's vector
and a query's, which a maximum inner product search could find: the retrieval that the paper leaves
open. p_i depends on the query, so its mean over a sample of queries replaces it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.evaluation import average_metrics, judge
from analysis.statistics import spread
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import batch_by_length, pad
from gr_mvdr.evaluation.ranking import Ranking, best_places
from gr_mvdr.progress import track
from gr_mvdr.scoring import Scoring, all_pairs_relevance
from gr_mvdr.token_vectors import TokenVectors, stack
from models.base import Table

if TYPE_CHECKING:
    from data_modules.module import RetrievalDataModule
    from models.multi_vector import MultiVector

# Vectors (…, l) → log φ (…, m) of a feature map φ.
LogFeatures = Callable[[Tensor], Tensor]
# Documents (B, M, …) → (B documents, C queries) scores.
Search = Callable[[TokenVectors], Tensor]

EXACT = "exact"  # the name of the search by the softmax itself
DEPTH = 10  # documents that the metrics look at
QUALITY = ("mrr@10", "recall@10")
_SAMPLE = 256  # training queries whose mean normaliser replaces a query's own
# Documents at once: with 128 × 256 numbers each, 4 MB of vectors.
_BATCH = 32
# What the kernels estimate.
_SOFTMAX = Scoring(Softmax("document_to_query"))


class KernelVectors:
    """Φ(d) = Σ_i F(d_i) / p̂_i and Ψ(q) = Σ_j F(q_j), flattened; Φ(d)ᵀΨ(q) ranks documents.

    p̂_i = φ(d_i)ᵀ · mean over sampled queries of Σ_j φ(q_j). Ψ is scaled by a factor that is the
    query's own, which changes no ranking. With the query itself as the sample, Φ(d)ᵀΨ(q) is
    `analysis.kernel.kernel_relevance`. Salience takes no part.
    """

    def __init__(self, log_features: LogFeatures, sample: TokenVectors):
        """
        Args:
            log_features: log φ of the keys, see `analysis.kernel`.
            sample: queries (C, N, …).
        """
        self.log_features = log_features
        logarithms = log_features(keys_of(sample)[sample.mask])
        # A feature's scale moves from the queries' side to the documents': no product changes.
        self.shift = logarithms.amax(0)
        self.mass = (logarithms - self.shift).exp().sum(0) / len(sample)

    def documents(self, texts: TokenVectors) -> Tensor:
        """(B, M, …) documents → (B, k·m) Φ(d)."""
        features = row_features(self.log_features(keys_of(texts)) + self.shift)
        features = features / (features @ self.mass).unsqueeze(-1)  # 1/p̂_i
        return self._flat(texts, features)

    def queries(self, texts: TokenVectors) -> Tensor:
        """(C, N, …) queries → (C, k·m) Ψ(q)."""
        logarithms = self.log_features(keys_of(texts)) - self.shift
        logarithms = logarithms.masked_fill(~texts.mask.unsqueeze(-1), -torch.inf)
        return self._flat(texts, (logarithms - logarithms.amax((1, 2), keepdim=True)).exp())

    def search(self, queries: TokenVectors) -> Search:
        """Scores of documents by inner products with these queries."""
        asked = self.queries(queries)
        return lambda documents: self.documents(documents) @ asked.T

    @staticmethod
    def _flat(texts: TokenVectors, features: Tensor) -> Tensor:
        values = texts.vectors * texts.mask.unsqueeze(-1)
        return (values.transpose(1, 2) @ features).flatten(1)


def keys_of(texts: TokenVectors) -> Tensor:
    """(…, l) what the alignment is made of."""
    return texts.vectors if texts.keys is None else texts.keys


def row_features(logarithms: Tensor) -> Tensor:
    """(…, m) log φ → φ, each row scaled to a largest feature of 1."""
    return (logarithms - logarithms.amax(-1, keepdim=True)).exp()


def retrieval_quality(
    model: "MultiVector",
    data: "RetrievalDataModule",
    queries: int,
    feature_maps: Callable[[int], dict[str, LogFeatures]],
) -> dict[str, dict[str, float]]:
    """Feature map, or "exact" → the quality of searching the whole corpus by it.

    Args:
        queries: of the first test split, evenly spread.
        feature_maps: the keys' size → name → log φ.
    """
    split = data.test_splits[0]
    chosen = spread(data.test_queries(split), queries)
    sample = spread(data.queries(data.train_split), _SAMPLE)
    depth = DEPTH + data.drop_identical
    rankings = kernel_rankings(model, data.documents, chosen, sample, feature_maps, depth)
    found = {}
    for name, ranking in rankings.items():
        quality = average_metrics(judge(ranking, data, split, chosen, QUALITY))
        found[name] = {key: quality[key] for key in QUALITY} | {"queries": len(chosen)}
    return found


@torch.inference_mode()
def kernel_rankings(
    model: "MultiVector",
    documents: Table,
    queries: Table,
    sample: Table,
    feature_maps: Callable[[int], dict[str, LogFeatures]],
    depth: int = DEPTH,
) -> dict[str, Ranking]:
    """The best documents of each query by every feature map, and by the softmax itself ("exact").

    Document vectors come and go in small groups; only scores are kept. All documents are encoded
    once more, which is why `analysis.kernel.Kernel` leaves out large corpora.

    Args:
        documents, queries: column tables with `id` and `tokens`.
        sample: queries, whose mean normaliser replaces each query's own.
        feature_maps: as `retrieval_quality`. depth: documents a query.
    """
    (texts, names), (sampled, _) = (_encoded(model, table) for table in (queries, sample))
    searches: dict[str, Search] = {}
    for name, log_features in feature_maps(keys_of(texts).shape[-1]).items():
        searches[name] = KernelVectors(log_features, sampled).search(texts)
    searches[EXACT] = lambda found: all_pairs_relevance(found, texts, _SOFTMAX)
    scores: dict[str, list[Tensor]] = {name: [] for name in searches}
    ids, all_ids = [], documents["id"][:]
    for rows, found in _encoded_documents(model, documents):
        ids += [all_ids[row] for row in rows]
        for name, search in searches.items():
            scores[name].append(search(found).double().cpu())
    rankings = {}
    for name, parts in scores.items():
        results = {}
        for query, column in zip(names, torch.cat(parts).numpy().T, strict=True):
            best = best_places(column, depth, ids.__getitem__)
            results[query] = {ids[place]: float(column[place]) for place in best}
        rankings[name] = Ranking(results)
    return rankings


def _encoded(model: "MultiVector", queries: Table) -> tuple[TokenVectors, list[str]]:
    """Queries as one padded batch on the model's device, without salience, and their ids."""
    names, texts = zip(*model.encoded_queries(queries), strict=True)
    return replace(stack(texts).to(model.device), salience=None), list(names)


def _encoded_documents(
    model: "MultiVector", documents: Table
) -> Iterator[tuple[list[int], TokenVectors]]:
    """Rows of documents of like length, and their vectors."""
    tokens = [model.cut_document(text) for text in documents["tokens"]]
    for rows in track(batch_by_length([*map(len, tokens)], _BATCH), "searching by kernels"):
        ids, mask = (part.to(model.device) for part in pad([tokens[row] for row in rows]))
        yield rows, replace(model.encode_documents(ids, mask), salience=None)
