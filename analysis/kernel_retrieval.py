"""Retrieval by kernelised relevance: one inner product a document (after gr_as_mvdr Eq. 25).

Lemma 5.2 makes the relevance a sum over document tokens of F(d_i), each against the one matrix
Σ_j F(q_j) of the query. But for the weights 1/p_i this is an inner product of a document's vector
and a query's, which a maximum inner product search could find: the retrieval that the paper leaves
open. p_i depends on the query, so its mean over a sample of queries replaces it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.evaluation import average_metrics, judge
from analysis.statistics import spread
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import pad
from gr_mvdr.evaluation.ranking import Ranking, tie_order
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

    @staticmethod
    def _flat(texts: TokenVectors, features: Tensor) -> Tensor:
        values = texts.vectors * texts.mask.unsqueeze(-1)
        return (values.transpose(1, 2) @ features).flatten(1)


def keys_of(texts: TokenVectors) -> Tensor:
    """(…, l) what the alignment is made of."""
    return texts.vectors if texts.keys is None else texts.keys


class Best:
    """The k best documents of each query, of documents that come in groups; ties as in `Ranking`.

    Args:
        k: documents a query; document_ids: of the whole corpus.
    """

    def __init__(self, k: int, document_ids: Sequence[str]):
        self.k, self._ids, self._scores, self._rows = k, document_ids, [], []
        order = torch.from_numpy(tie_order(document_ids))
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order))

    def add(self, scores: Tensor, rows: Sequence[int]) -> None:
        """Takes in scores (documents, queries) of the documents `rows`."""
        self._scores.append(scores.T)
        self._rows.append(torch.tensor(rows).expand(scores.shape[1], -1))
        scores, rows = torch.cat(self._scores, 1), torch.cat(self._rows, 1)
        by_id = self._place[rows].argsort(1)
        scores, rows = scores.gather(1, by_id), rows.gather(1, by_id)
        best = scores.argsort(dim=1, descending=True, stable=True)[:, : self.k]
        self._scores, self._rows = [scores.gather(1, best)], [rows.gather(1, best)]

    def results(self, query_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """Query id → {document id: score}."""
        rows, scores = (torch.cat(parts, 1).tolist() for parts in (self._rows, self._scores))
        return {
            query: {self._ids[row]: score for row, score in zip(*found, strict=True)}
            for query, *found in zip(query_ids, rows, scores, strict=True)
        }


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

    Document vectors come and go in small groups: none is kept. All documents are encoded once
    more, which is why `analysis.kernel.Kernel` leaves out large corpora.

    Args:
        documents, queries: column tables with `id` and `tokens`.
        sample: queries, whose mean normaliser replaces each query's own.
        feature_maps: as `retrieval_quality`. depth: documents a query.
    """
    (texts, names), (sampled, _) = (_encoded(model, table) for table in (queries, sample))
    searches: dict[str, Search] = {}
    for name, log_features in feature_maps(keys_of(texts).shape[-1]).items():
        searches[name] = _kernel(log_features, sampled, texts)
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


def _encoded(model: "MultiVector", queries: Table) -> tuple[TokenVectors, list[str]]:
    """Queries as one padded batch on the model's device, without salience, and their ids."""
    names, texts = zip(*model.encoded_queries(queries), strict=True)
    return _bare(stack(texts).to(model.device)), list(names)


def _encoded_documents(
    model: "MultiVector", documents: Table
) -> Iterator[tuple[list[int], TokenVectors]]:
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
