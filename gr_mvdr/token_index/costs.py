"""The costs of scoring: floating-point operations as the papers count them.

A FLOP is one addition, multiplication, comparison, exponential or division; a multiply-add is two
FLOPs, as in XTR's Appendix B. MVA's Tables 5 and 6 count a multiply-add as one: halve the values
here to compare.
"""

from torch import Tensor

from gr_mvdr.token_vectors import TokenVectors


def relevance_cost(query: TokenVectors, counts: Tensor, heads: int = 1) -> tuple[int, float]:
    """Counts tokens and operations for scoring documents by all their tokens.

    Operations are counted as in xtr App. B or, if a query has keys, as in mva §2.1.

    Args:
        query: (N, …) without padding.
        counts: (C,) the number of tokens of each document.
    """
    tokens, sizes = int(counts.sum()), (len(query), query.vectors.shape[1])
    mean = tokens / max(1, len(counts))
    if query.keys is None:
        return tokens, len(counts) * multi_vector_joint_flops(sizes[0], mean, sizes[1])
    return tokens, len(counts) * mva_joint_flops(sizes[0], mean, sizes[1], heads)


def multi_vector_joint_flops(
    query_tokens: float, document_tokens: float, dimension: float
) -> float:
    """Operations for one pair under sum-of-max: n (2 m d + m + 1) (xtr App. B).

    These are 2 n m d for S, n m for the maxima, and n for their sum. A single-vector system has
    n = m = 1. A search scores C candidates this way, at worst C = n k', which gives
    n² k' (2 m̄ d + m̄ + 1) of xtr Table 1.

    Args:
        query_tokens: n.
        document_tokens: m.
        dimension: d, the size of a vector.
    """
    n, m, d = query_tokens, document_tokens, dimension
    return n * (2 * m * d + m + 1)


def mva_joint_flops(
    query_tokens: float, document_tokens: float, dimension: float, heads: int = 1
) -> float:
    """Operations for one pair under attention with H heads: n (m (4 h + 7 H) + 1) (mva §2.1).

    These are 2 n m h for the products of the keys and 2 n m h for S of the values; in each head,
    n m for each of the softmax's maximum, difference, exponential, sum and quotient, and 2 n m for
    Σ S A; and n for the mean. The projections belong to the encoders and are not counted.

    Half of this, for 1,000 documents and the 7 query vectors of MVA's data (a [CLS] and 6 tokens),
    is 127, 22 and 7.6 MFLOPs; MVA's Table 5 says 130, 25 and 8.

    Args:
        query_tokens: n.
        document_tokens: m, after pooling.
        dimension: h, the size of a vector, all heads together.
        heads: H.
    """
    n, m, h = query_tokens, document_tokens, dimension
    return n * (m * (4 * h + 7 * heads) + 1)


def transformer_flops(
    tokens: float, layers: int, d_model: int, d_ff: int, d_attention: int, gated: bool = False
) -> float:
    """Operations for one pass of a transformer encoder over a text of L tokens.

    A layer counts 8 L d_model d_attention for the four projections of attention, 4 L² d_attention
    for QKᵀ and AV, and 4 L d_model d_ff for the feed-forward's two matrices (6 instead of 4 for the
    three matrices of a gated one). Not counted are embeddings, norms, biases, softmax, activations
    and residual sums: below 1 % in T5-base.

    Half of this, for BERT-base, 128 tokens and 1,000 documents, is 11,170,000 MFLOPs; MVA's Table 5
    says 11,000,000.

    Args:
        tokens: L.
        d_ff: inner size of the feed-forward.
        d_attention: number of heads times the size of a head.
        gated: whether the feed-forward is T5 v1.1's, with a third matrix.
    """
    attention = 8 * tokens * d_model * d_attention + 4 * tokens**2 * d_attention
    feed_forward = (6 if gated else 4) * tokens * d_model * d_ff
    return layers * (attention + feed_forward)


def xtr_scoring_flops(query_tokens: float, candidates: float, retrieved_tokens: float) -> float:
    """Operations for scoring by imputed relevance, for one query: n C (r̄ + 1) (xtr App. B).

    For each candidate, these are n r̄ for the maxima and n for their mean. At worst C = n k', which
    gives n² k' (r̄ + 1) of xtr Table 1.

    Args:
        query_tokens: n.
        candidates: C, the number of documents that are scored.
        retrieved_tokens: r̄, the mean number of retrieved tokens of a candidate.
    """
    return query_tokens * candidates * (retrieved_tokens + 1)
