"""The output table of a generative decoder: D in rel(d, q) = sum(Dᵀ Q ⊙ A) (gr_as_mvdr Table 3).

A head is a table of rows over which the decoder's softmax runs; every row is of one token. The
plain head has one row a token, PAWA makes its rows from the prefix (`gr_mvdr.heads.pawa`), non-
parametric decoding has several contextual rows a token (`gr_mvdr.heads.non_parametric`). Loss,
alignment and search know rows and tokens only through the methods below.
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
    """The tokens that targets are made of.

    Attributes:
        tokens: (n,) int64, ascending.
        first_token: tokens from here on are docid tokens, beyond the backbone's own.
        width: docid tokens a position where an id carries its position (position i of an
            identifier uses first_token + i·width and the following width − 1), else None.
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
            vocabulary: what the targets are made of; the plain head has rows for every token.
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
        """(R,) what is added to a row's logit whatever the query (BART's `final_logits_bias`)."""
        bias = getattr(self.backbone, "final_logits_bias", None)
        return None if bias is None else bias[0]

    @property
    def n_rows(self) -> int:
        """R, the number of rows."""
        return len(self.output_table)

    # The table's life: only NP decoding has one to make, to keep and to learn ---------------------

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
        """Rows for tokens of identifiers that arrived after training, where they have none."""

    @property
    def table_parameters(self) -> list[Tensor]:
        """All tensors that `logits` depends on besides its arguments, where they may learn."""
        return [self.output_table]

    @property
    def numbers_a_position(self) -> int:
        """How many numbers the largest tensor behind `logits` holds for a position."""
        return self.n_rows

    def memory_bytes(self, batch: int, length: int) -> int:
        """What rows and the logits of batch × length positions take, in fp32, at most."""
        rows, size = self.n_rows, self.backbone.config.hidden_size
        return 4 * (rows * size + batch * length * rows)

    def table_state(self) -> dict[str, Any] | None:
        """What a checkpoint must hold besides parameters."""
        return None

    def renew_table(self, state: dict[str, Any] | None = None) -> None:
        """Takes the table of a checkpoint of the same documents; None: makes it with the weights
        of now."""

    # Rows and their vectors ----------------------------------------------------------------------

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """(B, M) int64 rows of target tokens (B, M); any valid row at padding.

        Args:
            document_index: (B,) int64, the targets' documents.
        """
        return tokens

    def embed(self, rows: Tensor) -> Tensor:
        """Row numbers (…) → what the decoder reads for them (…, d)."""
        # The module, not its rows: mBART's multiplies them by √d.
        return self.backbone.get_input_embeddings()(rows)

    @property
    def start_token(self) -> int:
        """The id that the decoder reads first: what the backbone names, else as it is trained."""
        start = getattr(self.backbone.config, "decoder_start_token_id", None)
        if start is not None:
            return start
        template = getattr(self.backbone, "template", TextTemplate())
        # mBART's is the language code that ends what the encoder reads, T5's the padding token.
        last = template.suffix[-1]
        return template.pad if last == template.stop else last

    @property
    def start_vector(self) -> Tensor:
        """(d,) what the decoder reads first."""
        table = self.backbone.get_input_embeddings()
        return table(torch.full((), self.start_token, device=table.weight.device))

    def inputs(self, rows: Tensor) -> Tensor:
        """Target rows (B, M) → decoder inputs (B, M, d): the start, then all rows but the last."""
        start = self.start_vector.expand(len(rows), 1, -1)
        return torch.cat([start, self.embed(rows[:, :-1])], dim=1)

    def context(self, inputs: Tensor) -> Tensor | None:
        """(B, M, d) latent vectors d′ of the prefixes (Eq. 17), where rows depend on them.

        Args:
            inputs: (B, M, d) as from `inputs`; position i may look at positions ≤ i.
        """
        return None

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        """(n, R) the logits e_v · h_i of all rows (Eq. 10), `output_bias` included; −inf for rows
        not of a position.

        Args:
            hidden: (n, d) decoder states h after the final norm, not scaled; context: (n, d) or
                None, theirs; position: (n,) int64, the target positions that they predict, from 0.
        """
        return F.linear(hidden * self.scale, self.output_table, self.output_bias)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        """(B, M, d) e, `scale` included: their products with `hidden` are the logits, but for a
        bias.

        Args:
            rows: (B, M) int64; context: (B, M, d) or None, the latent vectors of their positions.
        """
        return self.output_table[rows] * self.scale

    # Teacher forcing -----------------------------------------------------------------------------

    def decode(
        self, queries: Tensor, query_mask: Tensor, rows: Tensor, **options: Any
    ) -> tuple[Any, Tensor | None]:
        """The states h that predict each target position from the ones before it (Eq. 8).

        Args:
            queries: (B, N, d) the encoder's; query_mask: (B, N) bool.
            rows: (B, M) int64 rows of the targets; options: of the backbone's decoder.

        Returns:
            The decoder's output, `last_hidden_state` (B, M, d), and the context (B, M, d) or None.
        """
        inputs = self.inputs(rows)
        output = self.backbone.get_decoder()(
            inputs_embeds=inputs,
            encoder_hidden_states=queries,
            encoder_attention_mask=query_mask.long(),
            use_cache=False,
            **options,
        )
        return output, self.context(inputs)

    @staticmethod
    def states_at(
        places: Tensor, hidden: Tensor, context: Tensor | None, position: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What `logits` takes of n positions.

        Args:
            places: (n,) int64, as from `real_places`; hidden, context: (B, M, d) from `decode`;
                position: (B, M) int64.
        """
        chosen = (None if x is None else x.flatten(0, 1)[places] for x in (hidden, context))
        return *chosen, position.flatten()[places]

    # What the search sees: tokens. A token's rows are alternatives, of which any may be meant. ----

    def by_token(self, logits: Tensor) -> Tensor:
        """Logits or log-probabilities of all rows (n, R) → of all tokens (n, V).

        log Σ exp over a token's rows; −inf for tokens without a row.
        """
        return logits

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m,) `by_token(logits)[parents, tokens]`, made for these alone; (m,) int64 both."""
        return logits.flatten().index_select(0, parents * logits.shape[1] + tokens)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m, d) what the decoder reads after tokens that a search has chosen.

        The mean of their rows, weighted by the rows' probabilities, given the token.

        Args:
            logits: (n, R), from which tokens were chosen; parents: (m,) int64 rows of `logits`;
                tokens: (m,) int64.
        """
        return self.embed(tokens)


class TableHead(Head):
    """A head with rows of its own: some tokens have none, some have several (PAWA, NP)."""

    # The backbone's is for its own output rows, which the head does not have.
    output_bias = None

    def __init__(self, backbone: PreTrainedModel):
        super().__init__(backbone)
        self._search_rows: TokenRows | None = None

    def set_rows(self, row_tokens: Tensor) -> None:
        """Says which token each row is of, (R,) int64."""
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
        """Rows and tokens both ways for the search; made again when rows or device change."""
        if self._search_rows is None or self._search_rows.row_tokens is not self.row_tokens:
            self._search_rows = TokenRows(self.row_tokens, len(self.output_table))
        return self._search_rows

    def embed(self, rows: Tensor) -> Tensor:
        return super().embed(self.row_tokens[rows])

    def by_token(self, logits: Tensor) -> Tensor:
        return self.token_rows.by_token(logits)

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        _, known, found = self.token_rows.find(logits, parents, tokens)
        return found.masked_fill(~known, -torch.inf).logsumexp(1)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        rows, weights = self.token_rows.weights(logits, parents, tokens)
        return (weights.unsqueeze(2) * self.embed(rows)).sum(1)


class SubsetHead(TableHead):
    """The plain head's rows of some tokens: its softmax runs over these alone.

    It is made for one search and does not follow later changes of the table. A search of seven
    docid tokens multiplies with eight rows instead of all. log p of an identifier grows by the
    probability of all other tokens, which differs from prefix to prefix, so that rankings may
    differ (docs/generative.md has the numbers).
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
    """Which rows are of which token, both ways."""

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
        # Tokens that have rows, those with the most first; and their first rows, second rows, ….
        tokens = counts.nonzero().squeeze(1)
        self.tokens = tokens[counts[tokens].argsort(descending=True, stable=True)]
        nth = self.rows[self.tokens].unbind(1)
        self.nth_rows = [rows[rows >= 0] for rows in nth]

    def by_token(self, log_probs: Tensor) -> Tensor:
        """Rows (n, R) → tokens (n, V): see `Head.by_token`."""
        total = log_probs[:, self.nth_rows[0]]
        # No scatter: its sums would have no order on a GPU.
        for rows in self.nth_rows[1:]:
            some = total[:, : len(rows)]
            some.copy_(torch.logaddexp(some, log_probs[:, rows]))
        found = log_probs.new_full((len(log_probs), self.n_tokens), -torch.inf)
        found[:, self.tokens] = total
        return found

    def find(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """The rows of tokens, which of them there are, and their logits: all (m, most of a token).

        Args:
            logits, parents, tokens: see `Head.expected_inputs`.
        """
        rows = self.rows[tokens]
        known, rows = rows >= 0, rows.clamp(min=0)
        return rows, known, logits[parents[:, None], rows]

    def weights(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of chosen tokens, and their probabilities given the token.

        Returns:
            rows: (m, most rows of a token) int64, any where a token has fewer; probabilities: of
            the same shape, 0 there. A token without a row, at padding, has row 0.
        """
        rows, known, found = self.find(logits, parents, tokens)
        # Finite: a softmax over −inf alone would be NaN.
        least = torch.finfo(found.dtype).min
        return rows, found.clamp(min=least).masked_fill(~known, least).softmax(1)


def real_places(mask: Tensor) -> Tensor:
    """(n,) int64, the places of what is real in a flattened mask (B, M): one wait for a device.

    Only real positions reach the output table, the most expensive product of a small model.
    """
    return mask.flatten().nonzero().squeeze(1)
