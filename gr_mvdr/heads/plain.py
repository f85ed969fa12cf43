"""The output table of a generative decoder, D in rel(d, q) = sum(Dᵀ Q ⊙ A), and its softmax.

A head is a table of rows over which the decoder's softmax runs; every row belongs to one token
(gr_as_mvdr Table 3). The plain head has one row for each token. PAWA computes its rows from the
prefix (`gr_mvdr.heads.pawa`). Non-parametric decoding has several contextual rows for a token
(`gr_mvdr.heads.non_parametric`). Loss, alignment and search access rows and tokens only through the
methods below.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gr_mvdr.backbones import find_start_token
from gr_mvdr.batch import PairBatch
from gr_mvdr.decoders import decode
from gr_mvdr.options import part
from gr_mvdr.relevance import at_least_float32


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that targets consist of.

    Attributes:
        tokens: (n,) int64, ascending.
        first_token: the first docid token; smaller ids are the backbone's own tokens.
        width: number of docid tokens for each position: position i of an identifier uses the tokens
            from first_token + i·width up to first_token + (i + 1)·width − 1. None if positions
            share tokens.
    """

    tokens: Tensor
    first_token: int = 0
    width: int | None = None


@part("head")
class Head(nn.Module):
    """The plain head: the backbone's own table, row v for token v (gr_as_mvdr Eq. 10)."""

    def __init__(self, backbone: PreTrainedModel, vocabulary: Vocabulary | None = None):
        """
        Args:
            backbone: an encoder-decoder, or a causal language model, with its output table.
            vocabulary: unused, as the plain head has rows for all tokens.
        """
        super().__init__()
        # Hidden from nn.Module: the backbone's parameters belong to the system, not to the head.
        object.__setattr__(self, "backbone", backbone)
        # (R,) int64, the token of each row; None = row v is token v. Not in the state dict: the
        # number of rows is unknown until a checkpoint is read.
        self.register_buffer("row_tokens", None, persistent=False)

    @property
    def scale(self) -> float:
        """d^−½ for a T5 that shares its input and output tables, else 1 (T5 v1.1, mT5, BART)."""
        config = self.backbone.config
        tied = config.model_type == "umt5" and config.tie_word_embeddings  # umT5 scales if tied
        scaled = getattr(config, "scale_decoder_outputs", tied)  # only T5's config has this key
        return config.hidden_size**-0.5 if scaled else 1.0

    @property
    def output_table(self) -> Tensor:
        """(V, d) the backbone's own output rows."""
        return self.backbone.get_output_embeddings().weight

    @property
    def output_bias(self) -> Tensor | None:
        """(R,) the bias of the logits (BART's `final_logits_bias`, or the table's), or None."""
        bias = getattr(self.backbone, "final_logits_bias", None)
        return self.backbone.get_output_embeddings().bias if bias is None else bias[0]

    # The life of a table that is made from documents (NP decoding) --------------------------------

    def make_table(self, sequences: Sequence[Sequence[int]], documents: Any, length: int) -> None:
        """Makes the rows that are computed from documents, before training.

        Args:
            sequences: for each document, the tokens that its targets are cut from: its identifier,
                or the document itself if targets are n-grams.
            documents: a column table with `id` and `tokens`.
            length: number of tokens kept of a document.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Rebuilds the table if it is due in this epoch, counted from 0."""

    def end_training(self, epoch: int) -> None:
        """Rebuilds the table if the encoder that makes it was trained in the last epoch."""

    def batch_table(self, batch: PairBatch, epoch: int) -> AbstractContextManager[None]:
        """Inside the block, replaces the table by one of the batch's documents, for one loss.

        A head does so only in epochs in which the encoder learns to make the table.

        Args:
            batch: has the targets on the document side, equally many for each query.
        """
        return nullcontext()

    def masked_rows(self, batch: PairBatch, labels: Tensor) -> Tensor | None:
        """(n, R) bool, True for rows that are no negatives at a target position (`labels` (n,)).

        These rows belong to other documents that are relevant to the query. None = no such rows.
        """
        return None

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds rows for tokens that have none: those of identifiers added after training."""

    @property
    def table_parameters(self) -> list[Tensor]:
        """The trainable tensors that `logits` reads besides its arguments."""
        return [self.output_table]

    @property
    def numbers_per_position(self) -> int:
        """Upper bound of the numbers that `logits` computes for one position."""
        return len(self.output_table if self.row_tokens is None else self.row_tokens)

    def table_state(self) -> dict[str, Any] | None:
        """The table's state for a checkpoint, besides parameters; None if it has no state."""
        return None

    def renew_table(self, state: dict[str, Any] | None = None) -> None:
        """Restores the table from a checkpoint's state; None = rebuilds it with current weights."""

    # Rows and their vectors ----------------------------------------------------------------------

    def labels(self, tokens: Tensor, document_index: Tensor) -> Tensor:
        """(B, M) int64 the rows of target tokens (B, M); any valid row at padding.

        Args:
            document_index: (B,) int64, the number of each target's document.
        """
        return tokens

    def embed(self, rows: Tensor) -> Tensor:
        """Row numbers (…) → decoder inputs (…, d)."""
        # Calls the module, not its weight: mBART's module multiplies by √d.
        return self.backbone.get_input_embeddings()(rows)

    @property
    def start_vector(self) -> Tensor:
        """(d,) the first decoder input."""
        table = self.backbone.get_input_embeddings()
        return table(torch.full((), find_start_token(self.backbone), device=table.weight.device))

    def inputs(self, rows: Tensor) -> Tensor:
        """Target rows (B, M) → decoder inputs (B, M, d): the start, then all rows but the last."""
        start = self.start_vector.expand(len(rows), 1, -1)
        return torch.cat([start, self.embed(rows[:, :-1])], dim=1)

    def context(self, inputs: Tensor) -> Tensor | None:
        """(B, M, d) the prefixes' latent vectors d′ (Eq. 17); None if rows do not depend on them.

        Args:
            inputs: (B, M, d) as from `inputs`; position i reads positions ≤ i.
        """
        return None

    def logits(self, hidden: Tensor, context: Tensor | None, position: Tensor) -> Tensor:
        """(n, R) the logits e_v · h_i of all rows (Eq. 10), `output_bias` included.

        Rows that cannot occur at a position have −inf there.

        Args:
            hidden: (n, d) decoder states h after the final norm, not scaled.
            context: (n, d) or None, from `context`.
            position: (n,) int64, the target positions to predict, from 0.
        """
        return F.linear(hidden * self.scale, self.output_table, self.output_bias)

    def vectors(self, rows: Tensor, context: Tensor | None) -> Tensor:
        """(B, M, d) e, `scale` included: e · `hidden` is the logit without its bias.

        Args:
            rows: (B, M) int64.
            context: (B, M, d) or None, the latent vectors at the rows' positions.
        """
        return self.output_table[rows] * self.scale

    # Teacher forcing -----------------------------------------------------------------------------

    def decode(
        self, queries: Tensor, query_mask: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The states h that predict each target position from the ones before it (Eq. 8).

        Args:
            queries: (B, N, d) from `read_query`.
            query_mask: (B, N) bool.
            rows: (B·S, M) int64 rows of the targets, S for each query.

        Returns:
            The states (B·S, M, d), and the context (B·S, M, d) or None.
        """
        inputs = self.inputs(rows)
        return decode(self.backbone, inputs, queries, query_mask), self.context(inputs)

    # The search sees tokens; the rows of a token are alternatives --------------------------------

    def by_token(self, logits: Tensor) -> Tensor:
        """Converts logits or log-probabilities of rows (n, R) into those of tokens (n, V).

        A token's value is log Σ exp over its rows; −inf if it has no row.
        """
        return logits

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m,) `by_token(logits)[parents, tokens]`, computed alone; indices are (m,) int64."""
        return logits.flatten().index_select(0, parents * logits.shape[1] + tokens)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """(m, d) decoder inputs for tokens that a search has chosen.

        An input is the mean of the token's rows, weighted by their probabilities given the token.

        Args:
            logits: (n, R), from which the tokens were chosen.
            parents: (m,) int64, the row of `logits` for each token.
            tokens: (m,) int64.
        """
        return self.embed(tokens)


class TableHead(Head):
    """A head with its own rows: a token has none, one or several (PAWA, NP)."""

    output_bias = None  # the backbone's bias belongs to its own output rows
    _token_rows: tuple[Tensor | None, Tensor | None] = (None, None)  # cache of `token_rows`

    def set_rows(self, row_tokens: Tensor) -> None:
        """Sets the token of each row, (R,) int64."""
        rows, count = torch.arange(len(row_tokens), device=row_tokens.device), len(row_tokens)
        first = rows.new_full((len(self.output_table),), count)
        first = first.scatter_reduce(0, row_tokens, rows, "amin") % max(1, count)
        self.row_tokens = row_tokens
        self.register_buffer("_first_row", first, persistent=False)

    def first_row(self, tokens: Tensor) -> Tensor:
        """Returns the first row of each token (…); row 0 for tokens without a row."""
        return self._first_row[tokens]

    def without_row(self, tokens: Iterable[int]) -> Tensor:
        """(n,) int64 the distinct tokens that have no row yet, in the order given."""
        known = set(self.row_tokens.tolist())
        new = [token for token in dict.fromkeys(tokens) if token not in known]
        return torch.tensor(new, dtype=torch.int64, device=self.row_tokens.device)

    @property
    def token_rows(self) -> Tensor:
        """(V, most rows of a token) int64, the rows of every token, filled up with −1."""
        if self._token_rows[0] is not self.row_tokens:  # rows or device have changed
            order = self.row_tokens.argsort(stable=True)
            counts = torch.bincount(self.row_tokens, minlength=len(self.output_table))
            rows = pad_sequence(order.split(counts.tolist()), True, padding_value=-1)
            self._token_rows = self.row_tokens, rows
        return self._token_rows[1]

    def embed(self, rows: Tensor) -> Tensor:
        return super().embed(self.row_tokens[rows])

    def by_token(self, logits: Tensor) -> Tensor:
        rows = self.token_rows
        return logits[:, rows.clamp(min=0)].masked_fill(rows < 0, -torch.inf).logsumexp(2)

    def token_scores(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        return self._rows_of(logits, parents, tokens)[1].logsumexp(1)

    def expected_inputs(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        rows, scores = self._rows_of(logits, parents, tokens)
        weights = scores.softmax(1).nan_to_num()  # a token without a row, at padding
        return (weights.unsqueeze(2) * self.embed(rows)).sum(1)

    def _rows_of(self, logits: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(m, most rows of a token) each: the tokens' rows, and their logits, −inf if no row."""
        rows = self.token_rows[tokens]
        scores = logits[parents[:, None], rows.clamp(min=0)].masked_fill(rows < 0, -torch.inf)
        return rows.clamp(min=0), scores


# The arguments of `Head.logits`: hidden (n, d), context (n, d) or None, position (n,).
States = tuple[Tensor, Tensor | None, Tensor]


def states_at(places: Tensor, *states: Tensor | None) -> States:
    """Selects the arguments of `Head.logits` for n positions.

    Args:
        places: (n,) int64, as from `real_places`.
        states: hidden and context (B, M, d) from `Head.decode`, and the positions (B, M) int64.
    """
    return tuple(None if x is None else x.flatten(0, 1)[places] for x in states)


def real_places(mask: Tensor) -> Tensor:
    """(n,) int64, the places of real tokens in a flattened mask (B, M); a GPU's makes the CPU wait.

    Only real positions are multiplied by the output table, the costliest product of a small model.
    """
    return mask.flatten().nonzero().squeeze(1)


# The softmax over a head's rows -------------------------------------------------------------------
#
# The logits of n positions × R rows are the largest tensor of a generative system; their softmax
# and their gradient would be two more tensors of this size. Here all three exist for only one block
# of positions at a time. The gradient of a cross-entropy follows from its softmax, so the forward
# pass computes it and the backward pass only scales it. Recomputing the logits instead
# (`torch.utils.checkpoint`) lengthens a training step by a third or more.

# Bytes of the largest tensor of a block, on a CPU and elsewhere. glibc maps a larger tensor again
# each time, page by page. But every block adds a gradient of the whole table: on a CPU, its logits
# are at least twice as large as the table.
_CPU_BLOCK, _BLOCK, _TABLES = 31 * 2**20, 2**28, 2


def table_cross_entropy(
    head: Head, states: States, labels: Tensor, masked: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """() sum of the cross-entropies of n predictions (Eq. 10), at least fp32; differentiable once.

    It equals the cross-entropy of `head.logits`, but holds only one block of logits at a time.

    Args:
        labels: (n,) int64, rows of the head.
        masked: (n, R) bool, rows excluded from a position's softmax; never the label's row.
        smoothing: share of the target's probability that is spread evenly.
    """
    hidden, context, position = states
    task = head, position, labels, masked, smoothing, torch.is_grad_enabled()
    return _Loss.apply(*task, hidden, context, *head.table_parameters)


def table_log_probs(head: Head, states: States, labels: Tensor) -> Tensor:
    """(n,) log p(row | position), at least fp32.

    Holds one block of logits at a time; if there are several, the backward pass recomputes them.

    Args:
        labels: (n,) int64, rows of the head.
    """

    def of_block(labels: Tensor, *states: Tensor | None) -> Tensor:
        scores = at_least_float32(head.logits(*states)).log_softmax(1)
        return scores.gather(1, labels.unsqueeze(1)).squeeze(1)

    blocks = _blocks(head, labels)
    if torch.is_grad_enabled() and len(blocks) > 1:
        of_block = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([of_block(labels[block], *_cut(states, block)) for block in blocks])


class _Loss(torch.autograd.Function):
    """Sums the loss over all blocks, and computes the gradients of hidden, context and table."""

    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        position: Tensor,
        labels: Tensor,
        masked: Tensor | None,
        smoothing: float,
        with_gradients: bool,
        *sources: Tensor | None,  # hidden, context, the head's table parameters
    ) -> Tensor:
        learning = [with_gradients and s is not None and s.requires_grad for s in sources]
        states = [None if s is None else s.detach() for s in sources[:2]]
        chosen = zip([*states, *sources[2:]], learning, strict=True)
        wanted = [source.requires_grad_() for source, learns in chosen if learns]
        total = at_least_float32(states[0].new_zeros(()))
        sums: Sequence[Tensor] = ()
        for block in _blocks(head, labels):
            with torch.set_grad_enabled(with_gradients):
                logits = head.logits(*_cut([*states, position], block))
            scores = at_least_float32(logits.detach())
            if masked is not None:
                scores = scores.masked_fill_(masked[block], -torch.inf)
            total += _loss_to_gradient(scores, labels[block, None], smoothing)
            if wanted:
                gradients = torch.autograd.grad(logits, wanted, scores.to(logits.dtype))
                sums = (
                    [a.add_(b) for a, b in zip(sums, gradients, strict=True)] if sums else gradients
                )
        of_wanted = iter(sums)
        ctx.gradients = [next(of_wanted) if learns else None for learns in learning]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "a table's cross-entropy is differentiable once"
        return *[None] * 6, *(None if g is None else g.mul_(scale) for g in gradients)


def _loss_to_gradient(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """() sum of the cross-entropies of logits (n, R); overwrites the logits with the gradient.

    Args:
        labels: (n, 1) int64.
    """
    own, share = scores.gather(1, labels), 0.0
    if smoothing:
        unmasked = scores > -torch.inf
        share = smoothing * unmasked / unmasked.sum(1, keepdim=True)
        even = (share * scores.masked_fill(~unmasked, 0.0)).sum(1, keepdim=True)
        own = (1 - smoothing) * own + even
    total = -own.sum()
    most = scores.amax(1)
    torch.softmax(scores, 1, out=scores)
    total += (most - scores.amax(1).log()).sum()  # log Σ exp = max − log of the largest softmax
    scores.scatter_add_(1, labels, torch.full_like(own, smoothing - 1))
    if smoothing:
        scores -= share
    return total


def _blocks(head: Head, labels: Tensor) -> list[slice]:
    """Divides n positions into nearly equal slices that fit into a block; one slice if n is 0."""
    n = len(labels)
    size = _BLOCK
    if labels.device.type == "cpu":
        size = max(_CPU_BLOCK, _TABLES * sum(part.nbytes for part in head.table_parameters))
    most = max(1, size // (4 * head.numbers_per_position))
    size = max(1, -(-n // max(1, -(-n // most))))
    return [slice(start, start + size) for start in range(0, max(1, n), size)]


def _cut(states: Sequence[Tensor | None], block: slice) -> Any:
    return [None if state is None else state[block] for state in states]
