"""Fewer vectors than tokens: which of an encoder's states represent a text (mva §2.2).

A pooling is called twice: `enter` on what the encoder reads, `leave` on what it returns. `width` is
the size of a pooled state in encoder states.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gr_mvdr.parts import part


@part("pooling")
class AllTokens(nn.Module):
    """Every token's own state: no pooling. Also the base of the other forms."""

    width = 1

    def __init__(self, size: int = 0, vocabulary_size: int = 0):
        """
        Args:
            size: d_model of the encoder; vocabulary_size: of its tokens.
        """
        super().__init__()

    def enter(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (B, L, d_model) and mask (B, L) as the encoder reads them."""
        return embeddings, mask

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pooled states, their mask, and the token of each.

        Args:
            states: (B, L', d_model) of the encoder; mask: (B, L') as `enter` returned.
            ids: (B, L) int64 of the text's tokens.

        Returns:
            (B, K, width · d_model), (B, K) bool, (B, K) int64.
        """
        return states, mask, ids

    def count(self, tokens: int) -> int:
        """How many states represent a text of so many tokens."""
        return tokens


@part("pooling")
class FirstTokens(AllTokens):
    """The first k states: the text is read whole, the rest is dropped (First-K)."""

    def __init__(self, size: int, vocabulary_size: int, k: int):
        super().__init__()
        self.k = _at_least_one("k", k)

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return states[:, : self.k], mask[:, : self.k], ids[:, : self.k]

    def count(self, tokens: int) -> int:
        return min(tokens, self.k)


@part("pooling")
class LearnedTokens(AllTokens):
    """The states of k learned tokens that are read before the text (Multiple [CLS])."""

    def __init__(self, size: int, vocabulary_size: int, k: int):
        super().__init__()
        self.k, self.vocabulary_size = _at_least_one("k", k), vocabulary_size
        self.embeddings = nn.Parameter(torch.randn(k, size))  # as T5 draws its table

    def enter(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = self.embeddings.to(embeddings.dtype).expand(len(embeddings), -1, -1)
        return torch.cat([own, embeddings], 1), F.pad(mask, (self.k, 0), value=True)

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # They have no token of the vocabulary: ids beyond it, as docid tokens.
        own = self.vocabulary_size + torch.arange(self.k, device=ids.device)
        return states[:, : self.k], mask[:, : self.k], own.expand(len(ids), -1)

    def count(self, tokens: int) -> int:
        return self.k


@part("pooling")
class Temporal(AllTokens):
    """ρ neighbouring states concatenated into one: a vector for every ρ tokens."""

    def __init__(self, size: int, vocabulary_size: int, factor: int):
        super().__init__()
        self.width = _at_least_one("factor", factor)

    def leave(self, states: Tensor, mask: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, size = states.shape
        missing = -length % self.width
        # Zero where a group is not full, whatever the encoder returned at padding.
        states = F.pad(states * mask.unsqueeze(-1), (0, 0, 0, missing))
        groups = F.pad(mask, (0, missing)).view(batch, -1, self.width)
        states = states.view(batch, -1, self.width * size)
        # The token of a group is its first, which is real if any is: padding is on the right.
        return states, groups.any(-1), F.pad(ids, (0, missing))[:, :: self.width]

    def count(self, tokens: int) -> int:
        return -(-tokens // self.width)


def _at_least_one(key: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"pooling.{key}={value}: must be ≥ 1")
    return value
