"""The decoding step with a cache that a beam search calls at each position."""

from typing import Any

import torch
from torch import Tensor

from gr_mvdr.decoders import decode, new_cache
from gr_mvdr.decoding.beam_search import Step
from gr_mvdr.heads.plain import Head
from gr_mvdr.relevance import at_least_float32


class DecodingStep:
    """Maps tokens (R,) and parents (R,) to the `LogProbs` (R, V) of the next token, with a cache.

    The softmax runs over the head's rows. The probability of a token is the sum over its rows, and
    the next decoder input is the mean of these rows, weighted by their probabilities. Thus all row
    paths of a token sequence are one hypothesis, and log p(sequence | query) does not depend on
    the width of the search (docs/models.md describes the alternatives).
    """

    def __init__(self, head: Head, queries: Tensor, query_mask: Tensor):
        """
        Args:
            head: the decoder's head.
            queries: (B, N, d) from `read_query`.
            query_mask: (B, N) bool.
        """
        self.head, self.queries, self.mask = head, queries, query_mask
        self.query = torch.arange(len(queries), device=queries.device)  # of each hypothesis
        self.cache = new_cache(head.backbone)
        self.inputs: Any = None
        self.scores: Any = None

    @torch.no_grad()
    def __call__(self, tokens: Tensor, parents: Tensor) -> "LogProbs":
        self._extend(tokens, parents)
        sides = self.inputs, self.queries, self.mask
        hidden = decode(self.head.backbone, *sides, self.cache)[:, -1]
        context = self.head.context(self.inputs)
        position = torch.full_like(parents, self.inputs.shape[1] - 1)
        context = None if context is None else context[:, -1]
        logits = at_least_float32(self.head.logits(hidden, context, position))
        # In place: the largest tensor of the search would otherwise exist twice.
        self.scores = torch.log_softmax(logits, -1, out=logits)
        return LogProbs(self.head, self.scores)

    def _extend(self, tokens: Tensor, parents: Tensor) -> None:
        """Appends each token's vector to its parent's decoder inputs, giving (R, t, d)."""
        if self.inputs is None:
            self.inputs = self.head.start_vector.expand(len(tokens), 1, -1)
            return
        getattr(self.cache, "self_attention_cache", self.cache).reorder_cache(parents)
        query = self.query[parents]
        # Usually each query keeps its number of hypotheses; then these need no reordering.
        if parents.device.type != "cpu" or not torch.equal(query, self.query):
            if (crossed := getattr(self.cache, "cross_attention_cache", None)) is not None:
                crossed.reorder_cache(parents)
            self.query, self.queries, self.mask = query, self.queries[parents], self.mask[parents]
        vectors = self.head.expected_inputs(self.scores, parents, tokens).to(self.inputs)
        self.scores = None  # freed before the next ones are computed
        self.inputs = torch.cat([self.inputs[parents], vectors[:, None]], dim=1)


class LogProbs:
    """The log-probabilities (R, V) of tokens, computed from those of the head's rows when read.

    `log_probs[hypotheses, tokens]` with two int64 tensors returns (m,); `log_probs[hypotheses]`
    with an int64 tensor or a slice returns (n, V).
    """

    def __init__(self, head: Head, of_rows: Tensor):
        self.head, self.of_rows = head, of_rows

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, tuple):
            return self.head.token_scores(self.of_rows, *index)
        return self.head.by_token(self.of_rows[index])


def score_tokens(step: Step, ids: Tensor, mask: Tensor) -> Tensor:
    """Computes (B, M) log p(token | query, tokens before it), zero at padding.

    A row's sum equals the log-probability that a search gives the sequence: teacher forcing runs
    along tokens, not along given rows of the head.

    Args:
        step: a step for B queries that has not been called yet.
        ids, mask: (B, M) one sequence for each query.
    """
    pairs = torch.arange(len(ids), device=ids.device)
    last = pairs  # the first call ignores its tokens
    scores = []
    for token, real in zip(ids.unbind(1), mask.unbind(1), strict=True):
        scores.append(step(last, pairs)[pairs, token].masked_fill(~real, 0.0))
        last = token
    return torch.stack(scores, 1)
