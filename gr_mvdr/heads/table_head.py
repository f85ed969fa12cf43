"""What the heads share whose rows are not simply the tokens: PAWA and non-parametric decoding."""

from typing import Any

import torch
from torch import Tensor

from gr_mvdr.heads.plain import Head, TokenRows


class TableHead(Head):
    """A head with rows of its own: some tokens have none, some have several."""

    def __init__(self, backbone: Any):
        super().__init__(backbone)
        self._search_rows: TokenRows | None = None

    def set_rows(self, row_tokens: Tensor) -> None:
        """Says which token each row stands for, (R,) int64."""
        # Not in the state dict: the number of rows is not known before a checkpoint is read.
        self.register_buffer("_row_tokens", row_tokens, persistent=False)
        self.register_buffer("_row_order", row_tokens.argsort(stable=True), persistent=False)

    @property
    def row_tokens(self) -> Tensor:
        """(R,) int64, the token of each row."""
        return self._row_tokens

    @property
    def n_rows(self) -> int:
        return len(self.row_tokens)

    def first_row(self, tokens: Tensor) -> Tensor:
        """Tokens (…) → the first row of each (…); row 0 for tokens without a row."""
        ascending = self._row_tokens[self._row_order]
        place = torch.searchsorted(ascending, tokens.contiguous()).clamp(max=len(ascending) - 1)
        return self._row_order[place] * (ascending[place] == tokens)

    @property
    def token_rows(self) -> TokenRows:
        """Rows and tokens both ways for the search; made again when rows or device change."""
        if self._search_rows is None or self._search_rows.row_tokens is not self.row_tokens:
            self._search_rows = TokenRows(self.row_tokens, self.backbone.shared.num_embeddings)
        return self._search_rows

    def by_token(self, log_probs: Tensor) -> Tensor:
        return self.token_rows.by_token(log_probs)

    def expected_inputs(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        rows, weights = self.token_rows.weights(log_probs, parents, tokens)
        return (weights.unsqueeze(2) * self.embed(rows)).sum(1)
