"""Where the tokens of documents occur, and the row of a table that each occurrence has."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Occurrences(nn.Module):
    """Token sequences of documents, one row number a token, ragged as flat arrays.

    Attributes:
        documents: (D,) int64, ascending, the documents' numbers.
        starts: (D + 1,) int64; tokens, rows: (n,) int64, document by document.
    """

    def __init__(self, documents: Tensor, starts: Tensor, tokens: Tensor, rows: Tensor):
        super().__init__()
        assert len(documents) and (documents.diff() > 0).all(), "distinct, ascending documents"
        assert len(tokens) == len(rows) == starts[-1], "a row for every token"
        # Not in the state dict: sizes are not known before a checkpoint is read.
        self.register_buffer("documents", documents, persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("rows", rows, persistent=False)

    @classmethod
    def of(
        cls, sequences: Sequence[Sequence[int]], rows: Tensor, documents: Tensor | None = None
    ) -> "Occurrences":
        """From token lists and the rows of all their tokens; documents are 0, 1, 2, … by default"""
        if documents is None:
            documents = torch.arange(len(sequences))
        starts = torch.tensor([0, *map(len, sequences)]).cumsum(0)
        return cls(documents.to(rows.device), starts.to(rows.device), flat(sequences, rows), rows)

    def find(self, targets: Tensor, document_index: Tensor) -> tuple[Tensor, Tensor]:
        """Looks targets up in their documents: the first place that agrees with most of the start.

        Args:
            targets: (B, M) int64; document_index: (B,) int64, also numbers that are not here.

        Returns:
            rows (B, M) int64, valid where the target agrees; agrees (B, M) bool, a prefix.
        """
        size = targets.shape[1]
        tokens, rows = self._padded(document_index, size)
        agrees = tokens.unfold(1, size, 1) == targets.unsqueeze(1)  # (B, places, M)
        agrees = agrees.long().cumprod(2)
        place = agrees.sum(2).argmax(1, keepdim=True)  # argmax: the first of equals
        offset = torch.arange(size, device=targets.device)
        agrees = agrees.gather(1, place.unsqueeze(2).expand(-1, 1, size)).squeeze(1).bool()
        return rows.gather(1, place + offset), agrees

    def _padded(self, document_index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """(B, L + size − 1) tokens of documents, −1 after their end, and rows; L ≥ 1."""
        at = torch.searchsorted(self.documents, document_index).clamp(max=len(self.documents) - 1)
        length = self.starts.diff()[at] * (self.documents[at] == document_index)
        offset = torch.arange(max(1, int(length.max())) + size - 1, device=at.device)
        inside = offset < length.unsqueeze(1)
        place = (self.starts[at].unsqueeze(1) + offset) * inside
        if not len(self.tokens):  # nothing to gather from
            return place - 1, place
        return self.tokens[place].masked_fill(~inside, -1), self.rows[place] * inside


def flat(sequences: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Token lists one after the other, (n,) int64 on the device of another tensor."""
    tokens = [token for sequence in sequences for token in sequence]
    return torch.tensor(tokens, dtype=torch.int64, device=like.device)
