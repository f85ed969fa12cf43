"""A measurement: one question about a system's alignments, asked batch by batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from matplotlib.figure import Figure
from torch import Tensor

from analysis.figures import GalleryEntry
from analysis.tables import Row
from analysis.tokens import TokenKinds
from gr_mvdr.relevance import Explanation


@dataclass(frozen=True)
class GoldTokens:
    """Where a document's tokens answer a query, as the collection itself knows.

    Attributes:
        answer: (m,) bool over the document's tokens: they answer the question.
        evidence: (m,) bool: they state what the question gives.
    """

    answer: Tensor
    evidence: Tensor


@dataclass(frozen=True)
class Texts:
    """What measurements know of the texts besides their alignments.

    Attributes:
        idf: (V,) fp32 importance of every token id.
        kinds: which ids are special, punctuation or stopwords.
        strings: token ids → what people read.
        gold: (query id, document id) → gold tokens; {} where the collection has none.
    """

    idf: Tensor
    kinds: TokenKinds
    strings: Callable[[Sequence[int]], list[str]]
    gold: Mapping[tuple[str, str], GoldTokens] = field(default_factory=dict)


@dataclass
class Findings:
    """What a measurement found.

    Attributes:
        metrics: flat, "analysis/<measurement>/…", for the run's `metrics.json`.
        tables: file name without suffix → rows of a CSV in the run's folder.
        figures: pictures, and how to read each.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Sequence[Row]] = field(default_factory=dict)
    figures: list[tuple[Figure, GalleryEntry]] = field(default_factory=list)


class Measurement(Protocol):
    """Made from a store and the texts: `X(store, texts)`; sees every pair of the store once."""

    def update(self, batch: Explanation, first: int) -> None:
        """Takes in a padded batch; its pairs are `store.pairs[first : first + len(batch)]`."""

    def result(self) -> Findings:
        """What was found; without pairs to which the question applies, nothing."""
