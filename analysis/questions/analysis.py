"""An analysis: one question asked of a finished model, and its answer.

`conf/analysis/full.yaml` lists them. A new one is a class in a file and a line in that list, as in
docs/analysis.md. Its metrics, tables and figures reach the run's folder, its report, comparisons
and wandb.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from datasets import Dataset
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import GalleryEntry
from analysis.questions.alignment_store import AlignmentStore
from analysis.questions.tokens import TokenKinds
from analysis.runs.numbers import flatten_rows, make_frame
from analysis.statistics import spread
from data_modules.module import RetrievalDataModule
from gr_mvdr.batch import PairBatch
from gr_mvdr.measures import UNNAMED, Group, Measured, Metric, keep_finite
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation
from models.base import System


@dataclass(frozen=True)
class Texts:
    """Facts about a run's texts that the alignments do not hold.

    Attributes:
        idf: (V,) fp32 inverse document frequency of every token id.
        kinds: which ids are special, punctuation or stopwords.
        strings: token ids → their strings.
        gold: (query id, document id) → (2, m) bool over the document's tokens: the tokens that
            answer the question, and the tokens that state what the question gives
            (`analysis.questions.gold.find_gold_tokens`).
    """

    idf: Tensor
    kinds: TokenKinds
    strings: Callable[[Sequence[int]], list[str]]
    gold: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The finished run that an analysis examines.

    Attributes:
        model: the trained system; its index is built.
        data: the run's data.
        run: the run's folder.
        store: alignments of test pairs; None if the system has no alignment or the run stores none
            (`analysis.pairs=0`).
        texts: facts about the texts of these pairs.
    """

    model: System | None = None
    data: RetrievalDataModule | None = None
    run: Path | None = None
    store: AlignmentStore | None = None
    texts: Texts | None = None

    @property
    def split(self) -> str:
        """The split whose queries and pairs are examined: the first test split."""
        return self.data.evaluation.test_splits[0]

    def queries(self, most: int) -> Dataset:
        """Returns at most `most` test queries, evenly spread over the split."""
        return spread(self.data.evaluation.test_queries(self.split), most)

    def pairs(self, most: int, size: int, doing: str) -> Iterator[PairBatch]:
        """Yields batches of at most `most` pairs of a test query and a relevant document.

        The batches are on the model's device; `doing` describes the work in a progress bar.
        """
        _, batches = self.data.evaluation.test_pairs(
            self.split, most, size, covers=self.model.covers
        )
        for batch in track(batches, doing):
            yield batch.to(self.model.device)


@dataclass
class Findings:
    """The results of an analysis.

    Attributes:
        rows: the measured numbers.
        tables: file name without suffix → rows of a CSV file in the run's folder.
        figures: each figure with its title and caption.
        records: file name without suffix → content of a JSON file in the run's folder.
        queries: the values of each query, as `analysis.runs.queries` keeps them.
        group: the chapter of pages on which the figures stand.
    """

    rows: list[Measured] = field(default_factory=list)
    tables: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    figures: list[tuple[Figure, GalleryEntry]] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    queries: list[DataFrame] = field(default_factory=list)
    group: Group = UNNAMED

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers under their keys of `metrics.json`."""
        return flatten_rows(make_frame(self.rows))


@dataclass
class Analysis:
    """One question, built as `X(subject, **options)`: a dataclass, its fields are the options.

    An analysis of stored alignments collects its numbers in `update`; all such analyses share one
    pass over the store. An analysis that runs the model does so in `finish`. The model is in
    evaluation mode, and no gradients are recorded (`analysis.run.ask`).

    Attributes:
        subject: the run that it examines.
        name: the first part of its metrics' names, and its chapter on pages. Several analyses may
            share a name.
        title: the chapter's heading.
        reading: how to read its numbers, in a sentence or two.
        metrics: what it measures.
    """

    subject: Subject

    name: ClassVar[str]
    title: ClassVar[str] = ""
    reading: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        """Whether the analysis can examine this run; by default, whether alignments are stored."""
        return subject.store is not None

    def __post_init__(self) -> None:
        """Prepares what `update` and `finish` need besides the fields."""

    def update(self, batch: Explanation, first: int) -> None:
        """Adds a padded batch of the pairs `store.pairs[first : first + len(batch)]`."""

    def finish(self) -> Findings:
        """Returns the results; they are empty if no pair or query qualifies."""
        raise NotImplementedError

    @property
    def group(self) -> Group:
        return Group(self.name, self.title, self.reading)

    def rows(self, values: Mapping[str, float], place: str = "", part: str = "") -> list[Measured]:
        """Returns rows of declared metrics: name → value."""
        declared = {metric.name: metric for metric in self.metrics}
        return [declared[name].row(value, place, part) for name, value in values.items()]

    def findings(self, rows: Iterable[Measured] = (), *others: Any, **named: Any) -> Findings:
        """Returns findings of this analysis, without the numbers that are not finite."""
        return Findings(keep_finite(rows, self.group), *others, **named)


class PairAnalysis(Analysis):
    """An analysis that measures every stored pair and then summarises the measures.

    A subclass yields long tables of a batch (`analysis.statistics.long_frame`) from `measure`;
    `summarise` receives them all as one table.
    """

    def __post_init__(self) -> None:
        self.description, self.texts = self.subject.store.description, self.subject.texts
        self.parts: list[DataFrame] = []

    def update(self, batch: Explanation, first: int) -> None:
        self.parts += self.measure(batch, first)

    def finish(self) -> Findings:
        parts = [part for part in self.parts if len(part)]
        return self.summarise(pd.concat(parts, ignore_index=True)) if parts else Findings()

    def measure(self, batch: Explanation, first: int) -> Iterable[DataFrame]:
        """Returns tables of a batch's pairs, which are numbered first, first + 1, …"""
        raise NotImplementedError

    def summarise(self, frame: DataFrame) -> Findings:
        """Returns the findings; `frame` joins all tables of `measure` and has at least one row."""
        raise NotImplementedError
