"""Hard negatives: documents that each training query is told apart from, and their teacher."""

from functools import cached_property
from pathlib import Path

import numpy as np

from data_modules.formats.files import sha256
from data_modules.formats.named_pairs import LIST, RANKING, RUN, SCORED_TRIPLE, TRIPLE
from data_modules.lexical import stored_run
from data_modules.negative_draws import NegativeDraws, Teacher
from data_modules.pair_rows import NamedRows, PairSet, read_named_rows
from data_modules.tasks import TrainingTables
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.parts import part

_KEY = "data.examples.negatives"


class Negatives:
    """Where hard negatives come from; a subclass names candidates for each query.

    Each time that a pair is drawn, `n` of its query's candidates are drawn with it. Relevant
    documents and those that arrive after training are no candidates, and with a teacher neither is
    a document that it did not score. A query with fewer than `n` candidates takes all, and random
    other documents beside them.
    """

    def __init__(self, n: int, teacher: str | None = None):
        """
        Args:
            n: negatives a query and step.
            teacher: a file with a teacher's scores: a TREC run, or lines
                `positive_score negative_score query positive negative`; None = no teacher.

        Raises:
            FileNotFoundError: there is no such file.
        """
        self.n = n
        self.teacher = None if teacher is None else _file("teacher", teacher)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of each file that is read, by its path."""
        return {str(file): sha256(file) for file in self.files}

    @property
    def files(self) -> list[Path]:
        """What is read."""
        return [] if self.teacher is None else [self.teacher]

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, NamedRows | None]:
        """The candidates of the tables' queries, and scores if they came with a teacher's."""
        raise NotImplementedError

    def prepare(self, tables: TrainingTables) -> NegativeDraws:
        """Reads or computes the negatives of a collection's training pairs.

        Raises:
            ValueError: a file is wrong or names nothing that is known; too few documents.
        """
        found, scored = self.candidates(tables)
        if self.teacher is not None:
            scored = read_named_rows(f"{_KEY}.teacher", self.teacher, tables, (RUN, SCORED_TRIPLE))
        teacher = None if scored is None else Teacher(scored, len(tables.documents))
        return NegativeDraws(tables, found, teacher, self.n)


@part("negatives")
class Bm25Negatives(Negatives):
    """Random ones of the documents that BM25 finds and that are not relevant."""

    def __init__(self, n: int, depth: int = 100, teacher: str | None = None):
        """
        Args:
            n, teacher: see `Negatives`.
            depth: best documents that BM25 finds for a query.
        """
        super().__init__(n, teacher)
        self.depth = depth

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, None]:
        """See `Negatives`; what BM25 finds is kept as a TREC run.

        Raises:
            ValueError: it finds nothing for any training query.
        """
        run = stored_run(tables.queries, tables.documents, tables.bm25, self.depth)
        if tables.training and not run.stat().st_size:
            raise ValueError(
                f"{_KEY}=bm25: no training query shares a word with a document: negatives=none"
            )
        return _best(f"{_KEY}=bm25", run, tables, self.depth), None


@part("negatives")
class RunNegatives(Negatives):
    """Random ones of the documents that a run ranks and that are not relevant."""

    def __init__(self, path: str, n: int, depth: int = 100, teacher: str | None = None):
        """
        Args:
            path: a TREC run of the training queries, such as another system's `retrieve.trec`, or
                another file that names negatives (`data_modules.formats.named_pairs`).
            n, teacher: see `Negatives`.
            depth: the run's best documents of a query, by score.
        """
        super().__init__(n, teacher)
        self.path, self.depth = _file("path", path), depth

    @property
    def files(self) -> list[Path]:
        """The run and the teacher's file."""
        return [self.path, *super().files]

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, None]:
        """See `Negatives`; without scores the file's order counts."""
        return _best(f"{_KEY}.path", self.path, tables, self.depth), None


@part("negatives")
class OwnNegatives(Negatives):
    """Random ones of the negatives that came with the collection (DPR's, Wu's triples)."""

    def __init__(self, name: str, n: int, depth: int = 100, teacher: str | None = None):
        """
        Args:
            name: of a run in the collection's folder `negatives`.
            n, depth, teacher: see `RunNegatives`.
        """
        super().__init__(n, teacher)
        self.name, self.depth = name, depth

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, None]:
        """See `Negatives`.

        Raises:
            ValueError: the collection has no negatives of this name.
        """
        if self.name not in tables.negatives:
            names = ", ".join(tables.negatives) or "none"
            raise ValueError(f"{_KEY}.name={self.name}: must be of the collection's own: {names}")
        return _best(f"{_KEY}.name", tables.negatives[self.name], tables, self.depth), None


def _best(key: str, file: Path, tables: TrainingTables, depth: int) -> PairSet:
    """The `depth` best documents of each query in a TREC run; ties as in `Ranking`."""
    run = read_named_rows(key, file, tables, (RUN, RANKING))
    # Without scores nothing ties: the file's order counts.
    ties = np.where(np.isnan(run.scores), 0, _places_in_ties(run.documents, tables))
    order = np.lexsort((ties, -run.scores, run.queries))
    queries, documents = run.queries[order], run.documents[order]
    rank = np.arange(len(queries)) - np.searchsorted(queries, queries)
    best = rank < depth
    return PairSet(queries[best], documents[best], len(tables.documents))


def _places_in_ties(documents: np.ndarray, tables: TrainingTables) -> np.ndarray:
    """(n,) int64: the place of each of these rows among documents of equal scores."""
    distinct, which = np.unique(documents, return_inverse=True)
    ids = tables.documents["id"][:]
    order = tie_order([ids[row] for row in distinct.tolist()])
    return np.argsort(order)[which]


@part("negatives")
class TripleNegatives(Negatives):
    """Random ones of the negatives that triples give a query (MS MARCO; mva §2.3).

    The training pairs stay those of the collection's judgements.
    """

    def __init__(self, path: str, n: int = 1, teacher: str | None = None):
        """
        Args:
            path: lines `query positive negative …` of ids, or a teacher's margins,
                `positive_score negative_score query positive negative`, or lists
                `query negative,negative,…`, or JSON (see `json_pairs`).
            n: see `Negatives`.
            teacher: see `Negatives`; None = the scores of the triples, if they have any.
        """
        super().__init__(n, teacher)
        self.path = _file("path", path)

    @property
    def files(self) -> list[Path]:
        """The triples and the teacher's file."""
        return [self.path, *super().files]

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, NamedRows | None]:
        """See `Negatives`; a document that a triple calls positive is no candidate of its query."""
        found = read_named_rows(f"{_KEY}.path", self.path, tables, (TRIPLE, SCORED_TRIPLE, LIST))
        size = len(tables.documents)
        positive = PairSet(found.queries[found.positive], found.documents[found.positive], size)
        kept = positive.places(found.queries, found.documents) < 0
        scored = found if np.isfinite(found.scores).any() else None
        return PairSet(found.queries[kept], found.documents[kept], size), scored


def _file(key: str, path: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{_KEY}.{key}={path}: no such file")
    return file
