"""One decoding step with a cache, as a beam search calls it at each position."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from gr_mvdr.decoding.beam_search import Step
from gr_mvdr.heads.plain import Head
from gr_mvdr.relevance import at_least_float32


class DecodingStep:
    """(tokens (R,), parents (R,)) → `LogProbs` (R, V) over tokens, with a cache.

    The softmax runs over the head's rows. A token has the probability of all its rows together, and
    the decoder goes on with their mean, weighted by their probabilities: every row of a token is a
    candidate, and all row paths of a token sequence are one hypothesis. So log p(sequence | query)
    depends on the sequence alone, in a search of any width (docs/models.md has the other ways).
    """

    def __init__(self, head: Head, queries: Tensor, query_mask: Tensor):
        """
        Args:
            head: of the decoder; queries: (B, N, d) the encoder's; query_mask: (B, N) bool.
        """
        self.head, self.queries, self.mask = head, queries, query_mask
        self.query = torch.arange(len(queries), device=queries.device)  # of each hypothesis
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.inputs: Any = None
        self.scores: Any = None

    def __call__(self, tokens: Tensor, parents: Tensor) -> "LogProbs":
        return LogProbs(self.head, self.row_scores(tokens, parents))

    @torch.no_grad()
    def row_scores(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """(R, rows) log-probabilities of the head's rows after these tokens."""
        self._extend(tokens, parents)
        hidden = self.head.backbone.get_decoder()(
            inputs_embeds=self.inputs[:, -1:],
            encoder_hidden_states=self.queries,
            encoder_attention_mask=self.mask.long(),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        context = self.head.context(self.inputs)
        position = torch.full_like(parents, self.inputs.shape[1] - 1)
        context = None if context is None else context[:, -1]
        logits = at_least_float32(self.head.logits(hidden, context, position))
        # In place: the largest tensor of the search would otherwise exist twice.
        self.scores = torch.log_softmax(logits, -1, out=logits)
        return self.scores

    def _extend(self, tokens: Tensor, parents: Tensor) -> None:
        """Every hypothesis' decoder inputs (R, t, d): its parent's, and the vector of its token."""
        if self.inputs is None:
            self.inputs = self.head.start_vector.expand(len(tokens), 1, -1)
            return
        self.cache.self_attention_cache.reorder_cache(parents)
        query = self.query[parents]
        # Mostly every query keeps its number of hypotheses: their views of it are those of before.
        if parents.device.type != "cpu" or not torch.equal(query, self.query):
            self.cache.cross_attention_cache.reorder_cache(parents)
            self.query, self.queries, self.mask = query, self.queries[parents], self.mask[parents]
        vectors = self.head.expected_inputs(self.scores, parents, tokens).to(self.inputs)
        self.scores = None  # not kept while the next ones are made
        self.inputs = torch.cat([self.inputs[parents], vectors[:, None]], dim=1)


class LogProbs:
    """The log-probabilities (R, V) of tokens, made from their rows' where they are read.

    `log_probs[hypotheses, tokens]` (m,) with int64 tensors; `log_probs[hypotheses]` (n, V) with one
    or a slice.
    """

    def __init__(self, head: Head, of_rows: Tensor):
        self.head, self.of_rows = head, of_rows

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, tuple):
            return self.head.token_scores(self.of_rows, *index)
        return self.head.by_token(self.of_rows[index])


def score_tokens(step: Step, ids: Tensor, mask: Tensor) -> Tensor:
    """(B, M) log p(token | query, tokens before it), zero at padding.

    The sum of a row is the number that a search gives the sequence if it finds it: teacher forcing
    along tokens, not along given rows.

    Args:
        step: a fresh one for B queries; ids, mask: (B, M) a sequence for each.
    """
    pairs = torch.arange(len(ids), device=ids.device)
    last = pairs  # before the first token any will do
    scores = []
    for token, real in zip(ids.unbind(1), mask.unbind(1), strict=True):
        scores.append(step(last, pairs)[pairs, token].masked_fill(~real, 0.0))
        last = token
    return torch.stack(scores, 1)
