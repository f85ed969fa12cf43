"""The token vectors of texts, padded or packed: each side of Eq. 1."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gr_mvdr.batch import length_mask
from gr_mvdr.ranks import gather_rows

Side = Literal["query", "document"]
SIDES = get_args(Side)


@dataclass
class TokenVectors:
    """Texts as token vectors, padded on the right.

    Any leading axes are allowed. Shapes below are for B texts of at most L vectors.

    Attributes:
        vectors: (B, L, d) fp32 (fp64 from a model in fp64), zero at padding. S is their product.
        mask: (B, L) bool, True = real vector.
        ids: (B, L) int64, the token of each vector.
        salience: (B, L) fp32 u ≥ 0, zero at padding (aligner Eq. 2); None = all one.
        keys: (B, L, h) fp32, from which the alignment A is computed (mva §2.1; query keys are
            already divided by √(h/H)). None = A is computed from S.
    """

    vectors: Tensor
    mask: Tensor
    ids: Tensor
    salience: Tensor | None = None
    keys: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, key) -> "TokenVectors":
        """Indexes the leading axes of every tensor, such as `[2:5]`, `[:, None]`, `[None]`."""
        return self._each(lambda part: part[key])

    def to(self, device: torch.device | str) -> "TokenVectors":
        return self._each(lambda part: part.to(device))

    def float(self) -> "TokenVectors":
        """The same texts in fp32, as an index holds them."""
        return self._each(lambda part: part.float() if part.is_floating_point() else part)

    def unpad(self, number: int) -> "TokenVectors":
        """Returns one text (L', …) without padding."""
        return self[number][self.mask[number]]

    def pack(self) -> "PackedTokens":
        """Concatenates the texts of a batch (B, L) without padding."""
        real = self._each(lambda part: part[self.mask])
        return PackedTokens(
            real.vectors, self.mask.sum(1), real.ids, salience=real.salience, keys=real.keys
        )

    def by_head(self, heads: int) -> "TokenVectors":
        """(B, H, L, …): vectors and keys are split into H equal parts; the heads share the rest."""

        def cut(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.unflatten(-1, (heads, -1)).transpose(-2, -3)

        alike = self._each(lambda part: part.unsqueeze(-2))
        return replace(alike, vectors=cut(self.vectors), keys=cut(self.keys))

    def mean(self) -> Tensor:
        """(B, d) the mean of each text's vectors, weighted by salience if there is one."""
        weights = self.mask if self.salience is None else self.salience * self.mask
        total = (self.vectors * weights.unsqueeze(-1)).sum(-2)
        return total / weights.sum(-1, keepdim=True).to(total).clamp(min=1e-9)

    def gather(self) -> "TokenVectors":
        """Gathers the texts of all ranks in the order of the ranks, with gradients."""
        return self._each(gather_rows)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "TokenVectors":
        parts = vars(self).items()
        return TokenVectors(**{name: None if p is None else change(p) for name, p in parts})


class PackedTokens(NamedTuple):
    """The tokens of several documents, concatenated without padding.

    Attributes:
        vectors: (t, d) float.
        counts: (b,) int64, the number of tokens of each document; they sum to t.
        ids, salience, keys: (t,) int64, (t,) or None, (t, h) or None; see `TokenVectors`.
    """

    vectors: Tensor
    counts: Tensor
    ids: Tensor
    salience: Tensor | None = None
    keys: Tensor | None = None

    def to(self, device: torch.device | str) -> "PackedTokens":
        return PackedTokens(*(None if part is None else part.to(device) for part in self))

    def pad(self) -> TokenVectors:
        """Pads the documents to (b, M, …), zero at padding."""
        mask = length_mask(self.counts)  # (b, M)

        def spread(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            padded = part.new_zeros(*mask.shape, *part.shape[1:])
            padded[mask] = part
            return padded

        parts = (self.ids, self.salience, self.keys)
        return TokenVectors(spread(self.vectors), mask, *map(spread, parts))


# Encodes the documents with these ids, in this order, and yields them in batches.
Encode = Callable[[Sequence[str]], Iterable[PackedTokens]]


def stack(texts: Sequence[TokenVectors]) -> TokenVectors:
    """Pads texts (L_b, …) to one batch (B, L, …), zero and False at padding."""
    return _joined(texts, lambda parts: pad_sequence(parts, batch_first=True))


def concatenate(batches: Sequence[TokenVectors]) -> TokenVectors:
    """Joins batches (B_p, L_p, …) into one (Σ B_p, max L_p, …), zero and False at padding."""
    length = max(batch.mask.shape[1] for batch in batches)

    def padded(part: Tensor) -> Tensor:
        return F.pad(part, (0, 0) * (part.dim() - 2) + (0, length - part.shape[1]))

    return _joined(batches, lambda parts: torch.cat([padded(part) for part in parts]))


def _joined(texts: Sequence[TokenVectors], join: Callable[[list[Tensor]], Tensor]) -> TokenVectors:
    parts = {name: [vars(text)[name] for text in texts] for name in vars(texts[0])}
    return TokenVectors(**{n: None if p[0] is None else join(p) for n, p in parts.items()})
