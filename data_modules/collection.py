"""A retrieval collection: tables of documents, queries and judgements.

The tables are written once, as Arrow files with a manifest, and memory-mapped from then on.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.table import InMemoryTable
from transformers import PreTrainedTokenizerBase

from data_modules.formats.layout import Layout, LayoutChecks, NamedPair
from data_modules.tables import (
    TokenColumn,
    arrow_column,
    cache_folder,
    damage_named,
    find_rows,
    integers,
    open_table,
    short_hash,
    write_once,
    write_table,
)
from gr_mvdr.files import checksum, read_json, sha256, verify, write_json
from gr_mvdr.progress import track
from gr_mvdr.template import TextTemplate

MANIFEST = "manifest.json"
BUILT = MANIFEST, "documents.arrow"  # files of every built collection
VERSION = 1  # of the stored tables: raise it when the same layout should give different tables
DOCUMENTS = Features({"id": Value("string"), "title": Value("string"), "text": Value("string")})
QUERIES = Features({"id": Value("string"), "text": Value("string")})
JUDGEMENTS = Features(
    {"query_id": Value("string"), "document_id": Value("string"), "relevance": Value("int64")}
)


@dataclass(frozen=True)
class Collection:
    """Documents, queries and qrels (gr_as_mvdr §5.1) as memory-mapped tables.

    Args:
        name: short name for reports.
        documents: columns ``id``, ``title`` (may be empty), ``text``.
        queries: columns ``id``, ``text``; a generated collection may add ``gold``, the character
            spans of the relevant document's ``text`` that answer the query.
        qrels: split → a table with columns ``query_id``, ``document_id``, ``relevance`` (an integer
            grade; 0 and below means irrelevant). Judgements may name documents that the collection
            lacks; no search finds these.
        sources: what the tables were made from: path → SHA-256 of each file, or a generator's
            parameters.
        folder: where the collection is stored; None = it has no folder (generated collections).
        candidates: split → a TREC run of documents to rerank.
        negatives: name → a TREC run of hard negatives.
    """

    name: str
    documents: Dataset
    queries: Dataset
    qrels: dict[str, Dataset]
    sources: dict[str, str]
    folder: Path | None = None
    candidates: dict[str, Path] = field(default_factory=dict)
    negatives: dict[str, Path] = field(default_factory=dict)

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """The qrels of a split: query id → {document id: grade}."""
        grades: dict[str, dict[str, int]] = {}
        for query_id, document_id, grade in _judged_triples(self.qrels[split]):
            grades.setdefault(query_id, {})[document_id] = grade
        return grades

    def relevant_documents(self, split: str) -> set[str]:
        """The ids of the documents that a split judges relevant to a query."""
        return {document for _, document, grade in _judged_triples(self.qrels[split]) if grade > 0}

    def split_queries(self, split: str) -> Dataset:
        """The queries that have a judgement in a split, in the order of the queries' table."""
        return self.queries.select(np.flatnonzero(self._are_judged(split)))

    def _are_judged(self, split: str) -> np.ndarray:
        """(queries,) bool, True = the query has a judgement in the split."""
        judged = arrow_column(self.qrels[split], "query_id")
        return pc.is_in(arrow_column(self.queries, "id"), value_set=judged).to_numpy()

    def group_queries(self, split: str, pattern: str | None) -> dict[str, str]:
        """Query id → the match of a regular expression in it (xtr Table 3: its relation).

        Returns:
            All queries of the split; {} without a pattern.

        Raises:
            ValueError: an id has no match, or an empty one.
        """
        groups = {}
        for query in self.split_queries(split)["id"][:] if pattern else ():
            if not (match := re.search(pattern, query)) or not match[0]:
                rule = f"must find something in the query id {query!r}"
                raise ValueError(f"data.groups={pattern}: {rule}")
            groups[query] = match[0]
        return groups

    def default_test_split(self, train_split: str | None) -> str:
        """The test split if none is named: test, else dev, else the only one besides training.

        Raises:
            ValueError: no such split, or several.
        """
        others = [split for split in self.qrels if split != train_split]
        for split in ("test", "dev"):
            if split in others:
                return split
        if len(others) == 1:
            return others[0]
        raise ValueError(
            f"data.test_split=null: must be one of {', '.join(others) or 'none'}, the splits of "
            f"{self.name} besides the training split"
        )

    def unjudged(self, splits: Sequence[str]) -> dict[str, int]:
        """Counts the queries without a judgement or without a relevant document.

        Returns:
            The number of queries that no split judges; for each of `splits`, the number of judged
            queries to which no document of the collection is relevant. Zeros are left out.
        """
        judged = np.zeros(len(self.queries), dtype=bool)
        for split in self.qrels:
            judged |= self._are_judged(split)
        counts = {"in no split": int((~judged).sum())}
        documents = arrow_column(self.documents, "id")  # not a Python set: they may be millions
        for split in splits:
            table = self.qrels[split].to_pandas()
            known = pc.is_in(arrow_column(self.qrels[split], "document_id"), value_set=documents)
            answers = (table["relevance"] > 0) & known.to_numpy()
            answered = answers.groupby(table["query_id"]).any()
            counts[f"{split}: none relevant"] = int((~answered).sum())
        return {name: count for name, count in counts.items() if count}


def collect(
    layout: Layout, store: str | Path | None = None, empty_documents: str = "refuse"
) -> Collection:
    """Returns the collection of a layout: read and checked the first time, opened from then on.

    Args:
        store: where collections are kept; None = next to the cache of ``datasets``.
        empty_documents: "refuse", or "keep" documents that have neither title nor text.

    Raises:
        ValueError: the files break a rule of `LayoutChecks` (the message names ``file:line``) or
            have unexpected counts, and nothing is left behind; or the collection's folder is
            damaged.
        OSError: the disk is full; nothing is left behind.
    """
    place = find_store(store)
    sources = {str(file): _hash(file) for file in track(layout.files, f"hashing {layout.name}")}
    options = {**layout.options, "empty_documents": empty_documents}
    # The key depends on the files' names and contents, not on their folder.
    contents = sorted((Path(name).name, value) for name, value in sources.items())
    key = short_hash(VERSION, contents, sorted(options.items()))

    folder = place / f"{layout.name}-{key[:12]}"
    with write_once(folder) as partial:
        if partial is not None:
            partial.mkdir()
            try:
                counts = _write(layout, partial, LayoutChecks(layout, empty_documents))
            except pa.ArrowException as error:
                raise OSError(f"data.store={place}: could not be written: {error}") from None
            files = [file for file in sorted(partial.rglob("*")) if file.is_file()]
            manifest = {
                "name": layout.name,
                "format": VERSION,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "sources": sources,
                "options": options,
                "splits": [split for split in layout.judgements if split in counts],
                "counts": counts,
                "files": {str(f.relative_to(partial)): checksum(f) for f in files},
            }
            write_json(partial / MANIFEST, manifest)
    return open_collection(folder)


def find_store(store: str | Path | None) -> Path:
    """Returns the folder of built collections; None = next to the cache of ``datasets``."""
    return Path(store).expanduser() if store else cache_folder("collections")


def open_collection(folder: Path) -> Collection:
    """Opens a collection that `collect` has built; raises ValueError if it is damaged."""

    def table(name: str, features: Features) -> Dataset:
        fingerprint = hashlib.sha256(f"{folder.name}-{name}".encode()).hexdigest()[:32]
        return open_table(folder / f"{name}.arrow", features, fingerprint)

    def runs(kind: str) -> dict[str, Path]:
        return {file.stem: file for file in sorted((folder / kind).glob("*.trec"))}

    with damage_named(folder):
        manifest = read_json(folder / MANIFEST)
        for name, expected in manifest["files"].items():
            verify(folder / name, expected)
        return Collection(
            manifest["name"],
            table("documents", DOCUMENTS),
            table("queries", QUERIES),
            {split: table(f"qrels/{split}", JUDGEMENTS) for split in manifest["splits"]},
            manifest["sources"],
            folder,
            candidates=runs("candidates"),
            negatives=runs("negatives"),
        )


def _hash(file: Path) -> str:
    """The SHA-256 of a file, cached as long as the file's size and time stamp stay the same."""
    state = file.stat()
    name = short_hash(str(file.resolve()), state.st_size, state.st_mtime_ns)
    with write_once(cache_folder("hashes") / name) as partial:
        if partial is not None:
            partial.write_text(sha256(file))
    return (cache_folder("hashes") / name).read_text()


def _write(layout: Layout, folder: Path, checks: LayoutChecks) -> dict[str, int]:
    """Writes all tables and runs of a layout; returns name → number of rows."""

    def write(name: str, features: Features, rows: Iterable[Mapping]) -> int:
        rows = track(rows, f"{layout.name}: {Path(name).name}")
        return write_table(folder / f"{name}.arrow", features, rows)

    counts = {"documents": write("documents", DOCUMENTS, checks.documents())}
    counts["queries"] = write("queries", QUERIES, checks.queries())
    (folder / "qrels").mkdir()
    for split in layout.judgements:
        if count := write(f"qrels/{split}", JUDGEMENTS, checks.judgements(split)):
            counts[split] = count
        else:
            (folder / f"qrels/{split}.arrow").unlink()
            print(f"{layout.name}: the split {split!r} is empty and is left out")
    for kind, runs in (("candidates", layout.candidates), ("negatives", layout.negatives)):
        for name, ranked in runs.items():
            (folder / kind).mkdir(exist_ok=True)
            counts[f"{kind}/{name}"] = write_run(
                checks.ranked(kind, ranked), folder / kind / f"{name}.trec"
            )
    return counts


def write_run(ranked: Iterable[NamedPair], file: Path, tag: str = "given") -> int:
    """Writes a TREC run, ``query Q0 document rank score tag``; returns the number of lines.

    Args:
        ranked: pairs grouped by query, the documents of each query from best to worst.
    """
    count = 0
    with file.open("w", encoding="utf-8") as run:
        for query, documents in groupby(ranked, key=lambda row: row.query_id):
            for rank, row in enumerate(documents, start=1):
                run.write(f"{query} Q0 {row.document_id} {rank} {row.score!r} {tag}\n")
                count += 1
    return count


def _judged_triples(table: Dataset) -> Iterator[tuple[str, str, int]]:
    """Yields the rows of a qrels table as (query id, document id, grade)."""
    return zip(*(table[name][:] for name in JUDGEMENTS), strict=True)


def find_relevant_pairs(judgements: Dataset, queries: Dataset, documents: Dataset) -> Dataset:
    """The relevant judgements (grade > 0) as row numbers.

    Args:
        judgements: columns query_id, document_id, relevance.
        queries, documents: tables with a column id; judgements of other ids are left out.

    Returns:
        A table with the columns query_row and document_row.
    """
    query_rows = find_rows(arrow_column(judgements, "query_id"), queries)
    document_rows = find_rows(arrow_column(judgements, "document_id"), documents)
    relevant = integers(judgements, "relevance") > 0
    kept = relevant & (query_rows >= 0) & (document_rows >= 0)
    rows = {"query_row": query_rows[kept], "document_row": document_rows[kept]}
    made_from = [table._fingerprint for table in (judgements, queries, documents)]
    return Dataset(
        InMemoryTable(pa.table(rows)),
        fingerprint=short_hash("pairs/1", *made_from),
    )


class PairSet:
    """A set of (query row, document row) pairs."""

    def __init__(self, queries: np.ndarray, documents: np.ndarray, n_documents: int):
        """
        Args:
            queries, documents: (pairs,) int64 rows; pairs may repeat.
            n_documents: number of documents in the corpus.
        """
        self.n_documents = n_documents
        keys = np.asarray(queries, np.int64) * n_documents + np.asarray(documents, np.int64)
        # (P,) int64, ascending: query row · n_documents + document row, so that the pairs of a
        # query are neighbours.
        self.keys, self.first = np.unique(keys, return_index=True)

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, query: int) -> np.ndarray:
        """The rows of a query's documents, (documents,) int64, ascending."""
        start, end = np.searchsorted(self.keys, np.array([query, query + 1]) * self.n_documents)
        return self.keys[start:end] % self.n_documents

    def counts(self, n_queries: int) -> np.ndarray:
        """The number of documents of each query, (queries,) int64."""
        return np.bincount(self.keys // self.n_documents, minlength=n_queries)

    def places(self, query: int | np.ndarray, documents: Sequence[int] | np.ndarray) -> np.ndarray:
        """The places in `keys` of n pairs, (n,) int64; −1 = not in the set."""
        wanted = np.asarray(query, np.int64) * self.n_documents + np.asarray(documents, np.int64)
        if not len(self):
            return np.full(wanted.shape, -1)
        places = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        return np.where(self.keys[places] == wanted, places, -1)


@dataclass(frozen=True)
class TrainingTables:
    """The data of a split from which training examples are made.

    Attributes:
        pairs: the relevant pairs; columns query_row and document_row.
        queries: columns id, text, tokens, word_starts.
        documents: the same columns, title, title_tokens, and NAME_tokens for each view.
        query_length, document_length: maximum length in tokens, template tokens included.
        tokenizer: the run's tokeniser.
        template: the tokens around the texts that a model reads.
        special_tokens: name → token ids of a text that ends a source or a target.
        known: (known,) int64, rows of the documents that training may see; None = all.
        training: whether this is the train split; files of negatives may lack validation queries.
        negatives: name → a TREC run of hard negatives that came with the collection.
        mask_relevant: whether every known relevant document is excluded from a query's in-batch
            negatives; hard negatives always exclude them.
        drop_identical: whether the document with the query's own id is excluded like a relevant
            one.
    """

    pairs: Dataset
    queries: Dataset
    documents: Dataset
    query_length: int
    document_length: int
    tokenizer: PreTrainedTokenizerBase
    special_tokens: dict[str, list[int]] = field(default_factory=dict)
    template: TextTemplate = field(default_factory=TextTemplate)
    known: np.ndarray | None = None
    training: bool = True
    negatives: dict[str, Path] = field(default_factory=dict)
    mask_relevant: bool = False
    drop_identical: bool = False

    @property
    def split_name(self) -> str:
        """The name of the split in messages: "training" or "validation"."""
        return "training" if self.training else "validation"

    @cached_property
    def query_rows(self) -> np.ndarray:
        """(pairs,) int64, the query of each pair."""
        return integers(self.pairs, "query_row")

    @cached_property
    def document_rows(self) -> np.ndarray:
        """(pairs,) int64, the document of each pair."""
        return integers(self.pairs, "document_row")

    @cached_property
    def relevant(self) -> PairSet:
        """The pairs whose document is excluded from the query's negatives."""
        queries, documents = self.query_rows, self.document_rows
        if self.drop_identical:
            own = find_rows(arrow_column(self.queries, "id"), self.documents)
            asked = np.flatnonzero(own >= 0)
            queries = np.append(queries, asked)
            documents = np.append(documents, own[asked])
        return PairSet(queries, documents, len(self.documents))

    @cached_property
    def known_rows(self) -> np.ndarray:
        """(known,) int64, the rows in `known`, or all rows if `known` is None."""
        return np.arange(len(self.documents)) if self.known is None else np.asarray(self.known)

    @cached_property
    def document_tokens(self) -> TokenColumn:
        """The documents' token lists."""
        return TokenColumn(self.documents)

    @cached_property
    def query_tokens(self) -> TokenColumn:
        """The queries' token lists."""
        return TokenColumn(self.queries)
