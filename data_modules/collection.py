"""A retrieval collection: tables of documents, queries and judgements, and the columns in them.

Tables are Arrow files, which are written once and memory-mapped from then on. A built collection
has a manifest beside them.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Self

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetInfo, Features, Value
from datasets.table import ConcatenationTable, InMemoryTable, MemoryMappedTable
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from data_modules.formats.layout import Layout, LayoutChecks, NamedPair
from gr_mvdr.evaluation.bm25 import InvertedLists, Query
from gr_mvdr.fields import FIELDS_COLUMN, arrow_columns, common_types, typed_columns
from gr_mvdr.files import (
    checksum,
    name_errors,
    new_file,
    read_json,
    remove_abandoned,
    sha256,
    verify,
    write_json,
)
from gr_mvdr.progress import track
from gr_mvdr.template import TextTemplate

TABLES = "tables"  # the name of a folder of cached tables
ROWS = 1000  # rows held in memory before they are written
MANIFEST = "manifest.json"
BUILT = MANIFEST, "documents.arrow"  # files of every built collection
VERSION = 2  # of the stored tables: raise it when the same layout should give different tables
DOCUMENTS = Features({"id": Value("string"), "title": Value("string"), "text": Value("string")})
QUERIES = Features({"id": Value("string"), "text": Value("string")})
JUDGEMENTS = Features(
    {"query_id": Value("string"), "document_id": Value("string"), "relevance": Value("int64")}
)


@contextmanager
def write_once(path: Path) -> Iterator[Path | None]:
    """Yields a temporary path to write to, or None if `path` exists; other processes wait.

    At the end of the block the new file or folder is renamed to `path`. An error or interruption
    leaves nothing behind; the next call removes what a killed process left. If `path` exists,
    nothing is written: a complete cache may lie on a read-only disk.

    Args:
        path: the file or folder to write; if it exists, it is complete.
    """
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            yield None
            return
        remove_abandoned(path.parent, path.name)
        with new_file(path) as partial:
            yield partial


def write_table(file: Path, features: Features, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows as an Arrow stream, in bounded memory; returns the number of rows."""
    schema, rows = features.arrow_schema, iter(rows)
    some = iter(lambda: list(islice(rows, ROWS)), [])
    return write_batches(file, schema, (pa.RecordBatch.from_pylist(r, schema=schema) for r in some))


def write_documents(folder: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Writes documents, and their further fields, if there are any, as a second table.

    The types of the fields are known only at the end, so they are first written as they come.

    Returns:
        The number of documents.
    """
    rows, types, pieces = iter(rows), dict[str, pa.DataType](), folder / "pieces.arrow"
    schema, counts = DOCUMENTS.arrow_schema, list[int]()
    some = iter(lambda: list(islice(rows, ROWS)), [])
    with name_errors(pieces), pa.OSFile(str(pieces), "wb") as sink:

        def texts() -> Iterator[pa.RecordBatch]:
            for batch in some:
                fields = arrow_columns([row.pop(FIELDS_COLUMN) for row in batch])
                types.update(common_types(types, fields))
                with pa.ipc.new_stream(sink, fields.schema) as piece:
                    piece.write_table(fields)
                counts.append(len(batch))
                yield pa.RecordBatch.from_pylist(batch, schema=schema)

        write_batches(folder / "documents.arrow", schema, texts())
    if types:
        kinds = pa.schema(types)
        column = pa.schema([(FIELDS_COLUMN, pa.struct(list(kinds)))])
        with pa.OSFile(str(pieces), "rb") as source:
            read = ((pa.ipc.open_stream(source).read_all(), count) for count in counts)
            typed = (pa.record_batch(typed_columns(*one, types), kinds) for one in read)
            batches = (pa.record_batch([batch.to_struct_array()], column) for batch in typed)
            write_batches(folder / f"{FIELDS_COLUMN}.arrow", column, batches)
    pieces.unlink()
    return sum(counts)


def write_batches(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches of rows as an Arrow stream; returns the number of rows."""
    count = 0
    with (
        name_errors(file),
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            count += len(batch)
    return count


@contextmanager
def damage_named(kept: Path) -> Iterator[None]:
    """Turns errors of reading a kept folder or file into one that says what to do."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rule = "remove it, and it is made again"
        raise ValueError(f"{kept} is damaged ({reason}): {rule}") from None


def open_table(file: Path, features: Features, fingerprint: str) -> Dataset:
    """Memory-maps a table that `write_table` wrote.

    Args:
        fingerprint: identifies the content; tables made from this one are cached under it.

    Raises:
        ValueError: the file is not such a table.
    """
    with damage_named(file):
        table = MemoryMappedTable.from_file(str(file))
        return Dataset(table, info=DatasetInfo(features=features), fingerprint=fingerprint)


def keep_table(folder: Path, features: Features, key: str, write: Callable[[Path], Any]) -> Dataset:
    """Returns a memory-mapped table in a folder, written the first time.

    Args:
        key: identifies everything that the content depends on; becomes the table's fingerprint.
        write: writes the Arrow stream to a path.
    """
    file = folder / f"{key}.arrow"
    with write_once(file) as partial:
        if partial is not None:
            write(partial)
    return open_table(file, features, key)


def cache_table(rows: Callable[[], Iterator[dict]], features: Features, *made_from: str) -> Dataset:
    """Returns a memory-mapped table, written next to the cache of ``datasets`` the first time.

    Args:
        rows: returns an iterator over the rows; called only if the cache lacks the table.
        features: the columns and their types.
        made_from: everything that determines the rows (name and version of the code, hashes of
            files, parameters). A table with the same causes is read from the cache.

    Raises:
        Exception: any exception of ``rows``, unchanged; the cache then keeps nothing.
    """
    key = short_hash(str(features), *made_from)
    folder = cache_folder(TABLES)
    return keep_table(folder, features, key, lambda file: write_table(file, features, rows()))


def cache_folder(name: str) -> Path:
    """A folder next to the cache of ``datasets``."""
    return Path(datasets.config.HF_DATASETS_CACHE) / name


def short_hash(*causes: Any) -> str:
    """A cache key: the first 32 hexadecimal digits of the SHA-256 of the causes' JSON."""
    return hashlib.sha256(json.dumps(causes, default=str).encode()).hexdigest()[:32]


def sample_rows(table: Dataset, limit: int | None) -> Dataset:
    """A random sample of at most `limit` rows, in the table's order; None = all."""
    if limit is None or limit >= len(table):
        return table
    # Independent of the run's seed: runs with different seeds are measured on the same queries.
    chosen = np.random.default_rng(0).permutation(len(table))[:limit]
    return table.select(sorted(chosen.tolist()))


def arrow_column(table: Dataset, name: str) -> pa.ChunkedArray:
    """A column as Arrow data, in the order of the table's rows."""
    return table.with_format("arrow").select_columns([name])[:].column(name)


def integers(table: Dataset, name: str) -> np.ndarray:
    """A column of integers: (rows,) int64."""
    return arrow_column(table, name).to_numpy().astype(np.int64, copy=False)


def find_rows(ids: pa.ChunkedArray, table: Dataset) -> np.ndarray:
    """The row of each id in a table: (ids,) int64, −1 = the table lacks the id."""
    rows = pc.index_in(ids, value_set=arrow_column(table, "id"))
    return pc.fill_null(rows, -1).to_numpy().astype(np.int64)


class TokenColumn(Sequence):
    """The token lists of a table: all lengths at once, single lists on request.

    Holds at most a few numbers per row in memory, since a collection may have millions of rows.
    """

    def __init__(self, table: Dataset, name: str = "tokens"):
        """
        Args:
            table: may be a selection of rows from another table.
            name: the name of a column that holds lists of integers.
        """
        self.table, self.name = table, name
        self.column = table.data.column(name)
        chosen = table._indices
        # (rows,) int64, the place of each row in the file; None = the file's order.
        self.places = None if chosen is None else chosen.column(0).to_numpy()

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64, the number of tokens in each list."""
        lengths = pc.list_value_length(self.column).to_numpy().astype(np.int64)
        return lengths if self.places is None else lengths[self.places]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> list[int]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.column[int(row if self.places is None else self.places[row])].as_py()

    def __reduce__(self) -> tuple:
        return TokenColumn, (self.table, self.name)  # each loader process maps the file itself


def sample_tokens(documents: Dataset, rows: np.ndarray, most: int) -> TokenColumn:
    """Token lists of an evenly spaced sample of these rows, about `most` tokens."""
    documents = documents.select(rows)
    step = max(1, -(-int(TokenColumn(documents).lengths.sum()) // most))
    return TokenColumn(documents.select(range(0, len(documents), step)))


@dataclass(frozen=True)
class Collection:
    """Documents, queries and qrels (gr_as_mvdr §5.1) as memory-mapped tables.

    Args:
        name: short name for reports.
        documents: columns ``id``, ``title`` (may be empty), ``text``; ``fields``, structs of
            further fields, if the files have any.
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

    def hold_out(self, split: str, share: float, name: str) -> Self:
        """Moves a share of a split's queries, drawn by their ids, to a new split."""
        table = self.qrels[split]
        ids = table["query_id"][:]
        moved = np.array([zlib.crc32(query.encode()) < share * 2**32 for query in ids], bool)
        rest = {split: table.select(np.flatnonzero(~moved))}
        return replace(
            self, qrels={**self.qrels, **rest, name: table.select(np.flatnonzero(moved))}
        )

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
        if not others:
            rule = f"must leave a split to test on, {self.name} has no other"
            raise ValueError(f"data.train_split={train_split}: {rule}: data.train_split=null")
        raise ValueError(
            f"data.test_split=null: must be one of {', '.join(others)}, the splits of "
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
        documents = table("documents", DOCUMENTS)
        if (file := folder / f"{FIELDS_COLUMN}.arrow").name in manifest["files"]:
            kinds = Features.from_arrow_schema(MemoryMappedTable.from_file(str(file)).schema)
            both = [documents.data, table(FIELDS_COLUMN, kinds).data]
            joined = ConcatenationTable.from_tables(both, axis=1)
            info = DatasetInfo(features=Features({**DOCUMENTS, **kinds}))
            documents = Dataset(joined, info=info, fingerprint=documents._fingerprint)
        return Collection(
            manifest["name"],
            documents,
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

    documents = track(checks.documents(), f"{layout.name}: documents")
    counts = {"documents": write_documents(folder, documents)}
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


class BestPassages:
    """The passages of documents, and which one of a document is BM25's best for a query."""

    def __init__(self, table: Dataset, queries: Sequence[Query], bm25: InvertedLists):
        """
        Args:
            table: the passages of D documents, those of each document together.
            queries: the terms of each query.
            bm25: the terms of the passages.
        """
        self.table, self.queries, self.bm25 = table, queries, bm25
        # (D + 1,) int64, the row of each document's first passage, and the number of rows.
        self.starts = np.append(np.flatnonzero(integers(table, "start") == 0), len(table))

    def choose(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The best passages of n documents for a query each: (n,) int64; ties go to the first.

        Args:
            queries: (n,) int64, the queries' rows.
            rows: (n,) int64, any passage of each document.
        """
        best, documents = rows.copy(), np.searchsorted(self.starts, rows, "right") - 1
        for query, places in groupby(np.argsort(queries, kind="stable"), queries.__getitem__):
            scores = self.bm25.scores(self.queries[query])
            for place in places:
                start, end = self.starts[documents[place] : documents[place] + 2]
                best[place] = start + scores[start:end].argmax()
        return best

    def list_all(self, queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Extends n pairs of a query and a passage to all passages of the passage's document."""
        documents = np.searchsorted(self.starts, rows, "right") - 1
        spans = [range(*self.starts[document : document + 2]) for document in documents]
        return np.repeat(queries, list(map(len, spans))), np.fromiter(chain(*spans), np.int64)


def find_relevant_pairs(
    judgements: Dataset, queries: Dataset, documents: Dataset, passages: BestPassages | None = None
) -> Dataset:
    """The relevant judgements (grade > 0) as row numbers.

    Args:
        judgements: columns query_id, document_id, relevance.
        queries, documents: tables with a column id; judgements of other ids are left out.
        passages: chooses the passage of each relevant document; None = documents are not split.

    Returns:
        A table with the columns query_row and document_row, the row of a document or a passage.
    """
    query_rows = find_rows(arrow_column(judgements, "query_id"), queries)
    document_rows = find_rows(arrow_column(judgements, "document_id"), documents)
    relevant = integers(judgements, "relevance") > 0
    kept = relevant & (query_rows >= 0) & (document_rows >= 0)
    rows = {"query_row": query_rows[kept], "document_row": document_rows[kept]}
    made_from = [table._fingerprint for table in (judgements, queries, documents)]
    if passages is not None:
        first = passages.starts[rows["document_row"]]
        rows["document_row"] = passages.choose(rows["query_row"], first)
        made_from.append(passages.table._fingerprint)
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
        passages: chooses a document's passage; None = documents are not split.
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
        language: of the texts, see `Analyzer`.
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
    passages: BestPassages | None = None
    negatives: dict[str, Path] = field(default_factory=dict)
    mask_relevant: bool = False
    drop_identical: bool = False
    language: str = "none"

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
            names = arrow_column(self.queries, "id")
            if self.passages is not None:
                names = pc.binary_join_element_wise(names, "#0", "")
            own = find_rows(names, self.documents)
            asked = np.flatnonzero(own >= 0)
            queries = np.append(queries, asked)
            documents = np.append(documents, own[asked])
        if self.passages is not None:
            queries, documents = self.passages.list_all(queries, documents)
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
