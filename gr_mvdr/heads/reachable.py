"""The plain head with a softmax over the rows alone that identifiers can reach.

A search of seven docid tokens then multiplies with eight rows, not with all. Its scores are others:
log p of an identifier grows by what the model gives to all other tokens, which differs from prefix
to prefix, so that rankings may differ too (docs/generative.md says by how much).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gr_mvdr.heads.plain import Head


class ReachableHead(Head):
    """Some rows of a plain head, for one search: it follows no later change of the table."""

    def __init__(self, head: Head, tokens: Sequence[int]):
        """
        Args:
            head: plain; tokens: distinct, those that can be reached.
        """
        super().__init__(head.backbone)
        table, bias = head.output_table.detach(), head.output_bias
        self.tokens = torch.tensor(tokens, device=table.device)
        self.table = table[self.tokens]
        self.bias = None if bias is None else bias[self.tokens]
        self.column = torch.full((len(table),), -1, device=table.device)  # of each token
        self.column[self.tokens] = torch.arange(len(tokens), device=table.device)

    @staticmethod
    def check(head: Head) -> None:
        """Raises ValueError for a head whose rows are of the identifiers' tokens alone already."""
        if type(head) is not Head:
            raise ValueError(
                "model.search.normalise=reachable: must be vocabulary under head=pawa and "
                "head=non_parametric, whose rows are those of the identifiers' tokens"
            )

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        return F.linear(hidden * self.scale, self.table, self.bias)

    def by_token(self, logits: Tensor) -> Tensor:
        everything = logits.new_full((*logits.shape[:-1], len(self.column)), -torch.inf)
        everything[..., self.tokens] = logits
        return everything

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        column = self.column[tokens]
        found = super().token_scores(logits, parents, column.clamp(min=0))
        return found.masked_fill(column < 0, -torch.inf)
