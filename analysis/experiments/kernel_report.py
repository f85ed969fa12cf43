"""How well a kernel stands in for the alignment, in relevance and in retrieval (Lemma 5.2).

Σ S ⊙ softmax over query tokens, as it is and kernelised: by elu + 1, for the paper's elu
(`analysis.kernel`), and by positive random features. A multi-vector system's own alignment may be
another; here it has the softmax of the lemma, and no salience.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings
from analysis.evaluation import average_metrics, judge
from analysis.experiments.kernel_figure import caption, kernel_curves
from analysis.experiments.kernel_search import DEPTH, kernel_rankings
from analysis.figures import GalleryEntry
from analysis.kernel import (
    LogFeatures,
    feature_maps,
    kernel_relevance,
    softmax_relevance,
    squared_key_norm,
)
from analysis.statistics import spearman, spread
from analysis.tables import Row
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Factors

QUALITY = ("mrr@10", "recall@10")
RETRIEVING, PARADIGMS = "multi_vector", ("multi_vector", "generative")
# Pairs at once, and the training queries whose mean normaliser stands in for a query's own.
_BATCH, _SAMPLE = 8, 256


@part("experiment")
def measure_kernel(
    model: Any,
    data: Any,
    pairs: int,
    features: Sequence[int] = (16, 64, 256, 1024),
    retrieval_queries: int = 0,
    retrieval_features: Sequence[int] = (16, 64, 256),
    most_documents: int = 20_000,
) -> Findings:
    """Error and rank correlation of kernelised relevance, and retrieval by it.

    Only a multi-vector system retrieves: a generative one's document vectors depend on the query.

    Args:
        model: a system with `factors`; data: a `RetrievalDataModule`.
        pairs: how many test pairs of the first test split.
        features: numbers of random features.
        retrieval_queries: test queries, evenly spread, that search the whole corpus; 0 = none.
        retrieval_features: as `features`, for retrieval.
        most_documents: a larger corpus is not searched, as it would be encoded once more; the
            estimates stay.
    """
    if model.paradigm not in PARADIGMS or pairs < 1:
        return Findings()
    model.eval()
    estimates = _estimates(model, data, pairs, features)
    if not len(estimates):
        return Findings()
    rows = {name: {"features": name} | values for name, values in estimates.values().items()}
    searchable = model.paradigm == RETRIEVING and len(data.documents) <= most_documents
    if searchable and retrieval_queries:
        for name, values in _retrieval(model, data, retrieval_queries, retrieval_features).items():
            rows[name] = rows.get(name, {"features": name}) | values
    table, size = list(rows.values()), estimates.key_norm
    entry = GalleryEntry("kernel", "Kernelised relevance", caption(size))
    figures = [(kernel_curves(table), entry)]
    return Findings(_metrics(table, size), {"kernel": table}, figures)


class Estimates:
    """True and kernelised relevance of pairs, batch by batch.

    Args:
        features: numbers of random features.
    """

    def __init__(self, features: Sequence[int]):
        self.features = features
        self.maps: dict[str, LogFeatures] = {}
        self._truth: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._found: dict[str, list[Tensor]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._truth))

    def update(self, factors: Factors) -> None:
        """Takes in B pairs."""
        if not self.maps:
            self.maps = feature_maps(factors.query_keys.shape[-1], self.features)
        self._truth.append(softmax_relevance(factors).double().cpu())
        self._norms.append(squared_key_norm(factors).cpu())
        for name, log_features in self.maps.items():
            estimate = kernel_relevance(factors, log_features).double().cpu()
            self._found.setdefault(name, []).append(estimate)

    @property
    def key_norm(self) -> float:
        """Mean over pairs of ‖d_i + q_j‖²."""
        return float(torch.cat(self._norms).mean())

    def values(self) -> dict[str, Row]:
        """Feature map → its `error` ‖estimate − truth‖ / ‖truth‖ over pairs, `rank_correlation`."""
        truth = torch.cat(self._truth)
        found = {name: torch.cat(parts) for name, parts in self._found.items()}
        return {
            name: {
                "error": float((estimate - truth).norm() / truth.norm()),
                "rank_correlation": spearman(estimate, truth),
                "pairs": len(truth),
            }
            for name, estimate in found.items()
        }


@torch.inference_mode()
def _estimates(model: Any, data: Any, pairs: int, features: Sequence[int]) -> Estimates:
    split, estimates = data.test_splits[0], Estimates(features)
    _, batches = data.test_pairs(split, pairs, batch_size=_BATCH, covers=model.covers)
    for batch in track(batches, "kernelising pairs"):
        estimates.update(model.factors(batch.to(model.device)))
    return estimates


def _retrieval(
    model: Any, data: Any, queries: int, features: Sequence[int]
) -> dict[str, Mapping[str, float]]:
    """Feature map, or "exact" → the quality of searching the corpus by it."""
    split = data.test_splits[0]
    chosen = spread(data.test_queries(split), queries)
    sample = spread(data.queries(data.train_split), _SAMPLE)
    depth = DEPTH + data.drop_identical
    rankings = kernel_rankings(model, data.documents, chosen, sample, features, depth)
    found = {}
    for name, ranking in rankings.items():
        quality = average_metrics(judge(ranking, data, split, chosen, QUALITY))
        found[name] = {key: quality[key] for key in QUALITY} | {"queries": len(chosen)}
    return found


def _metrics(rows: Sequence[Row], size: float) -> dict[str, float]:
    flat = {"analysis/kernel/squared_key_norm": size}
    for row in rows:
        name = row["features"]
        part = f"features_{name}" if name.isdigit() else name
        for key in ("error", "rank_correlation", "mrr@10"):
            flat[f"analysis/kernel/{part}/{key}"] = row.get(key, float("nan"))
    return {key: value for key, value in flat.items() if isfinite(value)}
