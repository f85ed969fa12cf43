"""rel(d, q) = 1/Z · Σ S ⊙ A: Eq. 1 of both *Generative Retrieval as MVDR* and ALIGNER.

The functions compute the equation. The classes hold its tensors for given pairs: what a system
returns and every analysis reads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normaliser = Literal["none", "alignment", "query_tokens", "non_zero"]


def similarity(documents: Tensor, queries: Tensor) -> Tensor:
    """S = Dᵀ Q, the similarity of every document token to every query token (gr_as_mvdr Eq. 1).

    Args:
        documents: (..., M, d) token vectors, any float dtype.
        queries: (..., N, d) token vectors of the same dtype; leading axes broadcast.

    Returns:
        (..., M, N) fp32 (fp64 stays fp64).
    """
    return at_least_float32(documents @ queries.transpose(-1, -2))


def relevance(similarity: Tensor, alignment: Tensor, normalise: bool = False) -> Tensor:
    """rel(d, q) = 1/Z · Σ_ij S_ij A_ij (gr_as_mvdr Eq. 1, aligner Eq. 1).

    Padding needs no mask here: every alignment is zero there.

    Args:
        similarity: (..., M, N).
        alignment: (..., M, N).
        normalise: divide by Z = Σ_ij A_ij; a pair with Z = 0 has relevance 0.

    Returns:
        (...) fp32 (fp64 stays fp64), the sum over both token axes.
    """
    total = at_least_float32(similarity * alignment).sum((-2, -1))
    return divide(total, at_least_float32(alignment).sum((-2, -1))) if normalise else total


def divide(total: Tensor, normaliser: Tensor) -> Tensor:
    """total / Z, and 0 where Z = 0, with finite gradients."""
    # The second `where` keeps the gradient finite: 0/0 makes it NaN even where it is discarded.
    some = normaliser > 0
    return torch.where(some, total, 0.0) / torch.where(some, normaliser, 1.0)


def normaliser(
    name: Normaliser, similarity: Tensor, alignment: Tensor, query_mask: Tensor
) -> Tensor:
    """Z of Eq. 1, by name.

    Args:
        name: "none": 1 (ColBERT). "alignment": Σ A (aligner Eq. 1), which under `InBatchTopK` is
            the number of query tokens that retrieved a token of the document (xtr §3.1).
            "query_tokens": n (mva §2.1, xtr Eq. 1 and 4). "non_zero": the number of query tokens
            with Σ_i S_ij A_ij ≠ 0 (xtr Appendix A).
        similarity, alignment: (..., M, N).
        query_mask: (..., N) bool.

    Returns:
        (...) fp32.
    """
    if name == "alignment":
        return at_least_float32(alignment).sum((-2, -1))
    if name == "non_zero":
        return at_least_float32((similarity * alignment).sum(-2) != 0).sum(-1)
    ones = similarity.new_ones(())
    z = query_mask.sum(-1) * ones if name == "query_tokens" else ones
    return z.expand(similarity.shape[:-2])


def at_least_float32(tensor: Tensor) -> Tensor:
    """Converts bf16, fp16, integers and booleans to fp32, in which sums are safe; keeps fp64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass
class PairAlignment:
    """The tensors of Eq. 1 for B pairs: what `model.align(batch)` returns and all analysis reads.

    Attributes:
        similarity, alignment: (B, H, M, N) fp32, zero at padding. H = 1 for multi-vector and
            lexical systems (MVA may have more); for generative systems, H counts the heads of one
            decoder layer.
        normaliser: (B,) Z.
        relevance: (B,) Σ_hij S A / Z.
        score: (B,) the score that the system ranks by.
        document_ids, document_mask: (B, M).
        query_ids, query_mask: (B, N).
    """

    similarity: Tensor
    alignment: Tensor
    normaliser: Tensor
    relevance: Tensor
    score: Tensor
    document_ids: Tensor
    document_mask: Tensor
    query_ids: Tensor
    query_mask: Tensor


@dataclass
class DecoderPaths:
    """The logit of every target token as a sum over the paths of the decoder (gr_as_mvdr §8).

    The residual stream is a sum. With the scales of its layer norms held constant, the logit is a
    sum, too: of the embedding's path, and in each layer of the paths of self-attention,
    cross-attention and feed-forward. The path of a cross-attention is Σ_hj S^h_ij A^h_ij of its
    layer. Biases have their own paths (BART has them, T5 does not).

    Attributes:
        names: P strings, such as "embedding", "self_attention_1", "cross_attention_1",
            "feed_forward_1"; layers count from 1. They end with the biases that the backbone has:
            "norm_bias" of all norms on the stream, "projection_bias" of the last maps of attention
            and feed-forward, and "output_bias" of the logits (BART's `final_logits_bias`).
        contributions: (B, P, M) fp32, zero at padding; the sum over P is `logits`.
        logits: (B, M) fp32 the model's own e·h of each target token (Eq. 11), the output's bias
            included, zero at padding.
        log_probs: (B, M) fp32 log p(d_i | d_<i, q) (Eq. 8), zero at padding.
        document_norms: (B, L) fp32 ‖R_d‖₁ of the states that each layer's cross-attention reads
            (Appendix B).
        query_norms: (B,) fp32 ‖R_qᵀ‖₁ of the query vectors.
        projection_norms: (L, H) fp32 ‖W‖₁ of each head, W = W_Qᵀ W_K times the attention's scale
            (Eq. 4); the same for all pairs.
    """

    names: tuple[str, ...]
    contributions: Tensor
    logits: Tensor
    log_probs: Tensor
    document_norms: Tensor
    query_norms: Tensor
    projection_norms: Tensor


@dataclass
class Explanation:
    """The alignments of B pairs, and the other components of their scores.

    Attributes:
        layers: the system's alignments. A multi-vector or lexical system has one, a generative
            system one for each decoder layer, in the order of the layers.
        decoder: the paths of a generative system, else None.
        pairwise: (B, 1, M, N) Ã, the alignment before salience (aligner Eq. 2); None if the system
            has no salience.
    """

    layers: list[PairAlignment]
    decoder: DecoderPaths | None = None
    pairwise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.layers[-1].score)


@dataclass
class Factors:
    """The vectors from which S and A of B pairs are computed.

    A is made from the similarities of the keys: by a softmax over query tokens in a generative
    system (Eq. 4, 16), by the alignment strategy in a multi-vector system, where usually H = 1.

    Attributes:
        document_values, query_values: (B, H, M, k) and (B, H, N, k); S is their product.
        document_keys, query_keys: (B, H, M, l) and (B, H, N, l); A is made from their product.
        document_mask: (B, M) bool.
        query_mask: (B, N) bool.
    """

    document_values: Tensor
    query_values: Tensor
    document_keys: Tensor
    query_keys: Tensor
    document_mask: Tensor
    query_mask: Tensor
