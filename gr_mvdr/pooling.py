"""Pooling: represents a text by fewer vectors than it has tokens (mva §2.2).

A pooling is called three times: `enter` on the encoder's input embeddings, `leave` on its output
states, and `group` on the token vectors that are projected from these states. `width` is the size
of a pooled state in units of one encoder state.
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.alignment import top_k
from gr_mvdr.options import Size, part
from gr_mvdr.token_index.codec import k_means
from gr_mvdr.token_vectors import TokenVectors

# How tokens are grouped: by Ward's clustering or k-means; or only the most salient are kept.
Grouping = Literal["ward", "k_means", "salience"]
# Token vectors of B texts, and their groups (B, K, M) from `group_tokens`; None = no grouping.
Grouped = tuple[TokenVectors, Tensor | None]


@part("pooling")
class AllTokens(nn.Module):
    """Keeps every token's state: no pooling. Also the base class of all poolings."""

    width = 1

    def __init__(self, size: int = 0, vocabulary_size: int = 0):
        """
        Args:
            size: d_model of the encoder.
            vocabulary_size: number of the encoder's tokens.
        """
        super().__init__()

    def enter(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the embeddings (B, L', d_model) and mask (B, L') that the encoder reads."""
        return embeddings, mask

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the pooled states, their mask, and the token id of each.

        Args:
            states: (B, L', d_model) the encoder's output.
            mask: (B, L') as `enter` returned it.
            ids: (B, L) int64 token ids of the text.

        Returns:
            (B, K, width · d_model), (B, K) bool, (B, K) int64.
        """
        return states, mask, ids

    def unit(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Normalises vectors (B, K, d) of a shared projection to length 1; mask: (B, K) bool."""
        return F.normalize(vectors, dim=-1)

    def group(self, tokens: TokenVectors) -> Tensor | None:
        """Returns the groups of tokens to merge, as `group_tokens` does; None = no grouping."""
        return None

    def count(self, tokens: int) -> int:
        """Returns the largest number of vectors for a text of this many tokens."""
        return tokens


@part("pooling")
class FirstTokens(AllTokens):
    """Keeps the first k states; the encoder reads the complete text (First-K)."""

    def __init__(self, size: int, vocabulary_size: int, k: Size):
        super().__init__()
        self.k = k

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return states[:, : self.k], mask[:, : self.k], ids[:, : self.k]

    def count(self, tokens: int) -> int:
        return min(tokens, self.k)


@part("pooling")
class AfterFirst(AllTokens):
    """Keeps all states but the first, which BGE-M3 keeps for its single vector."""

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return states[:, 1:], mask[:, 1:], ids[:, 1:]

    def count(self, tokens: int) -> int:
        return max(tokens - 1, 0)


@part("pooling")
class LastToken(AllTokens):
    """Keeps the state of the last token, the only one for which a decoder has read all the text."""

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last = mask.sum(1, keepdim=True).clamp(min=1) - 1
        rows = last[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, rows), mask.gather(1, last), ids.gather(1, last)

    def count(self, tokens: int) -> int:
        return min(tokens, 1)


@part("pooling")
class MeanState(LastToken):
    """Projects the mean of a text's states: without an alignment of the tokens themselves.

    `MeanTokens` is the same if the projection is linear.
    """

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = mask.to(states)[..., None]
        mean = (states * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
        return mean, *super().leave(states, mask, ids)[1:]


@part("pooling")
class LearnedTokens(AllTokens):
    """Keeps the states of k learned tokens, which precede the text (Multiple [CLS])."""

    def __init__(self, size: int, vocabulary_size: int, k: Size):
        super().__init__()
        self.k, self.vocabulary_size = k, vocabulary_size
        self.embeddings = nn.Parameter(torch.randn(k, size))  # as T5 initialises its table

    def enter(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = self.embeddings.to(embeddings.dtype).expand(len(embeddings), -1, -1)
        return torch.cat([own, embeddings], 1), F.pad(mask, (self.k, 0), value=True)

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Learned tokens have ids beyond the vocabulary, like docid tokens.
        own = self.vocabulary_size + torch.arange(self.k, device=ids.device)
        return states[:, : self.k], mask[:, : self.k], own.expand(len(ids), -1)

    def count(self, tokens: int) -> int:
        return self.k


@part("pooling")
class Temporal(AllTokens):
    """Concatenates ρ neighbouring states into one: a vector for every ρ tokens."""

    def __init__(self, size: int, vocabulary_size: int, factor: Size):
        super().__init__()
        self.width = factor

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, size = states.shape
        missing = -length % self.width
        # Zeros fill an incomplete group: the encoder's states at padding are arbitrary.
        states = F.pad(states * mask.unsqueeze(-1), (0, 0, 0, missing))
        groups = F.pad(mask, (0, missing)).view(batch, -1, self.width)
        states = states.view(batch, -1, self.width * size)
        # A group has the id of its first token; padding is on the right.
        return states, groups.any(-1), F.pad(ids, (0, missing))[:, :: self.width]

    def count(self, tokens: int) -> int:
        return -(-tokens // self.width)


@part("pooling")
class MeanTokens(AllTokens):
    """Represents a text by one vector, the mean of all (Sentence-T5; gr_as_mvdr Table 7).

    If both sides are pooled this way, A_ij = 1/(MN) in Eq. 1. Under shared projections, token
    vectors are divided by the length of their mean, so that the mean has length 1. The values of
    an attention are not normalised.
    """

    def unit(self, vectors: Tensor, mask: Tensor) -> Tensor:
        total = (vectors * mask.unsqueeze(-1)).sum(-2, keepdim=True)
        length = total.norm(dim=-1, keepdim=True) / mask.sum(-1)[:, None, None].clamp(min=1)
        return vectors / length.clamp(min=1e-12)

    def group(self, tokens: TokenVectors) -> Tensor:
        weights = tokens.mask.to(tokens.vectors)
        return (weights / weights.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(-2)

    def count(self, tokens: int) -> int:
        return min(tokens, 1)


def n_groups(tokens: int, factor: int) -> int:
    """Returns the number of vectors after grouping: max(⌊n / factor⌋, 1) of n > 0 tokens."""
    return max(tokens // factor, 1) if tokens else 0


@torch.no_grad()
@torch.autocast("cpu", enabled=False)  # clusters are made on the CPU; numpy has no bfloat16
def group_tokens(tokens: TokenVectors, factor: int, by: Grouping = "ward") -> Tensor | None:
    """Groups the tokens of each text: each group becomes one vector (Clavié et al. 2024).

    Args:
        tokens: (B, M, …). Their keys are clustered; without keys, their vectors.
        factor: mean number of tokens in a group, see `n_groups`; 1 = no grouping.
        by: "ward": Ward's hierarchical clustering with distance 1 − cosine. "k_means": spherical
            k-means. "salience": no tokens are merged, only the most salient ones are kept
            (aligner's pruning, applied to the index).

    Returns:
        (B, K, M) weights: 1/|c| for the tokens of group c, else zero. Groups are in the order of
        their first tokens; rows of groups that a text does not have are zero. None if `factor` is
        1.
    """
    if factor == 1:
        return None
    basis = tokens.vectors if tokens.keys is None else tokens.keys
    if by == "salience":
        basis = tokens.salience.unsqueeze(-1)
    numbers = torch.full(tokens.mask.shape, -1)
    for row, mask, own in zip(numbers, tokens.mask.cpu(), basis.cpu(), strict=True):
        if count := n_groups(int(mask.sum()), factor):
            group_of = _GROUPED[by](own[mask], count)
            kept = group_of >= 0
            _, begins, place = np.unique(group_of[kept], return_index=True, return_inverse=True)
            group_of[kept] = begins.argsort().argsort()[place]
            row[mask] = torch.from_numpy(group_of).long()
    size = n_groups(numbers.shape[1], factor)
    groups = F.one_hot(numbers + 1, size + 1)[..., 1:].mT.to(basis)
    return groups / groups.sum(-1, keepdim=True).clamp(min=1)


def merge_tokens(tokens: TokenVectors, groups: Tensor | None) -> TokenVectors:
    """Merges the tokens of each group (B, K, M): takes means of vectors, keys and saliences.

    The means are not normalised. A group's similarity is the mean of its tokens' similarities, so
    that Eq. 1 holds for the tokens themselves, with the group's A spread evenly over them. A group
    gets the id of the token whose vector has the largest inner product with the mean.
    """
    if groups is None:
        return tokens
    salience = None if tokens.salience is None else tokens.salience.unsqueeze(-1)
    # Outside autocast, like every computation of relevance.
    with torch.autocast(groups.device.type, enabled=False):
        vectors, salience, keys = (
            None if part is None else groups.to(part) @ part
            for part in (tokens.vectors, salience, tokens.keys)
        )
        near = (vectors.detach() @ tokens.vectors.detach().mT).masked_fill(groups == 0, -torch.inf)
    salience = None if salience is None else salience.squeeze(-1)
    ids = tokens.ids.gather(1, near.argmax(-1))
    return TokenVectors(vectors, (groups > 0).any(-1), ids, salience, keys)


def _ward(vectors: Tensor, count: int) -> np.ndarray:
    """(n,) the cluster of each vector, of at most `count` clusters."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if count == len(vectors):
        return np.arange(count)
    unit = F.normalize(vectors, dim=-1)
    distances = (1 - unit @ unit.T).clamp(0, 2).numpy()
    return fcluster(linkage(squareform(distances, checks=False), "ward"), count, "maxclust")


def _k_means(vectors: Tensor, count: int) -> np.ndarray:
    unit = F.normalize(vectors.float(), dim=-1)
    centroids = torch.from_numpy(k_means(unit.numpy(), count, spherical=True))
    return (unit @ centroids.T).argmax(1).numpy()


def _most_salient(salience: Tensor, count: int) -> np.ndarray:
    """(n,) a group for each of the most salient tokens, −1 for the others; salience is (n, 1)."""
    best = top_k(salience[:, 0], count)[0].numpy()
    numbers = np.full(len(salience), -1)
    numbers[best] = best
    return numbers


_GROUPED = {"ward": _ward, "k_means": _k_means, "salience": _most_salient}
