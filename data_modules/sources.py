"""The sources of collections: one data module each, which only says where texts come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from data_modules.almanac import Entries, Questions, almanac
from data_modules.builders.ir_datasets import OWN, ir_dataset
from data_modules.builders.msmarco_doc import msmarco_doc
from data_modules.builders.nq320k import nq320k
from data_modules.builders.public import public
from data_modules.collection import Collection
from data_modules.formats.catalogue import read_layouts
from data_modules.limit import limit
from data_modules.module import RetrievalDataModule
from gr_mvdr.options import Count, part


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
    """Every set of documents is asked for. Args: see `limit`, and `RetrievalDataModule`."""

    n_documents: int
    relevant: int
    attributes: int | None
    collection_seed: int

    def read(self) -> Collection:
        return limit(self.n_documents, self.relevant, self.attributes, self.collection_seed)


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class FilesDataModule(RetrievalDataModule):
    """Files in one of the formats of `data_modules.formats`.

    Args:
        path: a folder, or a file of a format that is one file; of a list the collections are one.
        format: its name; None = found out.
        fields: of a file of passages the columns of id, title and text; None = found out.
    """

    path: str | Sequence[str]
    format: str | None = None
    fields: Sequence[str | int] | None = None

    def read(self) -> Collection:
        fields = None if self.fields is None else list(self.fields)
        return self.collect(read_layouts(self.path, self.format, fields))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class Nq320kDataModule(RetrievalDataModule):
    """NQ320k from the raw Natural Questions. Args: see `nq320k`, and `RetrievalDataModule`."""

    path: str
    text: str | Sequence[str] = ("abstract", "content")
    first_tokens: int | None = None
    title_vocabulary: str | None = None
    check_counts: bool = True

    def read(self) -> Collection:
        text = self.text if isinstance(self.text, str) else list(self.text)
        options = self.first_tokens, self.title_vocabulary, self.check_counts
        return self.collect(nq320k(self.path, text, *options))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class MsmarcoDocDataModule(RetrievalDataModule):
    """MS MARCO documents that have a training judgement, or are listed. Args: see `msmarco_doc`."""

    path: str
    document_ids: str | None = None

    def read(self) -> Collection:
        return self.collect(msmarco_doc(self.path, self.document_ids))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class PublicDataModule(RetrievalDataModule):
    """A public collection by name. Args: see `public`, and `RetrievalDataModule`."""

    name: str = field()  # Lightning's own attribute of this name is no default
    path: str | None = None

    def read(self) -> Collection:
        return self.collect(public(self.name, self.path))


@part("data")
@dataclass(kw_only=True, eq=False, repr=False)
class IrDatasetsDataModule(RetrievalDataModule):
    """An id of ir_datasets. Args: see `ir_dataset`, and `RetrievalDataModule`."""

    name: str = field()
    fields: Sequence[str] | None = None

    def read(self) -> Collection:
        splits = {
            "data.train_split": [self.train_split] if self.train_split else [],
            "data.validation_split": [self.validation_split] if self.validation_split else [],
            "data.test_split": self.test_split or [OWN],
            "data.new_documents": self.new_documents,
        }
        fields = None if self.fields is None else list(self.fields)
        return self.collect(ir_dataset(self.name, splits, fields))
