"""The output table of a generative decoder: D in rel(d, q) = sum(Dᵀ Q ⊙ A) (gr_as_mvdr Table 3).

A head is a table of rows over which the decoder's softmax runs; every row belongs to one token. The
plain head has one row for each token, PAWA makes its rows from the prefix (`gr_mvdr.heads.pawa`),
non-parametric decoding has several contextual rows for a token (`gr_mvdr.heads.non_parametric`).
Loss, alignment and search use rows and tokens only through the methods below.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from gr_mvdr.batch import PairBatch
from gr_mvdr.options import part
from gr_mvdr.template import TextTemplate


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of the targets.

    Attributes:
        tokens: (n,) int64, ascending.
        first_token: the first docid token; smaller ids are the backbone's own tokens.
        width: number of docid tokens of a position, where position i of an identifier uses
            first_token + i·width and the following width − 1; None if positions share tokens.
    """

    tokens: Tensor
    first_token: int = 0
    width: int | None = None


@part("head")
class Head(nn.Module):
    """The plain head: the backbone's own table, row v for token v (gr_as_mvdr Eq. 10)."""

    # (R,) int64, the token of each row; None: row v is token v.
    row_tokens: Tensor | None = None

    def __init__(self, backbone: PreTrainedModel, vocabulary: Vocabulary | None = None):
        """
        Args:
            backbone: an encoder-decoder of transformers with its output table.
            vocabulary: unused, as the plain head has rows for all tokens.
        """
        super().__init__()
        # In a tuple, out of nn.Module's sight: the backbone's parameters are the system's.
        self._owner = (backbone,)

    @property
    def backbone(self) -> Any:
        return self._owner[0]

    @property
    def scale(self) -> float:
        """d^−½ where the output table is the input's in a T5, else 1 (T5 v1.1, mT5, BART)."""
        config = self.backbone.config
        tied = config.model_type == "umt5" and config.tie_word_embeddings  # goes by the tie
        scaled = getattr(config, "scale_decoder_outputs", tied)  # only T5's config has this key
        return config.hidden_size**-0.5 if scaled else 1.0

    @property
    def output_table(self) -> Tensor:
        """(V, d) the backbone's own output rows."""
        return self.backbone.get_output_embeddings().weight

    @property
    def output_bias(self) -> Tensor | None:
        """(R,) bias of the logits (BART's `final_logits_bias`)."""
        bias = getattr(self.backbone, "final_logits_bias", None)
        return None if bias is None else bias[0]

    @property
    def n_rows(self) -> int:
        """R, the number of rows."""
        return len(self.output_table)

    # The life of a table that is made from documents (NP decoding) --------------------------------

    def make_table(self, sequences: Sequence[Sequence[int]], documents: Any, length: int) -> None:
        """Makes the rows that are read from documents, before training.

        Args:
            sequences: of each document, the text that its targets are cut from: its identifier,
                or for n-grams the document itself.
            documents: a column table with `id` and `tokens`; length: tokens kept of a document.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Makes the table again where the epoch, counted from 0, asks for it."""

    def batch_table(self, batch: PairBatch, epoch: int) -> AbstractContextManager[None]:
        """For one loss, a table of the batch's own documents where the encoder learns to make it.

        Args:
            batch: with its targets on the document side, the same number for each query.
        """
        return nullcontext()

    def relevant_rows(self, relevant: Tensor | None) -> Tensor | None:
        """(B, rows) bool, the rows of documents that are relevant to each query: not its negatives.

        None where rows are not of documents; `relevant` is `PairBatch.relevant`.
        """
        return None

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds rows for tokens without one, of identifiers that arrived after training."""

    @property
    def table_parameters(self) -> list[Tensor]:
        """The trainable tensors that `logits` reads besides its arguments."""
        return [self.output_table]

    @property
    def numbers_per_position(self) -> int:
        """Size of the largest tensor of `logits` for one position."""
        return self.n_rows

    def memory_bytes(self, batch: int, length: int) -> int:
        """Upper bound of the bytes of rows and logits of batch × length positions, in fp32."""
        rows, size = self.n_rows, self.backbone.config.hidden_size
        return 4 * (rows * size + batch * length * rows)

    def table_state(self) -> dict[str, Any] | None:
        """State of the table for a checkpoint, besides parameters."""
        return None

    def renew_table(self, state: dict[str, Any] | None = None) -> None:
        """Restores the table of a checkpoint; None = makes it with the current weights."""

    # Rows and their vectors ----------------------------------------------------------------------

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """(B, M) int64 rows of target tokens (B, M); any valid row at padding.

        Args:
            document_index: (B,) int64, the targets' documents.
        """
        return tokens

    def embed(self, rows: Tensor) -> Tensor:
        """Row numbers (…) → decoder inputs (…, d)."""
        # The module, not its weight: mBART's multiplies by √d.
        return self.backbone.get_input_embeddings()(rows)

    @property
    def start_token(self) -> int:
        """The id that the decoder reads first: the configured one, else that of its pretraining."""
        start = getattr(self.backbone.config, "decoder_start_token_id", None)
        if start is not None:
            return start
        template = getattr(self.backbone, "template", TextTemplate())
        # mBART's is the language code that ends what the encoder reads, T5's the padding token.
        last = template.suffix[-1]
        return template.pad if last == template.stop else last

    @property
    def start_vector(self) -> Tensor:
        """(d,) the first decoder input."""
        table = self.backbone.get_input_embeddings()
        return table(torch.full((), self.start_token, device=table.weight.device))

    def inputs(self, rows: Tensor) -> Tensor:
        """Target rows (B, M) → decoder inputs (B, M, d): the start, then all rows but the last."""
        start = self.start_vector.expand(len(rows), 1, -1)
        return torch.cat([start, self.embed(rows[:, :-1])], dim=1)

    def context(self, inputs: Tensor) -> Tensor | None:
        """(B, M, d) latent vectors d′ of the prefixes (Eq. 17), where rows depend on them.

        Args:
            inputs: (B, M, d) as from `inputs`; position i reads positions ≤ i.
        """
        return None

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        """(n, R) the logits e_v · h_i of all rows (Eq. 10), `output_bias` included.

        Rows of other positions have −inf.

        Args:
            hidden: (n, d) decoder states h after the final norm, not scaled.
            context: (n, d) or None, from `context`.
            position: (n,) int64, the predicted target positions, from 0.
        """
        return F.linear(hidden * self.scale, self.output_table, self.output_bias)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        """(B, M, d) e, `scale` included: e · `hidden` is the logit without its bias.

        Args:
            rows: (B, M) int64; context: (B, M, d) or None, the latent vectors of their positions.
        """
        return self.output_table[rows] * self.scale

    # Teacher forcing -----------------------------------------------------------------------------

    def decode(
        self, queries: Tensor, query_mask: Tensor, rows: Tensor
    ) -> tuple[Any, Tensor | None]:
        """The states h that predict each target position from the ones before it (Eq. 8).

        Args:
            queries: (B, N, d) the encoder's; query_mask: (B, N) bool.
            rows: (B, M) int64 rows of the targets.

        Returns:
            The decoder's output, `last_hidden_state` (B, M, d), and the context (B, M, d) or None.
        """
        inputs = self.inputs(rows)
        output = self.backbone.get_decoder()(
            inputs_embeds=inputs,
            encoder_hidden_states=queries,
            encoder_attention_mask=query_mask.long(),
            use_cache=False,
        )
        return output, self.context(inputs)

    @staticmethod
    def states_at(
        places: Tensor, hidden: Tensor, context: Tensor | None, position: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The arguments of `logits` for n positions.

        Args:
            places: (n,) int64, as from `real_places`; hidden, context: (B, M, d) from `decode`;
                position: (B, M) int64.
        """
        chosen = (None if x is None else x.flatten(0, 1)[places] for x in (hidden, context))
        return *chosen, position.flatten()[places]

    # The search sees tokens; the rows of a token are alternatives --------------------------------

    def by_token(self, logits: Tensor) -> Tensor:
        """Logits or log-probabilities of rows (n, R) → of tokens (n, V).

        log Σ exp over the rows of a token; −inf for tokens without a row.
        """
        return logits

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m,) `by_token(logits)[parents, tokens]` without the other entries; both (m,) int64."""
        return logits.flatten().index_select(0, parents * logits.shape[1] + tokens)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m, d) decoder inputs for tokens that a search has chosen.

        The mean of a token's rows, weighted by their probabilities given the token.

        Args:
            logits: (n, R), from which tokens were chosen; parents: (m,) int64 rows of `logits`;
                tokens: (m,) int64.
        """
        return self.embed(tokens)


class TableHead(Head):
    """A head with its own rows: a token has none, one or several (PAWA, NP)."""

    output_bias = None  # the backbone's belongs to its own output rows

    def __init__(self, backbone: PreTrainedModel):
        super().__init__(backbone)
        self._search_rows: TokenRows | None = None

    def set_rows(self, row_tokens: Tensor) -> None:
        """Sets the token of each row, (R,) int64."""
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
    def token_rows(self) -> "TokenRows":
        """The mapping between rows and tokens; renewed when rows or device change."""
        if self._search_rows is None or self._search_rows.row_tokens is not self.row_tokens:
            self._search_rows = TokenRows(self.row_tokens, len(self.output_table))
        return self._search_rows

    def embed(self, rows: Tensor) -> Tensor:
        return super().embed(self.row_tokens[rows])

    def by_token(self, logits: Tensor) -> Tensor:
        return self.token_rows.by_token(logits)

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        _, known, of_rows = self.token_rows.find(logits, parents, tokens)
        return of_rows.masked_fill(~known, -torch.inf).logsumexp(1)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        rows, weights = self.token_rows.weights(logits, parents, tokens)
        return (weights.unsqueeze(2) * self.embed(rows)).sum(1)


class SubsetHead(TableHead):
    """The plain head's rows of some tokens: its softmax runs over these alone.

    It is made for one search and does not follow later changes of the table. A search of seven
    docid tokens multiplies with eight rows instead of all. log p of an identifier grows by the
    probability of all other tokens, which differs from prefix to prefix, so that rankings may
    differ (docs/models.md has the numbers).
    """

    def __init__(self, head: Head, tokens: Sequence[int]):
        """
        Args:
            head: plain; tokens: distinct.
        """
        super().__init__(head.backbone)
        table, bias = head.output_table.detach(), head.output_bias
        self.set_rows(torch.tensor(tokens, device=table.device))
        self.table = table[self.row_tokens]
        self.output_bias = None if bias is None else bias[self.row_tokens]

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        return F.linear(hidden * self.scale, self.table, self.output_bias)


class TokenRows:
    """The mapping between rows and tokens."""

    def __init__(self, row_tokens: Tensor, n_tokens: int):
        """
        Args:
            row_tokens: (R,) int64, the token of each row; n_tokens: V.
        """
        self.row_tokens, self.n_tokens = row_tokens, n_tokens
        order = row_tokens.argsort(stable=True)
        counts = torch.bincount(row_tokens, minlength=n_tokens)
        first = counts.cumsum(0) - counts
        place = torch.arange(len(order), device=order.device) - first[row_tokens[order]]
        # (V, most rows of a token), −1 where there are fewer.
        shape = (n_tokens, max(1, int(counts.max())))
        self.rows = torch.full(shape, -1, device=row_tokens.device)
        self.rows[row_tokens[order], place] = order
        # Tokens with rows, by descending number of rows; their first rows, second rows, ….
        tokens = counts.nonzero().squeeze(1)
        self.tokens = tokens[counts[tokens].argsort(descending=True, stable=True)]
        nth = self.rows[self.tokens].unbind(1)
        self.nth_rows = [rows[rows >= 0] for rows in nth]

    def by_token(self, log_probs: Tensor) -> Tensor:
        """Rows (n, R) → tokens (n, V): see `Head.by_token`."""
        total = log_probs[:, self.nth_rows[0]]
        # No scatter: the order of its sums varies on a GPU.
        for rows in self.nth_rows[1:]:
            some = total[:, : len(rows)]
            some.copy_(torch.logaddexp(some, log_probs[:, rows]))
        tokens = log_probs.new_full((len(log_probs), self.n_tokens), -torch.inf)
        tokens[:, self.tokens] = total
        return tokens

    def find(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """Rows of tokens, a mask of real rows, and their logits: (m, most rows of a token) each.

        Args:
            logits, parents, tokens: see `Head.expected_inputs`.
        """
        rows = self.rows[tokens]
        known, rows = rows >= 0, rows.clamp(min=0)
        return rows, known, logits[parents[:, None], rows]

    def weights(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of chosen tokens and their probabilities given the token.

        Returns:
            rows: (m, most rows of a token) int64, any where a token has fewer; probabilities: of
            the same shape, 0 there. A token without a row, at padding, has row 0.
        """
        rows, known, of_rows = self.find(logits, parents, tokens)
        # Finite: a softmax over −inf alone would be NaN.
        least = torch.finfo(of_rows.dtype).min
        return rows, of_rows.clamp(min=least).masked_fill(~known, least).softmax(1)


def real_places(mask: Tensor) -> Tensor:
    """(n,) int64, the places of real tokens in a flattened mask (B, M); synchronises a GPU once.

    Only real positions reach the output table, the most expensive product of a small model.
    """
    return mask.flatten().nonzero().squeeze(1)
