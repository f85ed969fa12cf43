"""Pages as documents, one for each title, and the questions that were asked of them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data_modules.formats.layout import Document, Judgement, Query
from data_modules.formats.nq_records import field, pages


class Asked(NamedTuple):
    """A question and the number of its page among the documents."""

    where: str
    id: str
    text: str
    document: int


class TitleKey:
    """What two titles of one page have in common: BERT's lower-cased words without accents.

    With BERT's vocabulary a word that it cannot spell is [UNK], as in NCI's preparation, which
    compares titles after bert-base-uncased's tokeniser.
    """

    def __init__(self, vocabulary: Path | None = None):
        """
        Args:
            vocabulary: a vocab.txt of BERT's; None = words are compared as they are.
        """
        self._normaliser, self._splitter = BertNormalizer(), BertPreTokenizer()
        file = None if vocabulary is None else str(vocabulary)
        self._pieces = file and WordPiece.from_file(file, unk_token="[UNK]")

    def __call__(self, title: str) -> str:
        normal = self._normaliser.normalize_str(title)
        words = [word for word, _ in self._splitter.pre_tokenize_str(normal)]
        return " ".join(word if self._spelt(word) else "[UNK]" for word in words)

    def _spelt(self, word: str) -> bool:
        return not self._pieces or self._pieces.tokenize(word)[0].value != "[UNK]"


class TitledPages:
    """The documents of raw Natural Questions, numbered in the order in which their titles appear.

    Training files come first, so the training copy of a page wins. One pass over the files gives
    the documents and leaves the questions in memory (some 100 MB for all 315,203).
    """

    def __init__(
        self,
        files: dict[str, Sequence[Path]],
        fields: Sequence[str],
        first_tokens: int | None,
        key: TitleKey,
        check: Callable[["TitledPages"], None] | None = None,
    ):
        """
        Args:
            files: by split, training first.
            fields: of a document's text, in order (`nq_records.FIELDS`).
            first_tokens: white-space tokens kept of the text; None = all.
            key: of a title.
            check: called with this object once all pages were read.
        """
        self._files, self._fields, self._first_tokens = files, fields, first_tokens
        self._key, self._check = key, check
        self.asked: dict[str, list[Asked]] = {}  # by split
        self.places: list[tuple[str, str]] = []  # where each document stands, and its title
        self._of_training = 0

    def documents(self) -> Iterator[Document]:
        """Each title's first page."""
        numbers: dict[str, int] = {}
        self.asked, self.places = {split: [] for split in self._files}, []
        for split, files in self._files.items():
            for page in (page for file in files for page in pages(file)):
                number = numbers.setdefault(self._key(page.title), len(numbers))
                asked = Asked(page.where, page.question_id, page.question, number)
                self.asked[split].append(asked)
                if number == len(self.places):
                    self.places.append((page.where, page.title))
                    yield Document(page.where, str(number), page.title, self._text(page.text))
            if split == "train":
                self._of_training = len(numbers)
        if self._check:
            self._check(self)

    def _text(self, page: str) -> str:
        text = " ".join(filter(None, (field(page, name) for name in self._fields)))
        return text if self._first_tokens is None else " ".join(text.split()[: self._first_tokens])

    def queries(self) -> Iterator[Query]:
        """The questions of all splits, once the documents were read."""
        for questions in self.asked.values():
            for where, id, text, _ in questions:
                yield Query(where, id, text)

    def questions(self, split: str) -> list[Asked]:
        """Those of a split; ``dev_seen``: of pages that training has, too, ``dev_unseen``: not."""
        if split in self.asked:
            return self.asked[split]
        seen = split == "dev_seen"
        return [q for q in self.asked["dev"] if (q.document < self._of_training) == seen]

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Each question of a split and its page."""
        for where, id, _, document in self.questions(split):
            yield Judgement(where, id, str(document), 1)
