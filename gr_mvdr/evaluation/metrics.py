"""Retrieval metrics, named "kind@rank" (gr_as_mvdr §5.1; torchmetrics' values), and their tests.

Whether a difference is real says paired randomisation over queries (Smucker et al., CIKM 2007).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

METRICS = ("recall@1", "recall@10", "recall@100", "mrr@10", "ndcg@10")
# recall: the share of the relevant documents; success: is one of them there; mrr: 1 / rank of the
# first; ndcg: gain = grade, discount = log2 of rank + 1; precision: the share of the first k that
# is relevant; map: precision at each relevant document of the first k, over all relevant ones. All
# but ndcg are binary.
KINDS = ("recall", "success", "mrr", "ndcg", "precision", "map")
MACRO = "macro_"  # before a metric's name: the mean over groups of queries of each group's mean
# What ir_measures and ranx call them; the case of letters is ignored.
_OTHERS = {"r": "recall", "hit_rate": "success", "rr": "mrr", "p": "precision", "ap": "map"}
KNOWN = (
    "recall (R), success (hit_rate), mrr (RR), ndcg, precision (P), map (AP) @ a rank, such as "
    "recall@10 or nDCG@10"
)


def find_metric(name: str) -> str | None:
    """Our name of a metric, None of an unknown one: "mrr@10" of ir_measures' "RR@10"."""
    kind, _, rank = name.lower().partition("@")
    ours = f"{_OTHERS.get(kind, kind)}@{rank}"
    return ours if is_metric(ours) else None


def name_metric(name: str) -> str:
    """Our name of a metric, under which its values are stored, whatever the user calls it.

    Raises:
        ValueError: no such metric.
    """
    if (found := find_metric(name)) is None:
        raise ValueError(f"{name}: must be {KNOWN}")
    return found


def check_metrics(key: str, names: Sequence[str]) -> tuple[str, ...]:
    """The metrics of a list, by our names, each once; `key` is what the user typed it under.

    Raises:
        ValueError: no list, or a name that is no metric's.
    """
    if not names or isinstance(names, str):
        raise ValueError(f"{key}={names}: must be a list, such as [recall@1000]")
    try:
        return tuple(dict.fromkeys(map(name_metric, names)))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def rank_of(metric: str) -> int:
    """The deepest rank that a metric looks at: 10 of "mrr@10".

    Raises:
        ValueError: no such metric.
    """
    return int(name_metric(metric).partition("@")[2])


def is_metric(name: str) -> bool:
    """Whether a name is ours of a metric: "mrr@10", not "mrr@10_low"."""
    kind, _, rank = name.partition("@")
    return kind in KINDS and rank.isdecimal() and int(rank) > 0


@lru_cache(maxsize=2**18)  # many queries have the same pattern: one relevant document at rank r
def measure(metric: str, by_rank: tuple[int, ...], missed: tuple[int, ...]) -> float:
    """torchmetrics' value of one query."""
    import torch
    from torchmetrics.functional import retrieval

    rank = rank_of(metric)
    # Ranks are filled up with irrelevant documents, so that a missed one never enters a top k.
    # Scores are the ranks reversed (no ties); torchmetrics counts a score of 0 as not retrieved.
    depth = max(rank, len(by_rank))
    grade = torch.tensor(by_rank + (0,) * (depth - len(by_rank)) + missed)
    score = torch.cat([torch.arange(depth, 0, -1.0), torch.zeros(len(missed))])
    match metric.partition("@")[0]:
        case "recall":
            value = retrieval.retrieval_recall(score, grade > 0, top_k=rank)
        case "success":
            value = retrieval.retrieval_hit_rate(score, grade > 0, top_k=rank)
        case "mrr":
            value = retrieval.retrieval_reciprocal_rank(score, grade > 0, top_k=rank)
        case "precision":
            value = retrieval.retrieval_precision(score, grade > 0, top_k=rank)
        case "map":  # torchmetrics' is a mean over the relevant documents that were found
            value = retrieval.retrieval_average_precision(score, grade > 0, top_k=rank)
            value = value * retrieval.retrieval_recall(score, grade > 0, top_k=rank)
        case _:
            value = retrieval.retrieval_normalized_dcg(score, grade, top_k=rank)
    return float(value)


PERMUTATIONS = 10_000
# Signs drawn at once: bounds the memory, 64 MB as float64.
_SIGNS = 2**23


def randomisation_test(
    first: np.ndarray, second: np.ndarray, permutations: int = PERMUTATIONS, seed: int = 0
) -> float:
    """The two-sided p-value of Fisher's paired randomisation test.

    Were both systems the same, each query's two values could as well be exchanged: the p-value is
    how often random exchanges make the means differ at least as much as they do. The given
    pairing counts as one of them, so that no p-value is 0.

    Args:
        first, second: (Q,) values of the same queries under two systems.
        permutations: random exchanges. seed: of their draw.

    Returns:
        p in [1 / (permutations + 1), 1].

    Raises:
        ValueError: not the same number of queries, or none.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} queries: must be the same ones, ≥ 1")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    differences = differences[differences != 0]  # an exchange of equal values changes nothing
    # Sums that are equal on paper differ in their last bits.
    observed = abs(differences.sum()) - 1e-9
    rng, reached = np.random.default_rng(seed), 0
    at_once = max(1, _SIGNS // max(1, len(differences)))
    for start in range(0, permutations, at_once):
        shape = min(at_once, permutations - start), len(differences)
        signs = 2.0 * rng.integers(0, 2, shape, dtype=np.int8) - 1.0
        reached += int((np.abs(signs @ differences) >= observed).sum())
    return (reached + 1) / (permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests (1979): corrected p-values, in the given order.

    The k-th smallest of n is multiplied by n − k + 1, and none may be below a smaller one's.
    """
    corrected, reached = [0.0] * len(p_values), 0.0
    for place, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - place) * p_values[number]))
        corrected[number] = reached
    return corrected
