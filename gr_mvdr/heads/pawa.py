"""Prefix-aware weight-adaptive decoding (gr_as_mvdr §5.1, Eq. 17–19; NCI's PAWA decoder)."""

from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from gr_mvdr.heads.plain import TableHead, Vocabulary
from gr_mvdr.options import Rate, Size, part


@part("head")
class PawaHead(TableHead):
    """The logit of token v at position i is h_iᵀ e_{i,v} with e_{i,v} = E_v d′_i (Eq. 17).

    The latent vectors d′ come from a small causal transformer decoder that reads the prefix, but
    not the query: its memory is one learned vector.

    The paper's E_{i,v} has an axis for the position i; E_v has none. If a token occurs at only one
    position (semantic docids), E_v is E_{i,v}. For other tokens, the position enters only through
    d′_i.

    - `form="paper"`: e_{i,v} = E_v d′_i, where E = d^−1 · `projection`.
    - `form="nci"`: e_{i,v} = d^−½ (E_v d′_i + b_v + s_v). This is a linear map d → d·R with bias,
      plus the static rows s of the backbone's output table.

    Memory: R·d² parameters, as many gradients and twice as many moments of Adam; n·d·min(d, R)
    numbers for the logits of n positions. The table of all rows at all positions, (n, R, d), is
    computed only if R < d.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        vocabulary: Vocabulary,
        form: Literal["paper", "nci"] = "paper",
        layers: Size = 4,
        heads: Size = 8,
        dropout: Rate = 0.0,
    ):
        """
        Args:
            vocabulary: the tokens that can be generated, one row each. If it has a width, the
                docid tokens of other positions get −inf; the end token is allowed everywhere.
            form: see above.
            layers, heads, dropout: of the decoder that reads the prefix.

        Raises:
            ValueError: `heads` does not divide the hidden size.
        """
        super().__init__(backbone)
        size = self.backbone.config.hidden_size
        if size % heads:
            raise ValueError(f"model.head.heads={heads}: must divide the hidden size, {size}")
        self.form, self.width, self.first_token = form, vocabulary.width, vocabulary.first_token
        self.set_rows(vocabulary.tokens)
        layer = nn.TransformerDecoderLayer(size, heads, 4 * size, dropout, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers)
        for weight in self.decoder.parameters():
            if weight.dim() > 1:  # torch's layers start as equal copies
                nn.init.xavier_uniform_(weight)
        self.memory = nn.Parameter(torch.randn(size))
        # E / `scale`. Logits have unit variance if h and d′ have unit variance. Adam moves every
        # weight by one learning rate, and a logit sums d² weights: the scale bounds its change.
        rows, deviation = len(vocabulary.tokens), 1.0 if form == "paper" else size**-0.5
        self.projection = nn.Parameter(torch.randn(rows, size, size) * deviation)
        self.bias = nn.Parameter(torch.zeros(rows, size)) if form == "nci" else None

    @property
    def table_parameters(self) -> list[Tensor]:
        own = [self.projection] if self.bias is None else [self.projection, self.bias]
        return own + ([self.output_table] if self.form == "nci" else [])

    @property
    def numbers_per_position(self) -> int:
        rows, size = self.projection.shape[:2]
        return size * min(rows, size) + 2 * rows

    @property
    def scale(self) -> float:
        """The factor of the weights: d^−1, or d^−½ in NCI's form."""
        return len(self.memory) ** (-1.0 if self.form == "paper" else -0.5)

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds rows for tokens that are new after training: the mean of the trained E_v and b_v."""
        self.set_rows(torch.cat([self.row_tokens, self.without_row(tokens)]))

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """Returns the rows of target tokens; row 0 for tokens outside the vocabulary (padding)."""
        return self.first_row(tokens)

    def context(self, inputs: Tensor) -> Tensor:
        """d′: (B, M, d) → (B, M, d), of unit variance; position i reads positions ≤ i."""
        length = inputs.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=inputs.device).triu(1)
        memory = self.memory.expand(len(inputs), 1, -1)
        return self.decoder(inputs, memory, tgt_mask=future, tgt_is_causal=True)

    def logits(self, hidden: Tensor, context: Tensor, position: Tensor) -> Tensor:
        """h_iᵀ e_{i,v} for all rows v (Eq. 17): (n, d) and (n, d) → (n, R)."""
        hidden = hidden * self.scale
        scores = self._products(hidden, context)
        if self.bias is not None:
            scores = scores + F.linear(hidden, self.bias)
        new = len(self.row_tokens) - len(self.projection)
        if new:  # the mean row has the mean logit
            scores = torch.cat([scores, scores.mean(1, keepdim=True).expand(-1, new)], dim=1)
        if self.form == "nci":
            scores = scores + F.linear(hidden, self._static())
        if self.width is not None:
            place = self.row_tokens - self.first_token
            own = place.div(self.width, rounding_mode="floor") == position.unsqueeze(1)
            scores = scores.masked_fill(~(own | (place < 0)), -torch.inf)  # (n, R)
        return scores

    def _products(self, hidden: Tensor, context: Tensor) -> Tensor:
        """(n, R) hᵀ E_v d′, multiplied in the order that needs less memory."""
        if len(self.projection) < hidden.shape[1]:
            table = F.linear(context, self.projection.flatten(0, 1))  # (n, R·d)
            return (table.unflatten(1, (-1, hidden.shape[1])) @ hidden.unsqueeze(2)).squeeze(2)
        pairs = hidden.unsqueeze(2) * context.unsqueeze(1)  # (n, d, d)
        return F.linear(pairs.flatten(1), self.projection.flatten(1))

    def vectors(self, rows: Tensor, context: Tensor) -> Tensor:
        """Returns e_{i,v} of given rows: (B, M) rows and (B, M, d) d′ → (B, M, d)."""
        trained = (rows < len(self.projection)).unsqueeze(-1)
        chosen = rows.clamp(max=len(self.projection) - 1)
        vectors = torch.einsum("...ij,...j->...i", self.projection[chosen], context)
        mean = F.linear(context, self.projection.mean(0))
        if self.bias is not None:
            vectors, mean = vectors + self.bias[chosen], mean + self.bias.mean(0)
        vectors = vectors.where(trained, mean)
        if self.form == "nci":
            vectors = vectors + self._static()[rows]
        return vectors * self.scale

    def _static(self) -> Tensor:
        """(R, d) the backbone's own output rows."""
        return self.output_table[self.row_tokens]

    # Otherwise a checkpoint would load unnoticed into a different vocabulary of the same size.
    def get_extra_state(self) -> dict[str, Tensor]:
        return {"row_tokens": self.row_tokens[: len(self.projection)]}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        own, other = self.get_extra_state()["row_tokens"], state["row_tokens"]
        if not torch.equal(other.cpu(), own.cpu()):
            raise ValueError(
                f"checkpoint: its PAWA head was trained for {len(other)} tokens that are not the "
                f"{len(own)} tokens of these identifiers"
            )
