"""Documents named for queries by a file or by BM25: candidates to rerank, and hard negatives."""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from datasets import Dataset

from data_modules.collection import PairSet, TrainingTables, write_run
from data_modules.formats.layout import NamedPair
from data_modules.formats.named_pairs import ScoredLists, read_pairs
from data_modules.tables import cache_folder, integers, write_once
from gr_mvdr.evaluation.bm25 import InvertedLists, index_bm25, split_words
from gr_mvdr.evaluation.ranking import tie_order
from gr_mvdr.files import CONFIG, check_finished, sha256
from gr_mvdr.options import ExistingPath, Rule, Size, Text, exists, part, show
from gr_mvdr.progress import track
from gr_mvdr.texts import text_without_title

_KEY = "data.examples.negatives"
_RANKING = "retrieve.trec"  # of a run's folder
# In the configuration the path of a run is the teacher's unless it is given.
_Place = Annotated[str, Rule("an existing file or folder, unless path is one", exists)]


class NamedRows(NamedTuple):
    """The pairs of a file as rows of a collection's queries and documents.

    Attributes:
        queries, documents: (pairs,) int64 rows, in the file's order.
        scores: (pairs,) fp32, NaN = no score.
        positive: (pairs,) bool, True = the file calls the document relevant to the query.
    """

    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray
    positive: np.ndarray

    def ranked(self, document_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(queries, documents) sorted by query, then best document first; ties as in `Ranking`.

        Pairs without scores keep the file's order.
        """
        distinct, which = np.unique(self.documents, return_inverse=True)
        place_in_ties = np.argsort(tie_order([document_ids[row] for row in distinct.tolist()]))
        ties = np.where(np.isnan(self.scores), 0, place_in_ties[which])
        order = np.lexsort((ties, -self.scores, self.queries))
        return self.queries[order], self.documents[order]


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
        """Id → row."""
        ids = self.table["id"][:]
        return {ids[row]: row for row in self.rows}

    @cached_property
    def texts(self) -> dict[int, int]:
        """Hash of a text → row; the texts themselves may not fit into memory."""
        found: dict[int, int] = {}
        names = [name for name in ("text", "title") if name in self.table.column_names]
        rows = self.table.select_columns(names).select(self.rows)
        for row, texts in zip(self.rows, track(rows, "texts", total=len(rows)), strict=True):
            body = text_without_title(texts)
            for variant in (texts["text"], body, f"{texts.get('title', '')} {body}"):
                found.setdefault(_hash_text(variant), row)
        return found

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
) -> tuple[NamedRows, int, int]:
    """Collects named pairs as rows.

    Args:
        query_row, document_row: give the row of a name; None = unknown.

    Returns:
        The pairs; the number of pairs of other queries; the number of pairs of unknown documents.

    Raises:
        ValueError: a line of the pairs' file breaks the format.
    """
    columns = array("q"), array("q"), array("f"), array("b")
    other_queries = unknown_documents = 0
    for pair in pairs:
        if (query := query_row(pair.query_id)) is None:
            other_queries += 1
        elif (document := document_row(pair.document_id)) is None:
            unknown_documents += 1
        else:
            values = query, document, pair.score, pair.positive
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    kinds = np.int64, np.int64, np.float32, bool
    found = (np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return NamedRows(*found), other_queries, unknown_documents


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
    found: dict[str, list[str]] = {}
    for query, document in zip(*named.ranked(document_ids), strict=True):
        found.setdefault(query_ids[query], []).append(document_ids[document])
    return found


def index_texts(documents: Dataset) -> InvertedLists:
    """Builds a BM25 index over a table's column "text"."""
    texts = (text for rows in documents.iter(1000) for text in rows["text"])
    return index_bm25(documents["id"][:], map(split_words, texts))


@dataclass(kw_only=True)
class Negatives:
    """A source of hard negatives; a subclass names candidates for each query.

    A training example draws `n` candidates of its query. Relevant documents, documents that arrive
    after training and, with a teacher, documents that it did not score are no candidates. A query
    with fewer than `n` candidates takes them all, and random documents fill up the rest.

    Args:
        n: number of negatives per training example.
        teacher: a teacher's scores: a TREC run; the folder of a finished run, whose `retrieve.trec`
            is read; lines `positive_score negative_score query positive negative`; or a file or
            folder of `ScoredLists`. None = no teacher.

    Raises:
        UnfinishedRun: the folder of a run has no ranking.
    """

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

    @cached_property
    def sources(self) -> dict[str, str]:
        """Path → SHA-256, for each file that is read."""
        lists = {place: ScoredLists.find(place) for place in self.files.values()}
        files = [
            file for place, found in lists.items() for file in (found.files if found else [place])
        ]
        return {str(file): sha256(file) for file in files}

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, NamedRows | None]:
        """The candidates of the tables' queries, and the scores that a teacher gave these."""
        raise NotImplementedError

    def prepare(self, tables: TrainingTables) -> "NegativeDraws":
        """Reads or computes the negatives of a collection's training pairs.

        Raises:
            ValueError: a file breaks its format or, in training, names no known pair; or there are
                too few documents.
        """
        found, scored = self.candidates(tables)
        if "teacher" in self.files and scored is None:
            file = self.files["teacher"]
            scored = _read_rows(f"{_KEY}.teacher", file, tables)
        return NegativeDraws(tables, found, scored, self.n)


@dataclass(kw_only=True)
class RankedNegatives(Negatives):
    """Negatives drawn from the best documents that a run ranks for a query, except relevant ones.

    Args:
        depth: number of best documents per query, by score; in the file's order without scores.
    """

    depth: Size = 100

    def run(self, tables: TrainingTables) -> tuple[str, Path]:
        """Returns the option that names the run, for messages, and the run's file."""
        raise NotImplementedError

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, NamedRows | None]:
        """See `Negatives`; a run that is also the teacher is read once."""
        key, file = self.run(tables)
        is_teacher = file == self.files.get("teacher")
        run = _read_rows(key, file, tables)
        queries, documents = run.ranked(tables.documents["id"][:])
        best = np.arange(len(queries)) - np.searchsorted(queries, queries) < self.depth
        found = PairSet(queries[best], documents[best], len(tables.documents))
        return found, run if is_teacher else None


@part("negatives")
@dataclass(kw_only=True)
class Bm25Negatives(RankedNegatives):
    """Negatives from BM25's ranking of the documents that are known in training."""

    def run(self, tables: TrainingTables) -> tuple[str, Path]:
        """See `RankedNegatives`; the run is kept in the cache of ``datasets``.

        Raises:
            ValueError: BM25 retrieves nothing for any training query.
        """
        queries, documents = tables.queries, tables.documents
        known = hashlib.sha256(tables.known_rows.tobytes()).hexdigest()
        made_from = f"bm25/2 {self.depth} {queries._fingerprint} {documents._fingerprint} {known}"
        name = f"bm25-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.trec"

        def search(index: InvertedLists) -> Iterator[NamedPair]:
            rows = zip(queries["id"][:], queries["text"][:], strict=True)
            for query, text in track(rows, "BM25 run", total=len(queries)):
                for document, score in index.best(split_words(text), self.depth).items():
                    yield NamedPair("", query, document, score)

        run = cache_folder("runs") / name
        with write_once(run) as partial:
            if partial is not None:
                write_run(search(index_texts(documents.select(tables.known_rows))), partial, "bm25")
        if tables.training and not run.stat().st_size:
            raise ValueError(
                f"{_KEY}=bm25: no training query shares a word with a document: negatives=none"
            )
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

    def run(self, tables: TrainingTables) -> tuple[str, Path]:
        return f"{_KEY}.path", self.files["path"]


@part("negatives")
@dataclass(kw_only=True)
class OwnNegatives(RankedNegatives):
    """The negatives that came with the collection (DPR's, Wu's triples).

    Args:
        name: the name of a run in the collection's folder `negatives`; None = the only run.
    """

    name: Text | None = None

    def run(self, tables: TrainingTables) -> tuple[str, Path]:
        """See `RankedNegatives`.

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

    path: ExistingPath
    n: Size = 1

    def candidates(self, tables: TrainingTables) -> tuple[PairSet, NamedRows | None]:
        """See `Negatives`; documents that a triple calls positive for a query are no candidates."""
        found = _read_rows(f"{_KEY}.path", self.files["path"], tables, triples=True)
        size = len(tables.documents)
        positive = PairSet(found.queries[found.positive], found.documents[found.positive], size)
        kept = positive.places(found.queries, found.documents) < 0
        is_scored = "teacher" not in self.files and np.isfinite(found.scores).any()
        candidates = PairSet(found.queries[kept], found.documents[kept], size)
        return candidates, found if is_scored else None


def _read_rows(key: str, file: Path, tables: TrainingTables, triples: bool = False) -> NamedRows:
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
    found, other_queries, unknown = read_rows(track(pairs, f"reading {file.name}"), *finders)
    used, left_out = len(found.queries), other_queries + unknown
    said = (
        f"{other_queries:,} are of queries outside the {tables.split_name} split, {unknown:,} name "
        "documents that are not known in training"
    )
    if not used and tables.training:
        raise ValueError(f"{key}={file}: none of its {left_out:,} pairs can be used: {said}")
    if left_out:
        print(f"{file}: {used:,} of {used + left_out:,} pairs are used; {said}")
    return found


class NegativeDraws:
    """The negatives of one collection's training pairs, ready to be drawn."""

    def __init__(
        self, tables: TrainingTables, candidates: PairSet, scored: NamedRows | None, n: int
    ):
        """
        Args:
            tables: the split whose pairs get negatives.
            candidates: documents known in training; pairs of `tables.relevant` are removed here.
            scored: a teacher's scores; if a pair has several, the first counts. None = no teacher.
            n: number of documents per draw.

        Raises:
            ValueError: a query has fewer than `n` known documents that are not relevant.
        """
        self.query_rows = integers(tables.pairs, "query_row")
        self.document_rows = integers(tables.pairs, "document_row")
        self.relevant, self.known, self.n = tables.relevant, tables.known_rows, n
        self.scored = None
        queries, documents = candidates.queries, candidates.documents
        kept = self.relevant.places(queries, documents) < 0
        if scored is not None:
            self.scored = PairSet(scored.queries, scored.documents, len(tables.documents))
            # The last value, which −1 points to, is NaN for pairs that the teacher did not score.
            self.values = np.append(scored.scores[self.scored.first], np.float32(np.nan))
            kept &= np.isfinite(self.scores(queries, documents))
        self.candidates = PairSet(queries[kept], documents[kept], len(tables.documents))
        self._check(tables)

    def _check(self, tables: TrainingTables) -> None:
        split, size = tables.split_name, len(tables.queries)
        most = len(self.known) - int(self.relevant.counts(size).max(initial=1))
        if self.n > most:
            rule = f"must be ≤ {most}, the known documents that are not relevant to a query"
            raise ValueError(f"{_KEY}.n={self.n}: {rule}")
        if few := int((self.candidates.counts(size) < self.n).sum()):
            print(
                f"{few:,} of {size:,} {split} queries have fewer than {self.n} "
                "candidates for negatives: random documents fill them up"
            )
        if self.scored is not None:
            scores = self.scores(self.query_rows, self.document_rows)
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
        query = int(self.query_rows[pair])
        own = self.candidates.of(query)
        chosen = rng.choice(own, min(self.n, len(own)), replace=False).tolist()
        rows = self._fill_up(chosen, self.relevant.of(query).tolist(), rng)
        if self.scored is None:
            return rows, None
        return rows, self.scores(query, [document, *rows]).tolist()

    def _fill_up(
        self, chosen: list[int], excluded: list[int], rng: np.random.Generator
    ) -> list[int]:
        while len(chosen) < self.n:
            row = int(self.known[rng.integers(len(self.known))])
            if row not in chosen and row not in excluded:
                chosen.append(row)
        return chosen
