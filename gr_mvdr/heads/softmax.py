"""The softmax over a head's rows in blocks of positions: its loss and its log-probabilities.

The logits of n positions × R rows are the largest tensor of a generative system; their softmax and
their gradient would be two more. Here they exist for one block of positions at a time. The gradient
of a cross-entropy follows from its softmax, so the forward pass computes it and the backward pass
only scales it. Recomputing the logits instead (`torch.utils.checkpoint`) takes a third more time of
a training step or more.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from gr_mvdr.heads.plain import Head
from gr_mvdr.relevance import accumulator, at_least_float32

# Bytes of the largest tensor of a block, on a CPU and elsewhere. glibc maps a larger one anew each
# time, page by page, which takes as long as a third of the product.
_CPU_BLOCK, _BLOCK = 31 * 2**20, 2**28
_CACHED = 2**18  # numbers that fit into a core's cache for several passes

# The arguments of `Head.logits`: hidden (n, d), context (n, d) or None, position (n,).
States = tuple[Tensor, Tensor | None, Tensor]


def table_cross_entropy(
    head: Head, states: States, labels: Tensor, masked: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """() sum of the cross-entropies of n predictions (Eq. 10), at least fp32; differentiable once.

    `gr_mvdr.losses.target_cross_entropy` of `head.logits`, in the memory of a block.

    Args:
        labels: (n,) int64, rows of the head.
        masked: (n, R) bool, rows excluded from a position's softmax; never its label's.
        smoothing: share of the target's probability that is spread evenly.
    """
    hidden, context, position = states
    task = head, position, labels, masked, smoothing, torch.is_grad_enabled()
    return _Loss.apply(*task, hidden, context, *head.table_parameters)


def table_log_probs(head: Head, states: States, labels: Tensor, normalised: bool = True) -> Tensor:
    """(n,) log p(row | position), at least fp32, of rows (n,) int64.

    Holds one block of logits at a time; gradients recompute the logits of several blocks.

    Args:
        normalised: False = the rows' logits.
    """

    def of_block(labels: Tensor, *states: Tensor | None) -> Tensor:
        scores = at_least_float32(head.logits(*states))
        scores = scores.log_softmax(1) if normalised else scores
        return scores.gather(1, labels.unsqueeze(1)).squeeze(1)

    blocks = _blocks(head, labels)
    if torch.is_grad_enabled() and len(blocks) > 1:
        of_block = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([of_block(labels[block], *_cut(states, block)) for block in blocks])


class _Loss(torch.autograd.Function):
    """The sum over all blocks; computes the gradients of hidden, context and table with it."""

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
        total = torch.zeros((), dtype=accumulator(states[0]), device=states[0].device)
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
    """() sum of the cross-entropies of logits (n, R); overwrites the logits by their gradient.

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
    for part in _in_cache(scores):
        most = part.amax(1)
        torch.softmax(part, 1, out=part)
        total += (most - part.amax(1).log()).sum()  # log Σ exp = max − log of the largest softmax
    scores.scatter_add_(1, labels, torch.full_like(own, smoothing - 1))
    if smoothing:
        scores -= share
    return total


def _blocks(head: Head, labels: Tensor) -> list[slice]:
    """Equal slices of n positions that fit into a block; one slice if n is 0."""
    n = len(labels)
    size = _CPU_BLOCK if labels.device.type == "cpu" else _BLOCK
    most = max(1, size // (4 * head.numbers_per_position))
    size = max(1, -(-n // max(1, -(-n // most))))
    return [slice(start, start + size) for start in range(0, max(1, n), size)]


def _cut(states: Sequence[Tensor | None], block: slice) -> Any:
    return [None if state is None else state[block] for state in states]


def _in_cache(scores: Tensor) -> tuple[Tensor, ...]:
    """(n, R) in groups of rows that fit into a CPU's cache; elsewhere in one group."""
    size = _CACHED // scores.shape[1] if scores.device.type == "cpu" else len(scores)
    return scores.split(max(1, size))
