"""Retrieval by kernelised relevance: one inner product a document (after gr_as_mvdr Eq. 25).

Lemma 5.2 makes the relevance a sum over document tokens of F(d_i), each against the one matrix
Σ_j F(q_j) of the query. But for the weights 1/p_i this is an inner product of a document's vector
and a query's, which a maximum inner product search could find: the retrieval that the paper leaves
open. p_i depends on the query, so its mean over a sample of queries stands in for it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from analysis.kernel import LogFeatures, row_features
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.token_vectors import TokenVectors


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
