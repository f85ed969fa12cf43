"""rel(d, q) = 1/Z · Σ S ⊙ A: Eq. 1 of both *Generative Retrieval as MVDR* and ALIGNER.

The functions compute the equation. Most classes hold its tensors for given pairs: what a system
returns and every analysis reads. `Scoring` is a system's form of the equation over token vectors,
for given pairs and, by `all_pairs_relevance`, for all pairs of a batch.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gr_mvdr.alignment import Alignment, Selection, Tokens
from gr_mvdr.token_vectors import TokenVectors

Normaliser = Literal["none", "alignment", "query_tokens", "non_zero"]

# Number of similarities computed at once: 16 MB in fp32, which stay in a CPU's cache until their
# maxima are taken; 256 MB on an accelerator.
_BLOCK_SIMILARITIES, _ACCELERATED_SIMILARITIES = 1 << 22, 1 << 26


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
class Prefix:
    """The block of S and A beside the query's, in a causal language model.

    Attributes:
        similarity, alignment: (B, H, M, P) fp32, zero at padding; column j is the j-th token of the
            target itself, which only later tokens attend to.
    """

    similarity: Tensor
    alignment: Tensor


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
        prefix: in a causal language model, the block of the target's own tokens: a row of A sums to
            one over both blocks. No question reads it, nor do relevance and Z.
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
    prefix: Prefix | None = None


@dataclass
class DecoderPaths:
    """The logit of every target token as a sum over the paths of the decoder (gr_as_mvdr §8).

    The residual stream is a sum. With the scales of its layer norms held constant, the logit is a
    sum, too: of the embedding's path, and in each layer of the paths of self-attention,
    cross-attention and feed-forward. The path of a cross-attention is Σ_hj S^h_ij A^h_ij of its
    layer. Biases have their own paths (BART has them, T5 does not). In a causal language model, the
    path of attention is that of the query's columns, "cross_attention_1", and that of the target's
    own, "self_attention_1".

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
        query_norms: (B, L) fp32 ‖R_qᵀ‖₁ of the query vectors that each layer's attention reads.
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


@dataclass(frozen=True)
class Scoring:
    """rel(d, q) = 1/Z · Σ S ⊙ Ã ⊙ (u_d u_qᵀ) (gr_as_mvdr Eq. 1 and 23, aligner Eq. 1 and 2).

    Attributes:
        alignment: the strategy (of `gr_mvdr.alignment`) that makes Ã.
        normaliser: the name of Z, see `normaliser`.
        heads: H. Each head sees its own part of every vector, and the equation also sums over heads
            (mva Table 4).

    Raises:
        ValueError: several heads are combined with a hard alignment.
    """

    alignment: Alignment
    normaliser: Normaliser = "none"
    heads: int = 1

    def __post_init__(self):
        if self.heads > 1 and isinstance(self.alignment, Selection):
            raise ValueError(f"model.heads={self.heads}: must be 1 under {self.alignment}")

    def __call__(self, documents: TokenVectors, queries: TokenVectors) -> Tensor:
        """(…) relevance of every pair, fp32 or fp64; leading axes broadcast."""
        return self.align(documents, queries).score

    def matrices(
        self, documents: TokenVectors, queries: TokenVectors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """S, Ã and A = Ã ⊙ (u_d u_qᵀ), each (…, H, M, N) (aligner Eq. 2)."""
        documents, queries = documents.by_head(self.heads), queries.by_head(self.heads)
        matrix = similarity(documents.vectors, queries.vectors)
        basis = matrix  # A is made from S, or from the similarity of the keys
        if documents.keys is not None:
            basis = similarity(documents.keys, queries.keys)
        aligned = pairwise = self.alignment(basis, *_tokens(documents, queries))
        if documents.salience is not None:
            aligned = aligned * documents.salience.unsqueeze(-1)
        if queries.salience is not None:
            aligned = aligned * queries.salience.unsqueeze(-2)
        return matrix, pairwise, aligned

    def align(self, documents: TokenVectors, queries: TokenVectors) -> PairAlignment:
        """Computes S, A and the relevance of pairs (Eq. 1)."""
        matrix, _, aligned = self.matrices(documents, queries)
        together = matrix.flatten(-3, -2), aligned.flatten(-3, -2)  # (…, H·M, N)
        z = normaliser(self.normaliser, *together, queries.mask)
        scores = divide(relevance(*together), z)
        texts = (documents.ids, documents.mask, queries.ids, queries.mask)
        return PairAlignment(matrix, aligned, z, scores, scores, *texts)

    def factors(self, documents: TokenVectors, queries: TokenVectors) -> Factors:
        """Returns each head's vectors behind S, and its keys behind A (the vectors, if no keys)."""
        d, q = documents.by_head(self.heads), queries.by_head(self.heads)
        keys = (d.vectors, q.vectors) if d.keys is None else (d.keys, q.keys)
        return Factors(d.vectors, q.vectors, *keys, documents.mask, queries.mask)

    def divide(self, matrix: Tensor, aligned: Tensor, queries: TokenVectors) -> Tensor:
        """(…) relevance from S and A of one head; rows where A is zero may be omitted."""
        z = normaliser(self.normaliser, matrix, aligned, queries.mask)
        return divide(relevance(matrix, aligned), z)


def _tokens(documents: TokenVectors, queries: TokenVectors) -> Tokens:
    return Tokens(documents.mask, queries.mask, documents.ids, queries.ids)


def all_pairs_relevance(documents: TokenVectors, queries: TokenVectors, scoring: Scoring) -> Tensor:
    """Relevance of every document to every query, for contrastive training (gr_as_mvdr Eq. 1, 2).

    S and A of all pairs would take B·C·M·N numbers. So only one block of queries is held at a time,
    in the forward and in the backward pass. Blocks divide the queries, never the documents, so that
    an alignment may depend on all documents of the batch (xtr Eq. 2). A hard alignment keeps
    K·B·C·N indices for the gradient; any other alignment is recomputed in the backward pass.

    Args:
        documents: (B, M, …); queries: (C, N, …).

    Returns:
        (B documents, C queries) fp32.
    """
    per_query = documents.mask.numel() * queries.mask.shape[1]
    device = documents.vectors.device.type
    most = _BLOCK_SIMILARITIES if device == "cpu" else _ACCELERATED_SIMILARITIES
    size = max(1, most // max(1, per_query))
    blocks = [slice(start, start + size) for start in range(0, len(queries), size)]
    # Outside autocast: in bf16, many similarities would be equal.
    with torch.autocast(device, enabled=False):
        if isinstance(scoring.alignment, Selection):
            return _selected_relevance(documents, queries, scoring, blocks)
        relevances = [
            checkpoint(scoring, documents[:, None], queries[rows][None], use_reentrant=False)
            for rows in blocks
        ]
        return torch.cat(relevances, dim=1)


def _selected_relevance(
    documents: TokenVectors, queries: TokenVectors, scoring: Scoring, blocks: list[slice]
) -> Tensor:
    """Computes `all_pairs_relevance` of a hard alignment from the chosen document tokens alone."""
    with torch.no_grad():
        choices = [_choose(documents, queries[rows], scoring.alignment) for rows in blocks]
    chosen, best = (torch.cat(parts, dim=1) for parts in zip(*choices, strict=True))
    kept = best > -torch.inf  # (B, C, K, N)
    matrix = _ChosenSimilarity.apply(
        documents.vectors, queries.vectors, chosen, best.masked_fill_(~kept, 0.0)
    )
    aligned = kept.float()
    if documents.salience is not None:
        rows = documents.salience[:, None, :, None].expand(*chosen.shape[:2], -1, chosen.shape[3])
        aligned = aligned * rows.gather(2, chosen)
    if queries.salience is not None:
        aligned = aligned * queries.salience.unsqueeze(1)
    return scoring.divide(matrix, aligned, queries[None])


def _choose(
    documents: TokenVectors, queries: TokenVectors, alignment: Alignment
) -> tuple[Tensor, Tensor]:
    """(B, C, K, N) the chosen document tokens, and their similarities, −inf where A is zero."""
    assert isinstance(alignment, Selection)
    tokens = alignment.candidates(_tokens(documents[:, None], queries[None]))
    masked = matrix = _all_similarities(documents.vectors, queries.vectors)
    if documents.keys is not None:
        masked = _all_similarities(documents.keys, queries.keys)
    # Adds −inf in place: masking would cost as much as the choice.
    padding = torch.zeros_like(tokens.document_mask, dtype=masked.dtype)
    masked += padding.masked_fill_(~tokens.document_mask, -torch.inf).unsqueeze(-1)
    chosen, best = alignment.choose(masked, tokens)
    if documents.keys is not None:
        best = matrix.gather(-2, chosen).masked_fill_(best == -torch.inf, -torch.inf)
    return chosen, best


def _all_similarities(documents: Tensor, queries: Tensor) -> Tensor:
    """(B, C, M, N) S of all pairs by one matrix product; in memory (C, N, B, M)."""
    return torch.tensordot(queries, documents, ([-1], [-1])).permute(2, 0, 3, 1)


class _ChosenSimilarity(torch.autograd.Function):
    """(B, C, K, N): the similarity of each query token to the document tokens that it chose."""

    @staticmethod
    def forward(
        context, documents: Tensor, queries: Tensor, chosen: Tensor, similarity: Tensor
    ) -> Tensor:
        context.save_for_backward(documents, queries, chosen)
        return similarity.clone()

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Sums each side's vectors, weighted by the gradient, for every token of the other side."""
        documents, queries, chosen = context.saved_tensors
        tokens = documents.flatten(0, 1), queries.flatten(0, 1)  # (B·M, d), (C·N, d)
        starts = documents.shape[1] * torch.arange(len(documents), device=chosen.device)
        rows = (chosen + starts.view(-1, 1, 1, 1)).permute(1, 3, 0, 2)  # (C, N, B, K)
        rows = rows.reshape(len(tokens[1]), -1)
        weights = gradient.permute(1, 3, 0, 2).reshape(rows.shape)
        query_gradient = F.embedding_bag(rows, tokens[0], per_sample_weights=weights, mode="sum")
        # The same sums for document tokens: the choices are sorted by document token.
        ordered, order = rows.flatten().sort(stable=True)
        first = torch.searchsorted(ordered, torch.arange(len(tokens[0]), device=rows.device))
        document_gradient = F.embedding_bag(
            order // rows.shape[1],
            tokens[1],
            first,
            per_sample_weights=weights.flatten()[order],
            mode="sum",
        )
        return document_gradient.view_as(documents), query_gradient.view_as(queries), None, None
