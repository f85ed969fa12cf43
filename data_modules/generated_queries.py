"""Queries that a query generator wrote, in place of the document (doc2query, DSI-QG)."""

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, List, Value

from data_modules.collection import cached_table
from data_modules.formats.files import sha256
from data_modules.formats.generated import read_generated
from data_modules.indexing import DocumentTask, Inputs, Source
from data_modules.tasks import RetrievalTask, TrainingTables
from data_modules.tokenisation import vocabulary_hash
from gr_mvdr.batch import cut
from gr_mvdr.parts import part
from gr_mvdr.tokenizers import EOS_ID

_QUERIES = Features({"document_row": Value("int64"), "tokens": List(List(Value("int32")))})


@part("inputs")
class GeneratedQueries(Inputs):
    """One of the document's generated queries; a document without any is left out."""

    def __init__(self, path: str):
        """
        Args:
            path: JSON lines {"document_id": …, "queries": […]}, as `experiment=query_generation`
                writes them, or another form of `data_modules.formats.generated`; queries without
                a token are left out.

        Raises:
            FileNotFoundError: there is no such file.
        """
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise FileNotFoundError(f"data.indexing.inputs.path={path}: no such file")

    @cached_property
    def sources(self) -> dict[str, str]:
        """The file's SHA-256 by its path."""
        return {str(self.path): sha256(self.path)}

    def prepare(self, tables: TrainingTables, retrieval: RetrievalTask) -> DocumentTask:
        """See `Inputs`; the tokenised queries are cached.

        Raises:
            ValueError: a line breaks the format, or names a document that is unknown or was
                named before; named as file:line.
        """
        made_from = (
            "generated-queries/2",
            *self.sources.values(),
            vocabulary_hash(tables.tokenizer),
            tables.documents._fingerprint,
        )
        rows = partial(_tokenised, self.path, tables)
        return _GeneratedQueries(tables, retrieval, cached_table(rows, _QUERIES, *made_from))


class _GeneratedQueries(Source):
    def __init__(self, tables: TrainingTables, retrieval: RetrievalTask, queries: Dataset):
        super().__init__(tables, retrieval)
        self.rows = np.array(queries["document_row"][:], dtype=np.int64)
        self.queries = queries["tokens"]
        self.place = {int(row): place for place, row in enumerate(self.rows)}

    def read(self, row: int, rng: np.random.Generator) -> list[int]:
        queries = self.queries[self.place[row]]
        return cut(queries[rng.integers(len(queries))], self.tables.query_length, EOS_ID)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = np.zeros(len(self.tables.documents), dtype=np.int64)
        lengths[self.rows] = [np.mean([len(query) for query in found]) for found in self.queries]
        return lengths


def _tokenised(path: Path, tables: TrainingTables) -> Iterator[dict]:
    row_of = {identifier: row for row, identifier in enumerate(tables.documents["id"][:])}
    empty = True
    for where, identifier, queries in read_generated(path):
        if identifier not in row_of:
            raise ValueError(f"{where}: document {identifier!r} is not in the collection")
        if not queries:
            continue
        found = tables.tokenizer(queries, add_special_tokens=False)["input_ids"]
        if found := [tokens for tokens in found if tokens]:
            empty = False
            yield {"document_row": row_of[identifier], "tokens": found}
    if empty:
        raise ValueError(f"{path}: the file holds no query")
