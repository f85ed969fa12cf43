"""The occurrences of a token as few vectors: k-means within each surface token (facts: NP)."""

import warnings

import numpy as np
import torch
from torch import Tensor


def cluster_rows(
    vectors: Tensor, tokens: Tensor, k: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """At most k rows a surface token: its occurrences, or their k-means if there are more.

    Args:
        vectors: (n, d) float, one an occurrence; tokens: (n,) int64, their surface tokens.
        k: most rows a token.
        seed: of the k-means (k-means++, one start).

    Returns:
        rows (R, d), each the mean of its occurrences, in the order of their tokens; row_tokens
        (R,) int64, ascending; row_of_occurrence (n,) int64.
    """
    order = tokens.argsort(stable=True)
    distinct, counts = tokens[order].unique_consecutive(return_counts=True)
    samples = vectors[order].cpu().numpy()
    cluster = torch.empty_like(order)
    cluster[order] = torch.from_numpy(_clusters(samples, counts.tolist(), k, seed)).to(order.device)
    # Numbers the clusters that have members, token by token.
    key = torch.searchsorted(distinct, tokens) * k + cluster
    key, row, members = key.unique(return_inverse=True, return_counts=True)
    sums = vectors.new_zeros(len(key), vectors.shape[1]).index_add(0, row, vectors)
    return sums / members.unsqueeze(1), distinct[key // k], row


def _clusters(samples: np.ndarray, counts: list[int], k: int, seed: int) -> np.ndarray:
    """(n,) int64, a sample's cluster 0 … k − 1 within its token; samples lie token by token."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    k_means = KMeans(k, n_init=1, random_state=seed)
    clusters, start = [np.empty(0, np.int64)], 0
    # One thread: several would add in the order in which they finish, another one each time.
    with threadpool_limits(1), warnings.catch_warnings():
        # Fewer distinct vectors than k are fewer rows.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for count in counts:
            own = samples[start : start + count]
            clusters.append(k_means.fit_predict(own) if count > k else np.arange(count))
            start += count
    return np.concatenate(clusters).astype(np.int64)
