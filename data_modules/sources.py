"""The sources of collections: one data module each, which only says where texts come from."""

from data_modules.almanac import almanac
from data_modules.collection import Collection, check
from data_modules.formats.beir import read_beir
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
        return check(almanac(**self.arguments))


class BeirDataModule(RetrievalDataModule):
    """A folder in BEIR layout."""

    def __init__(self, path: str, **options):
        """
        Args:
            path: the folder with corpus.jsonl, queries.jsonl and qrels/.
            options: of `RetrievalDataModule`.
        """
        super().__init__(**options)
        self.path = path

    def read(self) -> Collection:
        return read_beir(self.path)
