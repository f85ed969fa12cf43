"""The sources of collections: one data module each, which only says where texts come from."""

from collections.abc import Sequence

from data_modules.almanac import almanac
from data_modules.builders.msmarco_doc import msmarco_doc
from data_modules.builders.nq320k import nq320k
from data_modules.builders.public import public
from data_modules.collection import Collection
from data_modules.formats.registry import read_layout
from data_modules.module import RetrievalDataModule
from gr_mvdr.parts import part


@part("data")
class AlmanacDataModule(RetrievalDataModule):
    """The generated collection."""

    def __init__(self, n_documents: int, train_questions: int, collection_seed: int, **options):
        """
        Args:
            n_documents, train_questions, collection_seed: see `almanac`.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.arguments = dict(
            n_documents=n_documents, train_questions=train_questions, seed=collection_seed
        )

    def read(self) -> Collection:
        return almanac(**self.arguments)


@part("data")
class FilesDataModule(RetrievalDataModule):
    """Files in one of the formats of `data_modules.formats`."""

    def __init__(self, path: str, format: str | None = None, **options):
        """
        Args:
            path: a folder, or a file of a format that is one file.
            format: its name; None = found out.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.path, self.format = path, format

    def read(self) -> Collection:
        return self.collect(read_layout(self.path, self.format))


@part("data")
class Nq320kDataModule(RetrievalDataModule):
    """NQ320k from the raw Natural Questions."""

    def __init__(
        self,
        path: str,
        text: str | Sequence[str] = ("abstract", "content"),
        first_tokens: int | None = None,
        title_vocabulary: str | None = None,
        check_counts: bool = True,
        **options,
    ):
        """
        Args:
            path, text, first_tokens, title_vocabulary, check_counts: see `nq320k`.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.arguments = dict(
            path=path,
            text=text if isinstance(text, str) else list(text),
            first_tokens=first_tokens,
            title_vocabulary=title_vocabulary,
            check_counts=check_counts,
        )

    def read(self) -> Collection:
        return self.collect(nq320k(**self.arguments))


@part("data")
class MsmarcoDocDataModule(RetrievalDataModule):
    """MS MARCO documents that have a training judgement, or are listed."""

    def __init__(self, path: str, document_ids: str | None = None, **options):
        """
        Args:
            path, document_ids: see `msmarco_doc`.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.path, self.document_ids = path, document_ids

    def read(self) -> Collection:
        return self.collect(msmarco_doc(self.path, self.document_ids))


@part("data")
class PublicDataModule(RetrievalDataModule):
    """A public collection by name."""

    def __init__(self, name: str, path: str | None = None, **options):
        """
        Args:
            name, path: see `public`.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.arguments = dict(name=name, path=path)

    def read(self) -> Collection:
        return self.collect(public(**self.arguments))
