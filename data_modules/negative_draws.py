"""Draws hard negatives from their candidates, with a teacher's scores of them."""

import numpy as np

from data_modules.columns import integers
from data_modules.pair_rows import NamedRows, PairSet
from data_modules.tasks import TrainingTables


class Teacher:
    """A teacher's scores of (query, document) pairs; of a pair scored twice, the first."""

    def __init__(self, scored: NamedRows, n_documents: int):
        self.pairs = PairSet(scored.queries, scored.documents, n_documents)
        # One more, which −1 points to, for pairs that it did not score.
        self.values = np.append(scored.scores[self.pairs.first], np.float32(np.nan))

    def scores(self, query: int | np.ndarray, documents: list[int] | np.ndarray) -> np.ndarray:
        """(n,) fp32 of a query's (or of n queries') documents; NaN = not scored."""
        return self.values[self.pairs.places(query, documents)]


class NegativeDraws:
    """The negatives of one collection's training pairs, ready to be drawn."""

    def __init__(
        self, tables: TrainingTables, candidates: PairSet, teacher: Teacher | None, n: int
    ):
        """
        Args:
            tables: whose pairs are numbered.
            candidates: documents known in training; those in `tables.relevant` are left out here.
            teacher: None = no scores; n: documents that each draw gives.

        Raises:
            ValueError: `n` leaves too few documents to draw from.
        """
        size = len(tables.documents)
        self.query_rows = integers(tables.pairs, "query_row")
        self.document_rows = integers(tables.pairs, "document_row")
        self.relevant = tables.relevant
        queries, documents = candidates.queries, candidates.documents
        kept = self.relevant.places(queries, documents) < 0
        if teacher is not None:
            kept &= np.isfinite(teacher.scores(queries, documents))
        self.candidates = PairSet(queries[kept], documents[kept], size)
        self.known, self.teacher, self.n = tables.known_rows, teacher, n
        self._check(tables)

    def _check(self, tables: TrainingTables) -> None:
        split = "training" if tables.training else "validation"
        most = len(self.known) - int(self.relevant.counts(len(tables.queries)).max(initial=1))
        if self.n > most:
            rule = f"must be ≤ {most}, the known documents that are not relevant to a query"
            raise ValueError(f"data.examples.negatives.n={self.n}: {rule}")
        few = int((self.candidates.counts(len(tables.queries)) < self.n).sum())
        if few:
            print(
                f"{few:,} of {len(tables.queries):,} {split} queries have fewer than {self.n} "
                "candidates for negatives: random documents fill them up"
            )
        if self.teacher is not None:
            scores = self.teacher.scores(self.query_rows, self.document_rows)
            if missing := int(np.isnan(scores).sum()):
                print(f"{missing:,} of {len(scores):,} {split} pairs have no score by the teacher")

    def draw(self, pair: int, rng: np.random.Generator) -> tuple[list[int], list[float] | None]:
        """n distinct documents for a training pair.

        Returns:
            Their rows, and a teacher's 1 + n scores of the pair's document and of them.
        """
        query, document = int(self.query_rows[pair]), int(self.document_rows[pair])
        own = self.candidates.of(query)
        chosen = rng.choice(own, min(self.n, len(own)), replace=False).tolist()
        rows = self._filled(chosen, self.relevant.of(query).tolist(), rng)
        if self.teacher is None:
            return rows, None
        return rows, self.teacher.scores(query, [document, *rows]).tolist()

    def draw_beside(
        self, row: int, rng: np.random.Generator
    ) -> tuple[list[int], list[float] | None]:
        """n random documents beside one whose source is no training query; none is scored."""
        rows = self._filled([], [row], rng)
        return rows, None if self.teacher is None else [np.nan] * (1 + self.n)

    def _filled(
        self, chosen: list[int], excluded: list[int], rng: np.random.Generator
    ) -> list[int]:
        taken = {*chosen, *excluded}
        while len(chosen) < self.n:
            row = int(self.known[rng.integers(len(self.known))])
            if row not in taken:
                taken.add(row)
                chosen.append(row)
        return chosen
