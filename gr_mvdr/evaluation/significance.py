"""Is one system better than another, or only on these queries? (Smucker et al., CIKM 2007)."""

from collections.abc import Mapping, Sequence

import numpy as np

from gr_mvdr.evaluation.metrics import evaluate_queries
from gr_mvdr.evaluation.ranking import Ranking

PERMUTATIONS = 10_000
# Signs drawn at once: bounds the memory, 64 MB as float64.
_SIGNS = 2**23


def values_by_query(
    rankings: Sequence[Ranking], qrels: Mapping[str, Mapping[str, int]], metric: str
) -> np.ndarray:
    """A metric of each query, averaged over the rankings of several seeds.

    Args:
        rankings: one for each seed. qrels: the judgements of all of them.
        metric: a name, see `gr_mvdr.evaluation.metrics.KINDS`.

    Returns:
        (Q,) float64, in the order of `qrels`.
    """
    found = [evaluate_queries(ranking, qrels, [metric]) for ranking in rankings]
    return np.array([[values[query][metric] for query in qrels] for values in found]).mean(0)


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
