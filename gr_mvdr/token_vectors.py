"""The token vectors of some texts: what Eq. 1 needs of either side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gr_mvdr.distributed.ranks import gather_rows


@dataclass
class TokenVectors:
    """Texts as token vectors, padded on the right.

    Any leading axes; here (B, L) for B texts of at most L vectors.

    Attributes:
        vectors: (B, L, d) fp32 (fp64 from a model in fp64), what the similarity S is made of; zero
            at padding.
        mask: (B, L) bool, True = a real vector.
        ids: (B, L) int64, the token that a vector stands for.
        salience: (B, L) fp32 u ≥ 0, zero at padding (aligner Eq. 2); None = all one.
        keys: (B, L, h) fp32, what the alignment A is made of where that is not S itself
            (mva §2.1, the query's already divided by √h); None = S.
    """

    vectors: Tensor
    mask: Tensor
    ids: Tensor
    salience: Tensor | None = None
    keys: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, key) -> "TokenVectors":
        """Indexes the leading axes of every part, such as `[2:5]`, `[:, None]`, `[None]`."""
        return self._each(lambda part: part[key])

    def to(self, device: torch.device) -> "TokenVectors":
        return self._each(lambda part: part.to(device))

    def float(self) -> "TokenVectors":
        """Its numbers in fp32, as an index holds them."""
        return self._each(lambda part: part.float() if part.is_floating_point() else part)

    def unpadded(self, number: int) -> "TokenVectors":
        """One text (L', …) without padding."""
        return self[number][self.mask[number]]

    def gathered(self) -> "TokenVectors":
        """The texts of all ranks, one rank after the other, with gradients."""
        return self._each(gather_rows)

    def _each(self, change) -> "TokenVectors":
        parts = vars(self).items()
        return TokenVectors(**{name: None if p is None else change(p) for name, p in parts})


def stack(texts: Sequence[TokenVectors]) -> TokenVectors:
    """Texts (L_b, …) without padding as one batch (B, L, …), zero and False at padding."""
    parts = {name: [vars(text)[name] for text in texts] for name in vars(texts[0])}
    return TokenVectors(
        **{n: None if p[0] is None else pad_sequence(p, batch_first=True) for n, p in parts.items()}
    )


def concatenated(parts: Sequence[TokenVectors]) -> TokenVectors:
    """Batches of texts (B_p, L_p, …) as one (Σ B_p, max L_p, …), zero and False at padding."""
    length = max(part.mask.shape[1] for part in parts)
    return TokenVectors(
        **{
            name: None
            if value is None
            else torch.cat([_padded(vars(part)[name], length) for part in parts])
            for name, value in vars(parts[0]).items()
        }
    )


def _padded(part: Tensor, length: int) -> Tensor:
    return F.pad(part, (0, 0) * (part.dim() - 2) + (0, length - part.shape[1]))
