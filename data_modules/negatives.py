"""Documents named for queries by a file or by BM25: candidates to rerank, and hard negatives."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from datasets import Dataset

from data_modules.collection import PairSet, TrainingTables, cache_folder, write_once, write_run
from data_modules.formats.layout import NamedPair
from data_modules.formats.named_pairs import ScoredLists, read_pairs
from gr_mvdr.analyzer import Analyzer
from gr_mvdr.evaluation.bm25 import InvertedLists, count_terms
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.files import CONFIG, check_finished
from gr_mvdr.options import ExistingPath, Rule, Size, Text, exists, part, show
from gr_mvdr.passages import document_ids
from gr_mvdr.progress import track
from gr_mvdr.texts import text_without_title

_KEY = "data.examples.negatives"
_RANKING = "retrieve.trec"  # of a run's folder
# In the configuration the path of a run is the teacher's unless it is given.
_Place = Annotated[str, Rule("an existing file or folder, unless path is one", exists)]


# The pairs of a file as rows of a collection's queries and documents, in the file's order.
# score: NaN = the file has none; positive: whether it calls the document relevant to the query.
NAMED = np.dtype(
    [("query", np.int64), ("document", np.int64), ("score", np.float32), ("positive", bool)]
)


def rank_rows(named: np.ndarray, document_ids: Sequence[str]) -> np.ndarray:
    """Sorts `NAMED` pairs by query, then best document first; ties as in `Ranking`.

    Pairs without scores keep the file's order.
    """
    distinct, which = np.unique(named["document"], return_inverse=True)
    place_in_ties = np.argsort(tie_order([document_ids[row] for row in distinct.tolist()]))
    ties = np.where(np.isnan(named["score"]), 0, place_in_ties[which])
    return named[np.lexsort((ties, -named["score"], named["query"]))]


class RowFinder:
    """Finds the row of a query or a document by its id, or else by its text.

    Texts are equal if they differ in white space alone. A document's text is found with its title
    before it or without. Ties go to the first document.
    """

    def __init__(self, table: Dataset, rows: Sequence[int]):
        """
        Args:
            table: columns id, text (the joined fields) and, for documents, title.
            rows: the rows that can be found.
        """
        self.table, self.rows = table, rows

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id → row; of a document with passages, the row of the first."""
        ids, documents = self.table["id"][:], document_ids(self.table)
        first = {documents[row]: row for row in reversed(self.rows)}
        return first | {ids[row]: row for row in self.rows}

    @cached_property
    def texts(self) -> dict[int, int]:
        """Hash of a text → row; the texts themselves may not fit into memory."""
        row_of: dict[int, int] = {}
        names = [name for name in ("text", "title") if name in self.table.column_names]
        rows = self.table.select_columns(names).select(self.rows)
        for row, texts in zip(self.rows, track(rows, "texts", total=len(rows)), strict=True):
            body = text_without_title(texts)
            for variant in (texts["text"], body, f"{texts.get('title', '')} {body}"):
                row_of.setdefault(_hash_text(variant), row)
        return row_of

    def by_text(self, text: str) -> int | None:
        """Returns the row of a text; None if no row has it."""
        return self.texts.get(_hash_text(text))

    def __call__(self, name: str) -> int | None:
        """Returns the row of an id or a text; None if no row has it."""
        row = self.ids.get(name)
        return self.by_text(name) if row is None else row


def _hash_text(text: str) -> int:
    return hash(" ".join(text.split()))


def read_rows(
    pairs: Iterable[NamedPair],
    query_row: Callable[[str], int | None],
    document_row: Callable[[str], int | None],
) -> tuple[np.ndarray, int, int]:
    """Collects named pairs as rows.

    Args:
        query_row, document_row: give the row of a name; None = unknown.

    Returns:
        The pairs as `NAMED`; the number of pairs of other queries and of unknown documents.

    Raises:
        ValueError: a line of the pairs' file breaks the format.
    """
    other_queries = unknown_documents = 0

    def rows() -> Iterator[tuple[int, int, float, bool]]:
        nonlocal other_queries, unknown_documents
        for pair in pairs:
            if (query := query_row(pair.query_id)) is None:
                other_queries += 1
            elif (document := document_row(pair.document_id)) is None:
                unknown_documents += 1
            else:
                yield query, document, pair.score, pair.positive

    named = np.fromiter(rows(), NAMED)
    return named, other_queries, unknown_documents


def read_candidates(
    path: str | Path, query_ids: Sequence[str], document_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Query id → the ids of the documents that the file names for it, best first.

    Args:
        path: a TREC run, or another form that `read_pairs` reads.
        query_ids: the queries that are reranked.
        document_ids: the documents of the corpus.

    Returns:
        Only queries that have a candidate in the corpus.
    """
    file = Path(path).expanduser()
    rows = ({id: row for row, id in enumerate(ids)}.get for ids in (query_ids, document_ids))
    pairs = track(read_pairs(file), f"reading {file.name}")
    named, _, unknown = read_rows(pairs, *rows)
    if unknown:
        print(f"{file}: {unknown:,} candidates are not in the collection and are left out")
    candidates: dict[str, list[str]] = {}
    for query, document, *_ in rank_rows(named, document_ids).tolist():
        candidates.setdefault(query_ids[query], []).append(document_ids[document])
    return candidates


@dataclass(kw_only=True)
class Negatives:
    """A source of hard negatives; a subclass names candidates for each query.

    A training example draws `n` candidates of its query. Relevant documents, documents that arrive
    after training and, with a teacher, documents that it did not score are not candidates. A query
    with fewer than `n` candidates takes them all, and random documents fill up the rest.

    Args:
        n: number of negatives per training example.
        teacher: a teacher's scores: a TREC run; the folder of a finished run, whose `retrieve.trec`
            is read; lines `positive_score negative_score query positive negative`; or a file or
            folder of `ScoredLists`. None = no teacher.

    Raises:
        UnfinishedRun: the folder of a run has no ranking.
    """

    triples: ClassVar[bool] = False  # whether the file holds triples, see `read_pairs`

    n: Size
    teacher: ExistingPath | None = None

    def __post_init__(self):
        self.files: dict[str, Path] = {}
        for key in ("teacher", "path"):  # the path may be the teacher's
            if (path := getattr(self, key, None)) is not None:
                place = Path(path).expanduser()
                if (place / CONFIG).is_file():
                    check_finished(f"{_KEY}.{key}={path}", place, (_RANKING,))
                    place /= _RANKING
                self.files[key] = place

    def source(self, tables: TrainingTables) -> tuple[str, Path]:
        """Returns the option that names the file of candidates, for messages, and the file."""
        return f"{_KEY}.path", self.files["path"]

    def choose(self, named: np.ndarray, tables: TrainingTables) -> np.ndarray:
        """Returns those of the file's pairs (`NAMED`) that are candidates."""
        raise NotImplementedError

    def prepare(self, tables: TrainingTables) -> Self:
        """Returns a copy that draws negatives for the training pairs of `tables`.

        Raises:
            ValueError: a file breaks its format or, in training, names no known pair; or a query
                has fewer than `n` known documents that are not relevant.
        """
        prepared, (key, file) = copy(self), self.source(tables)
        named = _read_rows(key, file, tables, self.triples)
        teacher = self.files.get("teacher")
        scored = named if self.triples and np.isfinite(named["score"]).any() else None
        if teacher is not None:  # a run that is also the teacher is read once
            is_read = file == teacher and not self.triples
            scored = named if is_read else _read_rows(f"{_KEY}.teacher", teacher, tables)
        prepared.tables, prepared.scored = tables, None
        chosen = self.choose(named, tables)
        chosen = chosen[tables.relevant.places(chosen["query"], chosen["document"]) < 0]
        if scored is not None:
            prepared.scored = PairSet(scored["query"], scored["document"], len(tables.documents))
            # Of several scores of a pair, the first counts. The last value, which −1 points to, is
            # NaN for pairs that the teacher did not score.
            prepared.values = np.append(scored["score"][prepared.scored.first], np.float32(np.nan))
            chosen = chosen[np.isfinite(prepared.scores(chosen["query"], chosen["document"]))]
        prepared.drawn_from = PairSet(chosen["query"], chosen["document"], len(tables.documents))
        prepared._check()
        return prepared

    def _check(self) -> None:
        split, size = self.tables.split_name, len(self.tables.queries)
        most = len(self.tables.known_rows) - int(self.tables.relevant.counts(size).max(initial=1))
        if self.n > most:
            rule = f"must be ≤ {most}, the known documents that are not relevant to a query"
            raise ValueError(f"{_KEY}.n={self.n}: {rule}")
        if few := int((self.drawn_from.counts(size) < self.n).sum()):
            print(
                f"{few:,} of {size:,} {split} queries have fewer than {self.n} "
                "candidates for negatives: random documents fill them up"
            )
        if self.scored is not None:
            scores = self.scores(self.tables.query_rows, self.tables.document_rows)
            if missing := int(np.isnan(scores).sum()):
                print(f"{missing:,} of {len(scores):,} {split} pairs have no score by the teacher")

    def scores(self, query: int | np.ndarray, documents: list[int] | np.ndarray) -> np.ndarray:
        """The teacher's scores of n documents for one query or n queries: (n,) fp32, NaN = none."""
        return self.values[self.scored.places(query, documents)]

    def draw(
        self, pair: int | None, document: int, rng: np.random.Generator
    ) -> tuple[list[int], list[float] | None]:
        """Draws n distinct documents for a training pair; pair None = a source without a query.

        Args:
            document: the row of the relevant document.

        Returns:
            The n rows, and the teacher's scores of `document` and of the n rows: 1 + n values, NaN
            = not scored (all NaN without a pair); None = no teacher.
        """
        if pair is None:
            rows = self._fill_up([], [document], rng)
            return rows, None if self.scored is None else [np.nan] * (1 + self.n)
        query = int(self.tables.query_rows[pair])
        own = self.drawn_from.of(query)
        chosen = rng.choice(own, min(self.n, len(own)), replace=False).tolist()
        rows = self._fill_up(chosen, self.tables.relevant.of(query).tolist(), rng)
        if self.scored is None:
            return rows, None
        return rows, self.scores(query, [document, *rows]).tolist()

    def _fill_up(
        self, chosen: list[int], excluded: list[int], rng: np.random.Generator
    ) -> list[int]:
        known = self.tables.known_rows
        while len(chosen) < self.n:
            row = int(known[rng.integers(len(known))])
            if row not in chosen and row not in excluded:
                chosen.append(row)
        return chosen


@dataclass(kw_only=True)
class RankedNegatives(Negatives):
    """Negatives drawn from the best documents that a run ranks for a query, except relevant ones.

    Args:
        depth: number of best documents per query, by score; in the file's order without scores.
    """

    depth: Size = 100

    def choose(self, named: np.ndarray, tables: TrainingTables) -> np.ndarray:
        ranked = rank_rows(named, tables.documents["id"][:])
        place = np.arange(len(ranked)) - np.searchsorted(ranked["query"], ranked["query"])
        return ranked[place < self.depth]


@part("negatives")
@dataclass(kw_only=True)
class Bm25Negatives(RankedNegatives):
    """Negatives from BM25's ranking of the documents that are known in training."""

    def source(self, tables: TrainingTables) -> tuple[str, Path]:
        """See `Negatives`; the run is kept in the cache of ``datasets``."""
        queries, documents = tables.queries, tables.documents
        rows = hashlib.sha256(tables.known_rows.tobytes()).hexdigest()
        analyzer = Analyzer(tables.language)
        texts = f"{queries._fingerprint} {documents._fingerprint} {rows}"
        made_from = f"bm25/3 {analyzer.language} {self.depth} {texts}"
        name = f"bm25-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.trec"

        def search(index: InvertedLists) -> Iterator[NamedPair]:
            rows = zip(queries["id"][:], queries["text"][:], strict=True)
            for query, text in track(rows, "BM25 run", total=len(queries)):
                for document, score in index.best(analyzer.terms(text), self.depth).items():
                    yield NamedPair("", query, document, score)

        run = cache_folder("runs") / name
        with write_once(run) as partial:
            if partial is not None:
                known = documents.select(tables.known_rows)
                counts = count_terms(known["id"][:], map(analyzer.terms, known["text"]))
                write_run(search(counts.bm25()), partial, "bm25")
        return f"{_KEY}=bm25", run


@part("negatives")
@dataclass(kw_only=True)
class RunNegatives(RankedNegatives):
    """Negatives from the ranking in a file.

    Args:
        path: a TREC run of the training queries, such as another system's `retrieve.trec`; the
            folder of that run; or another file or folder that names negatives
            (`data_modules.formats.named_pairs`). The configuration takes the teacher's by default.
    """

    path: _Place


@part("negatives")
@dataclass(kw_only=True)
class OwnNegatives(RankedNegatives):
    """The negatives that came with the collection (DPR's, Wu's triples).

    Args:
        name: the name of a run in the collection's folder `negatives`; None = the only run.
    """

    name: Text | None = None

    def source(self, tables: TrainingTables) -> tuple[str, Path]:
        """See `Negatives`.

        Raises:
            ValueError: the collection has no negatives of this name.
        """
        own = tables.negatives
        name = next(iter(own)) if self.name is None and len(own) == 1 else self.name
        if name not in own:
            names = ", ".join(own) or "none"
            raise ValueError(f"{_KEY}.name={show(name)}: must be of the collection's own: {names}")
        return f"{_KEY}.name", own[name]


@part("negatives")
@dataclass(kw_only=True)
class TripleNegatives(Negatives):
    """Negatives drawn from those that a file of triples names for a query (MS MARCO; mva §2.3).

    The training pairs still come from the collection's judgements, not from the triples.

    Args:
        path: lines `query positive negative …` of ids, or a teacher's margins,
            `positive_score negative_score query positive negative`, or JSON (see `read_pairs`), or
            `ScoredLists`.
        teacher: see `Negatives`; None = the scores of `path`, if it has any.
    """

    triples: ClassVar[bool] = True

    path: ExistingPath
    n: Size = 1

    def choose(self, named: np.ndarray, tables: TrainingTables) -> np.ndarray:
        """See `Negatives`; documents that a triple calls positive for a query are left out."""
        positive = named[named["positive"]]
        positive = PairSet(positive["query"], positive["document"], len(tables.documents))
        return named[positive.places(named["query"], named["document"]) < 0]


def _read_rows(key: str, file: Path, tables: TrainingTables, triples: bool = False) -> np.ndarray:
    """Reads a file of named pairs, and prints how many have an unknown query or document.

    In `ScoredLists` a table of texts decides which row an id stands for, because the ids of another
    source may be those of other texts here. Without such a table, names are ids or texts.

    Args:
        key: the option that names the file, for the message.
        triples: see `read_pairs`.

    Raises:
        ValueError: a line breaks the format or, in training, no pair is known.
    """
    queries = RowFinder(tables.queries, range(len(tables.queries)))
    documents = RowFinder(tables.documents, tables.known_rows.tolist())
    if lists := ScoredLists.find(file):
        pairs = lists.pairs()
        finders = [
            {name: finder.by_text(text) for name, text in lists.named_texts(side)}.get
            if lists.texts[side]
            else finder
            for side, finder in (("query", queries), ("document", documents))
        ]
    else:
        pairs, finders = read_pairs(file, triples), [queries.ids.get, documents.ids.get]
    named, other_queries, unknown = read_rows(track(pairs, f"reading {file.name}"), *finders)
    used, left_out = len(named), other_queries + unknown
    said = (
        f"{other_queries:,} are of queries outside the {tables.split_name} split, {unknown:,} name "
        "documents that are not known in training"
    )
    if not used and tables.training:
        raise ValueError(f"{key}={file}: none of its {left_out:,} pairs can be used: {said}")
    if tables.passages is not None:
        named["document"] = tables.passages.choose(named["query"], named["document"])
    if left_out:
        print(f"{file}: {used:,} of {used + left_out:,} pairs are used; {said}")
    return named
