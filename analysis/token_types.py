"""Exact match averaged over the occurrences of each token type (Wu et al. §7.2).

Two public definitions exist and both are kept: "all" averages over every occurrence of a token,
"matched" only over occurrences that have an equal token to match (soft value above 1e-6).
"""

import torch
from torch import Tensor

from analysis.exact_match import MEASURES

DEFINITIONS = ("all", "matched")
HAS_MATCH = 1e-6  # a soft value above this means that an equal token exists on the other side


class TokenTypeRates:
    """Running means of the hard and soft exact match by token type (Wu et al. §7.2).

    Args:
        vocabulary_size: token ids are below this number.
    """

    def __init__(self, vocabulary_size: int):
        self.vocabulary_size = vocabulary_size
        zeros = torch.zeros(vocabulary_size, dtype=torch.float64)
        self.occurrences = {name: zeros.clone() for name in DEFINITIONS}
        self.sums = {(m, d): zeros.clone() for m in MEASURES for d in DEFINITIONS}

    def update(self, token_ids: Tensor, hard: Tensor, soft: Tensor, mask: Tensor) -> None:
        """Add occurrences: ids, values and a bool mask of what counts, all of one shape.

        Raises:
            ValueError: a counted token id is outside the vocabulary.
        """
        token_ids, soft = token_ids[mask].cpu(), soft[mask].double().cpu()
        values = {"hard": hard[mask].double().cpu(), "soft": soft}
        self.check(token_ids)
        for definition in DEFINITIONS:
            counted = (soft > HAS_MATCH).double() if definition == "matched" else torch.ones(())
            self.occurrences[definition] += self._sum(token_ids, counted.double())
            for measure in MEASURES:
                self.sums[measure, definition] += self._sum(token_ids, values[measure] * counted)

    def check(self, token_ids: Tensor) -> None:
        """Refuses a token id that is outside the vocabulary."""
        if token_ids.numel() and int(token_ids.max()) >= self.vocabulary_size:
            raise ValueError(
                f"token id {int(token_ids.max())} is outside the vocabulary of the "
                f"document frequencies ({self.vocabulary_size} ids)"
            )

    def _sum(self, token_ids: Tensor, values: Tensor) -> Tensor:
        weights = values.expand(token_ids.shape)
        return torch.bincount(token_ids, weights=weights, minlength=self.vocabulary_size)

    def rates(self, measure: str, definition: str) -> Tensor:
        """(V,) float64: the mean over a type's occurrences, NaN for types that never occurred."""
        return self.sums[measure, definition] / self.occurrences[definition]

    def table(self, measure: str, definition: str) -> dict[int, float]:
        """{token id: mean over its occurrences}, only the types that occurred."""
        rates = self.rates(measure, definition)
        seen = rates.isfinite().nonzero().flatten().tolist()
        return {token: float(rates[token]) for token in seen}

    def mean(self, measure: str, definition: str) -> float:
        """The mean over all occurrences of all types; NaN without any."""
        return float(self.sums[measure, definition].sum() / self.occurrences[definition].sum())
