"""The sources of collections: one data module each, which only says where texts come from."""

from data_modules.almanac import almanac
from data_modules.collection import Collection
from data_modules.formats.registry import read_layout
from data_modules.module import RetrievalDataModule


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
