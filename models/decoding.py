"""One decoder position a call: the `step` of `gr_mvdr.decoding.beam_search` for a generative
system."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from gr_mvdr.relevance import at_least_float32
from gr_mvdr.tokenizers import PAD_ID


class DecodingStep:
    """(tokens (R,), parents (R,)) → log-probabilities (R, V) over tokens, with a cache.

    The softmax runs over the head's rows. A token has the probability of all its rows together, and
    the decoder goes on with their mean, weighted by their probabilities: every row of a token is a
    candidate, and all row paths of a token sequence are one hypothesis. So log p(sequence | query)
    depends on the sequence alone, in a search of any width (docs/generative.md has the other ways).
    """

    def __init__(self, system: Any, query_ids: Tensor, query_mask: Tensor):
        """
        Args:
            system: a `GenerativeSystem`; query_ids, query_mask: (B, N) int64 and bool.
        """
        self.decoder, self.head = system.backbone.decoder, system.head
        self.queries, self.mask = system.encode(query_ids, query_mask), query_mask
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.inputs = self.scores = None

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        return self.head.by_token(self.row_scores(tokens, parents))

    @torch.no_grad()
    def row_scores(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """(R, rows) log-probabilities of the head's rows after these tokens."""
        self._extend(tokens, parents)
        hidden = self.decoder(
            inputs_embeds=self.inputs[:, -1:],
            encoder_hidden_states=self.queries,
            encoder_attention_mask=self.mask.long(),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        context = self.head.context(self.inputs)
        position = torch.full_like(parents, self.inputs.shape[1] - 1)
        logits = self.head.logits(hidden, None if context is None else context[:, -1], position)
        logits = at_least_float32(logits)
        # In place: the largest tensor of the search would otherwise be there twice.
        self.scores = torch.log_softmax(logits, -1, out=logits)
        return self.scores

    def _extend(self, tokens: Tensor, parents: Tensor) -> None:
        """Every hypothesis' decoder inputs (R, t, d): its parent's, and the vector of its token."""
        if self.inputs is None:
            self.inputs = self.head.start_vector.expand(len(tokens), 1, -1)
            return
        self.cache.reorder_cache(parents)
        self.queries, self.mask = self.queries[parents], self.mask[parents]
        vectors = self.head.expected_inputs(self.scores, parents, tokens).to(self.inputs)
        self.scores = None  # not kept while the next ones are made
        self.inputs = torch.cat([self.inputs[parents], vectors[:, None]], dim=1)


def sequence_scores(step: DecodingStep, ids: Tensor, mask: Tensor) -> Tensor:
    """(B,) log p(sequence | query), the number that a search gives the sequence if it finds it.

    Teacher forcing along tokens, not along given rows.

    Args:
        step: a fresh one for B queries; ids, mask: (B, M) a sequence for each.
    """
    last = torch.full((len(ids),), PAD_ID, device=ids.device)
    pairs = torch.arange(len(ids), device=ids.device)
    total = torch.zeros(len(ids), device=ids.device)
    for token, real in zip(ids.unbind(1), mask.unbind(1), strict=True):
        log_probs = step(last, pairs)[pairs, token]
        total = total + log_probs.masked_fill(~real, 0.0)
        last = token
    return total
