"""Retrieval metrics, named "kind@rank" (gr_as_mvdr §5.1); torchmetrics computes all but ndcg."""

from functools import lru_cache
from math import fsum, log2

METRICS = ("recall@1", "recall@10", "recall@100", "mrr@10", "ndcg@10")
# Our kinds → torchmetrics' names. recall: the share of relevant documents that are retrieved;
# success: 1 if any relevant document is retrieved; mrr: 1 / the rank of the first relevant
# document; ndcg: gain = grade, discount = log2(rank + 1); precision: the share of the first k
# documents that are relevant; map: the mean over relevant documents of the precision at their
# ranks. All but ndcg use binary relevance.
_TORCHMETRICS = {
    "recall": "recall",
    "success": "hit_rate",
    "mrr": "reciprocal_rank",
    "precision": "precision",
    "map": "average_precision",
}
KINDS = (*_TORCHMETRICS, "ndcg")
# Names of ir_measures and ranx → our kinds; letter case is ignored.
_OTHERS = {"r": "recall", "hit_rate": "success", "rr": "mrr", "p": "precision", "ap": "map"}
KNOWN = (
    "recall (R), success (hit_rate), mrr (RR), ndcg, precision (P), map (AP) @ a rank, such as "
    "recall@10 or nDCG@10"
)


def find_metric(name: str) -> str | None:
    """Returns our name of a metric: "mrr@10" for ir_measures' "RR@10"; None if it is unknown."""
    kind, _, rank = name.lower().partition("@")
    kind = _OTHERS.get(kind, kind)
    known = kind in KINDS and rank.isdecimal() and int(rank) > 0
    return f"{kind}@{rank}" if known else None


def name_metric(name: str) -> str:
    """Returns our name of a metric, under which its values are stored.

    Raises:
        ValueError: no such metric.
    """
    if (ours := find_metric(name)) is None:
        raise ValueError(f"{name}: must be {KNOWN}")
    return ours


def split_metric(name: str) -> tuple[str, int]:
    """Returns a metric's kind and the deepest rank that it reads: "mrr", 10.

    Raises:
        ValueError: no such metric.
    """
    kind, _, rank = name_metric(name).partition("@")
    return kind, int(rank)


def rank_of(metric: str) -> int:
    """Returns the deepest rank that a metric reads: 10 for "mrr@10"; ValueError if unknown."""
    return split_metric(metric)[1]


@lru_cache(maxsize=2**18)  # many queries have the same pattern: one relevant document at rank r
def measure(metric: str, by_rank: tuple[int, ...], missed: tuple[int, ...]) -> float:
    """Computes a metric of one query.

    Args:
        by_rank: the grade at each rank, 0 = not relevant.
        missed: the grades of relevant documents that were not retrieved.
    """
    import torch
    from torchmetrics.functional import retrieval

    kind, rank = split_metric(metric)
    if kind == "ndcg":  # torchmetrics sums in fp32: a perfect ranking would not be exactly 1
        gain, ideal = (
            fsum(grade / log2(place + 1) for place, grade in enumerate(grades[:rank], start=1))
            for grades in (by_rank, sorted(by_rank + missed, reverse=True))
        )
        return gain / ideal if ideal else 0.0
    # Irrelevant documents fill the ranks, so that a missed document never enters the top k.
    # Scores are reversed ranks (no ties); torchmetrics counts a score of 0 as not retrieved.
    depth = max(rank, len(by_rank))
    grade = torch.tensor(by_rank + (0,) * (depth - len(by_rank)) + missed)
    score = torch.cat([torch.arange(depth, 0, -1.0), torch.zeros(len(missed))])
    function = getattr(retrieval, f"retrieval_{_TORCHMETRICS[kind]}")
    value = function(score, grade > 0, top_k=rank)
    if kind == "map":  # torchmetrics averages only over the relevant documents retrieved
        value = value * retrieval.retrieval_recall(score, grade > 0, top_k=rank)
    return float(value)
