"""One data module for each source of collections; it defines only where the texts come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pandas
import pyarrow as pa
from datasets import Dataset, DatasetDict

from data_modules.almanac import Entries, Questions, almanac
from data_modules.builders.msmarco_doc import msmarco_doc
from data_modules.builders.nq320k import nq320k
from data_modules.builders.public import OWN, ir_dataset, public
from data_modules.collection import Collection, cache_folder, short_hash, write_once
from data_modules.formats.catalogue import read_layouts
from data_modules.limit import limit
from data_modules.module import RetrievalDataModule
from gr_mvdr.options import Count, ExistingPath, Rule, Size, Text, part, show

KINDS = ("query", "document", "answer", "id", "title", "text", "grade")
Columns = Annotated[
    Mapping[str, Text | Size],
    Rule(f"names of columns for some of {', '.join(KINDS)}", lambda given: {*given} <= {*KINDS}),
]
DocumentColumns = Annotated[
    Mapping[str, Text | Sequence[Text]],
    Rule("names of fields for title or text", lambda given: {*given} <= {"title", "text"}),
]


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class AlmanacDataModule(RetrievalDataModule):
    """The generated collection. Args: see `almanac`, and `RetrievalDataModule`."""

    n_documents: Entries
    train_questions: Questions
    collection_seed: Count

    def read(self) -> Collection:
        return almanac(self.n_documents, self.collection_seed, self.train_questions)


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class LimitDataModule(RetrievalDataModule):
    """A LIMIT-like collection. Args: see `limit`, and `RetrievalDataModule`."""

    n_documents: Size
    relevant: Size
    attributes: Size | None
    collection_seed: Count

    def read(self) -> Collection:
        return limit(self.n_documents, self.relevant, self.attributes, self.collection_seed)


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class FilesDataModule(RetrievalDataModule):
    """Files in one of the formats of `data_modules.formats`.

    Args:
        path: a folder, or a file if the format has only one; the collections of a list are joined.
        format: the name of the format; None = detected.
        columns: what the columns of a table hold → their names, see `one_table`; None = detected.
    """

    path: ExistingPath | Sequence[ExistingPath]
    format: Text | None = None
    columns: Columns | None = None

    def read(self) -> Collection:
        return self.collect(read_layouts(self.path, self.format, self.columns))


def write_given_table(table: Any) -> Path:
    """Writes a table in memory once, for `data.path`; returns its folder.

    Args:
        table: a Dataset or DatasetDict of ``datasets``, or what pyarrow reads as a table, such as
            pandas' and polars' DataFrame.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(table, Dataset | DatasetDict):
        try:
            if isinstance(table, pandas.DataFrame):
                table = pa.Table.from_pandas(table, preserve_index=any(table.index.names))
            table = Dataset(pa.table(table))
        except (TypeError, ValueError) as error:  # pyarrow's errors are ValueErrors
            rule = f"must be a table of pandas, polars, pyarrow or datasets: {error}"
            raise ValueError(f"data={show(type(table).__name__)}: {rule}") from None
    parts = table if isinstance(table, DatasetDict) else {"": table}
    key = short_hash({name: one._fingerprint for name, one in parts.items()})
    folder = cache_folder("given") / f"table-{key[:12]}"
    with write_once(folder) as partial:
        if partial is not None:
            table.save_to_disk(partial)
    return folder


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class Nq320kDataModule(RetrievalDataModule):
    """NQ320k from the raw Natural Questions. Args: see `nq320k`, and `RetrievalDataModule`."""

    path: ExistingPath
    text: Text | Sequence[Text] = ("abstract", "content")
    first_tokens: Size | None = None
    title_vocabulary: ExistingPath | None = None
    check_counts: bool = True

    def read(self) -> Collection:
        options = self.text, self.first_tokens, self.title_vocabulary, self.check_counts
        return self.collect(nq320k(self.path, *options))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class MsmarcoDocDataModule(RetrievalDataModule):
    """MS MARCO documents relevant in training, or in a list. Args: see `msmarco_doc`."""

    path: ExistingPath
    document_ids: ExistingPath | None = None

    def read(self) -> Collection:
        return self.collect(msmarco_doc(self.path, self.document_ids))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class PublicDataModule(RetrievalDataModule):
    """A public collection by name. Args: see `public`, and `RetrievalDataModule`."""

    name: Text = field()  # required: else Lightning's attribute `name` would be the default
    path: ExistingPath | None = None

    def read(self) -> Collection:
        return self.collect(public(self.name, self.path))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class IrDatasetsDataModule(RetrievalDataModule):
    """An id of ir_datasets. Args: see `ir_dataset`, and `RetrievalDataModule`."""

    name: Text = field()
    columns: DocumentColumns | None = None

    def read(self) -> Collection:
        wanted = self.train_split, self.validation_split, *(self.test_split or [OWN])
        splits = list(dict.fromkeys(filter(None, [*wanted, *self.new_documents])))
        return self.collect(ir_dataset(self.name, splits, self.columns))
