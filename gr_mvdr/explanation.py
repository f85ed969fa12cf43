"""All that a system's decision on some pairs is made of: what `model.explain(batch)` answers."""

from dataclasses import dataclass

from torch import Tensor

from gr_mvdr.relevance import PairAlignment


@dataclass
class DecoderPaths:
    """The logit of every target token as a sum over the paths of the decoder (gr_as_mvdr §8).

    The residual stream is a sum, and with its final layer norm's scale held at its value the logit
    ẽ_i · h_i is a sum too: the embedding's path, and for each layer those of self-attention,
    cross-attention and feed-forward. A cross-attention's path is Σ_hj S^h_ij A^h_ij of its layer.

    Attributes:
        names: P strings, such as "embedding", "self_attention_1", "cross_attention_1",
            "feed_forward_1"; layers count from 1.
        contributions: (B, P, M) fp32, zero at padding; the sum over P is `logits`.
        logits: (B, M) fp32 the model's own e·h of each target token (Eq. 11), zero at padding.
        log_probs: (B, M) fp32 log p(d_i | d_<i, q) (Eq. 8), zero at padding.
        document_norms: (B, L) fp32 ‖R_d‖₁ of the states that a layer's cross-attention reads
            (Appendix B).
        query_norms: (B,) fp32 ‖R_qᵀ‖₁ of the query vectors.
        projection_norms: (L, H) fp32 ‖W‖₁ of each head, W = W_Qᵀ W_K (Eq. 4); of no pair.
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
    """The alignments of B pairs, and whatever else their scores are made of.

    Attributes:
        layers: the system's alignments: one of a multi-vector or lexical system, one a decoder
            layer of a generative one, the last layer last.
        decoder: of a generative system, else None.
        pairwise: (B, 1, M, N) Ã, the alignment before salience (aligner Eq. 2); None where the
            system has no salience.
    """

    layers: list[PairAlignment]
    decoder: DecoderPaths | None = None
    pairwise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.layers[-1].score)


@dataclass
class Factors:
    """The vectors behind S and A of B pairs, so that an alignment can be made anew.

    A generative system's A is their softmax over query tokens (Eq. 4, 16), a multi-vector system's
    whatever its alignment makes of them. H = 1 for the latter.

    Attributes:
        document_values, query_values: (B, H, M, k) and (B, H, N, k), S is their product.
        document_keys, query_keys: (B, H, M, l) and (B, H, N, l), what A is made of.
        document_mask: (B, M) bool. query_mask: (B, N) bool.
    """

    document_values: Tensor
    query_values: Tensor
    document_keys: Tensor
    query_keys: Tensor
    document_mask: Tensor
    query_mask: Tensor
