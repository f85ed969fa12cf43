"""Kernelised relevance: Σ S ⊙ softmax as inner products of features (gr_as_mvdr Lemma 5.2, App. C).

With a feature map φ for which φ(x)ᵀφ(y) ≈ exp(xᵀy), with F(x) = value φ(key)ᵀ and
p_i = Σ_j φ(d_i)ᵀφ(q_j) (Eq. 25):

    rel(d, q) = Σ_ij d_iᵀ q_j softmax(d_iᵀ Q)_j ≈ Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j))

No document token meets a query token in it. Feature maps here answer log φ: features of long
vectors are too large or too small for any float, but a factor that a document token's features
share cancels in its row, and one that a feature has on one side cancels against its inverse on the
other. So every row is scaled to a largest feature of 1, and p_i ≥ 1.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gr_mvdr.alignment import Softmax
from gr_mvdr.relevance import Factors, relevance, similarity

# Vectors (…, l) → log φ (…, m).
LogFeatures = Callable[[Tensor], Tensor]

# Names of feature maps; random ones are named after their number.
ELU, UNIFORM = "elu", "uniform"


def log_elu_features(vectors: Tensor) -> Tensor:
    """(…, l) log φ of φ = elu + 1, one feature a dimension.

    The paper writes φ = elu(·) (Lemma 5.2), which is negative at negative numbers: p_i of Eq. 25
    could be zero or negative. It is elu + 1 that is positive.
    """
    return torch.where(vectors > 0, vectors.clamp(min=0).log1p(), vectors)


def log_uniform_features(vectors: Tensor) -> Tensor:
    """(…, 1) log φ, φ = 1: every query token weighs the same. How little a softmax may matter."""
    return torch.zeros_like(vectors[..., :1])


def log_random_features(vectors: Tensor, projections: Tensor) -> Tensor:
    """(…, m) log φ of positive random features, φ_r(x) = exp(ω_rᵀx − ‖x‖²/2) / √m.

    E φ(x)ᵀφ(y) = exp(xᵀy), with a relative variance of (exp ‖x + y‖² − 1) / m for independent ω
    (Choromanski et al., *Rethinking Attention with Performers*, Lemma 2).

    Args:
        vectors: (…, l); projections: (m, l) ω.
    """
    half_norm = vectors.square().sum(-1, keepdim=True) / 2
    count = torch.tensor(len(projections), dtype=vectors.dtype, device=vectors.device)
    return vectors @ projections.to(vectors).T - half_norm - count.log() / 2


def orthogonal_projections(count: int, size: int, seed: int) -> Tensor:
    """(count, size) fp64 Gaussian ω, orthogonal to one another within blocks of `size` rows.

    Each row on its own is N(0, I); that they are orthogonal lowers the variance (Choromanski et
    al., Theorem 2).
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // size)
    gaussian = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
    directions, upper = torch.linalg.qr(gaussian)
    # With the signs of R's diagonal the directions are uniform.
    directions = directions * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(count, size, generator=generator, dtype=torch.float64).norm(dim=-1)
    return directions.flatten(0, 1)[:count] * lengths.unsqueeze(-1)


def feature_maps(size: int, features: Sequence[int], seed: int = 0) -> dict[str, LogFeatures]:
    """Name → log φ of vectors of `size`: one constant, elu + 1, so many random features each."""
    maps = {
        str(count): partial(
            log_random_features, projections=orthogonal_projections(count, size, seed)
        )
        for count in features
    }
    return {UNIFORM: log_uniform_features, ELU: log_elu_features} | maps


def kernel_relevance(factors: Factors, log_features: LogFeatures) -> Tensor:
    """(B,) Σ_h Σ_i 1/p_i tr(F(d_i)ᵀ Σ_j F(q_j)), heads summed (Lemma 5.2, Eq. 25).

    Args:
        factors: of B pairs; padding may hold anything finite.
        log_features: log φ of the keys.
    """
    real = factors.query_mask[:, None, :, None]
    queries = log_features(factors.query_keys).masked_fill(~real, -torch.inf)
    shift = queries.amax(-2, keepdim=True)  # (B, H, 1, m), the same for all tokens of the query
    queries = (queries - shift).exp()
    documents = row_features(log_features(factors.document_keys) + shift)
    total = factors.query_values.transpose(-1, -2) @ queries  # Σ_j F(q_j), (B, H, k, m)
    rows = ((factors.document_values @ total) * documents).sum(-1)
    rows = rows / (documents * queries.sum(-2, keepdim=True)).sum(-1)
    return (rows * factors.document_mask[:, None]).sum((1, 2))


def row_features(logarithms: Tensor) -> Tensor:
    """(…, m) log φ → φ, each row scaled to a largest feature of 1."""
    return (logarithms - logarithms.amax(-1, keepdim=True)).exp()


def softmax_relevance(factors: Factors) -> Tensor:
    """(B,) what is estimated: Σ S ⊙ softmax of keys over query tokens, heads summed (Eq. 16)."""
    masks = factors.document_mask[:, None], factors.query_mask[:, None]
    weights = Softmax("document_to_query")(
        similarity(factors.document_keys, factors.query_keys), *masks
    )
    matrix = similarity(factors.document_values, factors.query_values)
    return relevance(matrix, weights).sum(1)


def squared_key_norm(factors: Factors) -> Tensor:
    """(B,) mean of ‖d_i + q_j‖² over the pair's keys and heads: sets how many features it takes."""
    documents, queries = factors.document_keys.double(), factors.query_keys.double()
    squares = documents.square().sum(-1)[..., :, None] + queries.square().sum(-1)[..., None, :]
    squares = squares + 2 * documents @ queries.transpose(-1, -2)
    real = (factors.document_mask[:, :, None] & factors.query_mask[:, None, :])[:, None]
    heads = squares.shape[1]
    return (squares * real).sum((1, 2, 3)) / (heads * real.sum((1, 2, 3)))
