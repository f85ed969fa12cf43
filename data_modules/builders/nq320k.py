"""NQ320k from the raw Natural Questions v1.0, with the counts that its papers give (Table 4).

The raw files are one a split, or the original release's shards; a line is a question and a
Wikipedia page. The pages are the documents, one a title, and each question's page is relevant. A
document's id is its number in the order of first appearance, training before development, as in
NCI's and GenRet's files; a query's is its ``example_id``. As the format "nq" (`recognises`,
`read`) the same files are read whatever they hold.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data_modules.formats.files import PACKED, find_all, given_path
from data_modules.formats.layout import Document, Judgement, Layout, Query
from data_modules.formats.readers import json_lines, string, word
from gr_mvdr.texts import check_characters

COUNTS = {
    "documents": 109_739,
    "train": 307_373,
    "dev": 7_830,
    "dev_seen": 6_075,
    "dev_unseen": 1_755,
}
FIELDS = ("abstract", "content")
_PARTS = ("dev_seen", "dev_unseen")  # of a part of the files, one may be empty
SPLITS = ("train", "dev", *_PARTS)
# The simplified release is one file a split, with or without the bucket's name before its own.
_NAMES = {
    "train": ("*simplified-nq-train.jsonl", "nq-train-[0-9][0-9].jsonl"),
    "dev": ("*nq-dev-all.jsonl", "nq-dev-[0-9][0-9].jsonl"),
}
_SHARDS = {"train": 50, "dev": 5}  # of the original release
_SHARE = {True: 1.0, False: 0.25}  # of a file (packed, plain) that its pages' texts take
_TAG = re.compile(r"<[^<>\s]+>")  # a tag is a token of its own, such as <P> or <Td_colspan="2">
_RELAX = "data.check_counts=false builds what is there"


def nq320k(
    path: str,
    text: str | Sequence[str] = FIELDS,
    first_tokens: int | None = None,
    title_vocabulary: str | None = None,
    check_counts: bool = True,
) -> Layout:
    """The collection of gr_as_mvdr Table 4, in a folder of the raw files.

    Args:
        path: the folder.
        text: what a document's text is made of: abstract, content.
        first_tokens: white-space tokens kept of it; None = all.
        title_vocabulary: BERT's vocab.txt, by which titles are compared (`TitleKey`).
        check_counts: refuse other counts than `COUNTS`; false for a part of the files.

    Raises:
        FileNotFoundError: files or shards are missing.
        ValueError: an unknown choice; (on reading) a line breaks the format, or a count differs.
    """
    folder = given_path("path", path, "folder")
    titles = given_path("title_vocabulary", title_vocabulary)
    pages = TitledPages(folder, text, first_tokens, TitleKey(titles), check_counts)
    raw = [file for files in pages.files.values() for file in files]
    return Layout(
        name="nq320k",
        files=(*raw, *([titles] if titles else [])),
        options={
            "reader": "natural_questions/1",
            "text": pages.fields,
            "first_tokens": first_tokens,
            "title_vocabulary": titles is not None,
            "check_counts": check_counts,
        },
        documents=pages.documents,
        queries=pages.queries,
        judgements={split: partial(pages.judgements, split) for split in SPLITS},
        may_lack=frozenset(_PARTS),
        needed_bytes=int(sum(f.stat().st_size * _SHARE[f.suffix in PACKED] for f in raw)),
    )


def recognises(path: Path) -> bool:
    return path.is_dir() and any(_matching(path, s, name) for s in _NAMES for name in _NAMES[s])


def read(path: Path) -> Layout:
    return replace(nq320k(str(path), check_counts=False), name=path.resolve().name)


def _raw_files(folder: Path, split: str, check_shards: bool) -> list[Path]:
    """The files of a split, in the folder or in its folder of the split's name.

    Raises:
        FileNotFoundError: there is none, or shards are missing.
        ValueError: both releases are there.
    """
    whole, shards = (_matching(folder, split, name) for name in _NAMES[split])
    if whole and (shards or len(whole) > 1):
        names = ", ".join(file.name for file in (*whole, *shards)[:4])
        raise ValueError(f"data.path={folder}: {split} questions twice ({names}): keep one copy")
    if not whole and not shards:
        raise FileNotFoundError(
            f"data.path={folder}: the {split} questions are missing: "
            f"{' or '.join(name + '.gz' for name in _NAMES[split])}"
        )
    count, found = _SHARDS[split], {file.name.split(".")[0] for file in shards}
    expected = [f"nq-{split}-{number:02}" for number in range(count)]
    missing = [name for name in expected if name not in found]
    if check_shards and 0 < len(missing) < count:
        more = ", …" if len(missing) > 5 else ""
        raise FileNotFoundError(
            f"data.path={folder}: {len(missing)} of {count} {split} files are missing: "
            f"{', '.join(missing[:5])}{more} ({_RELAX})"
        )
    return whole or shards


def _matching(folder: Path, split: str, name: str) -> list[Path]:
    places = [place for place in (folder, folder / split) if place.is_dir()]
    return [file for place in places for file in find_all(place, name)]


class PageQuestion(NamedTuple):
    """A question and the number of its page among the documents."""

    where: str
    id: str
    text: str
    document: int


class TitledPages:
    """The documents of raw Natural Questions, numbered in the order in which their titles appear.

    Training files come first, so the training copy of a page wins. One pass over the files gives
    the documents and leaves the questions in memory (some 100 MB for all 315,203).
    """

    def __init__(
        self,
        folder: Path,
        text: str | Sequence[str],
        first_tokens: int | None,
        key: "TitleKey",
        check_counts: bool,
    ):
        """See `nq320k`."""
        self.fields = [text] if isinstance(text, str) else list(text)
        if not self.fields or set(self.fields) - set(FIELDS):
            raise ValueError(f"data.text={text}: must be one or both of {', '.join(FIELDS)}")
        if first_tokens is not None and first_tokens < 1:
            raise ValueError(f"data.first_tokens={first_tokens}: must be ≥ 1, or null for all")
        self.files = {split: _raw_files(folder, split, check_counts) for split in _NAMES}
        self._first_tokens, self._key, self._check_counts = first_tokens, key, check_counts
        self.asked: dict[str, list[PageQuestion]] = {}  # by split
        self.places: list[tuple[str, str]] = []  # where each document is, and its title
        self._of_training = 0

    def documents(self) -> Iterator[Document]:
        """Each title's first page.

        Raises:
            ValueError: a line breaks the format, or a count differs.
        """
        numbers: dict[str, int] = {}
        self.asked, self.places = {split: [] for split in self.files}, []
        for split, files in self.files.items():
            for page in (page for file in files for page in pages(file)):
                number = numbers.setdefault(self._key(page.title), len(numbers))
                asked = PageQuestion(page.where, page.question_id, page.question, number)
                self.asked[split].append(asked)
                if number == len(self.places):
                    self.places.append((page.where, page.title))
                    yield Document(page.where, str(number), page.title, self._text(page.text))
            if split == "train":
                self._of_training = len(numbers)
        for name, expected in COUNTS.items() if self._check_counts else ():
            self._check_count(name, expected)

    def _text(self, page: str) -> str:
        text = " ".join(filter(None, (field(page, name) for name in self.fields)))
        return text if self._first_tokens is None else " ".join(text.split()[: self._first_tokens])

    def _check_count(self, name: str, expected: int) -> None:
        """Refuses another count, and says where the difference begins."""
        items, what = self.places, "titles"
        if name != "documents":
            items = [(asked.where, asked.text) for asked in self.questions(name)]
            what = f"{name} questions"
        if len(items) == expected:
            return
        beyond = len(items) > expected
        difference = "the first beyond them" if beyond else "the last before they end"
        where, text = items[expected if beyond else -1] if items else ("nowhere", "")
        files = Counter(Path(where.rsplit(":", 1)[0]).name for where, _ in items)
        by_file = ", ".join(f"{file} {count:,}" for file, count in files.items()) or "none"
        raise ValueError(
            f"nq320k: expected {expected:,} {what}, found {len(items):,}; {difference} is "
            f"{text[:60]!r} at {where}; by file: {by_file} ({_RELAX})"
        )

    def queries(self) -> Iterator[Query]:
        """The questions of all splits, once the documents were read."""
        for questions in self.asked.values():
            for where, id, text, _ in questions:
                yield Query(where, id, text)

    def questions(self, split: str) -> list[PageQuestion]:
        """Those of a split; ``dev_seen``: of pages that training has, too, ``dev_unseen``: not."""
        if split in self.asked:
            return self.asked[split]
        seen = split == "dev_seen"
        return [q for q in self.asked["dev"] if (q.document < self._of_training) == seen]

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Each question of a split and its page."""
        for where, id, _, document in self.questions(split):
            yield Judgement(where, id, str(document), 1)


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
        return " ".join(word if self._is_spelt(word) else "[UNK]" for word in words)

    def _is_spelt(self, word: str) -> bool:
        return not self._pieces or self._pieces.tokenize(word)[0].value != "[UNK]"


class Page(NamedTuple):
    """A line: the question, and the page with its tags, tokens separated by blanks."""

    where: str
    question_id: str
    question: str
    title: str
    text: str


def pages(file: Path) -> Iterator[Page]:
    """The lines of a file of either release.

    The simplified training file has the page in ``document_text``; the original release, and the
    development file of the simplified one, as ``document_tokens``, and say its ``document_title``.

    Raises:
        ValueError: a line has no question, page, or title; names ``file:line``.
    """
    for where, record in json_lines(file):
        text = _page_text(where, record)
        title = _title(where, record, text)
        check_characters(where, "the page's title", title)  # the key of a title needs whole ones
        id, question = word(where, "example_id", record), string(where, "question_text", record)
        yield Page(where, id, question, title, text)


def field(text: str, name: str) -> str:
    """A part of a page, without tags, as NCI's preparation takes it.

    Args:
        text: the page with its tags.
        name: "abstract", the first paragraph; or "content", what follows it, up to the end of the
            last list but one (the lists at the end of a page are links).
    """
    start = text.find("<P>")
    end = text.find("</P>", start) if start >= 0 else -1
    if end < 0:  # no paragraph
        start = end = 0
    if name == "abstract":
        return _plain(text[start:end])
    ends = [match.start() for match in re.finditer("</Ul>", text)][-2:]
    return _plain(text[end : ends[0] if ends else None])


def _plain(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).split())


def _page_text(where: str, record: dict) -> str:
    if "document_text" in record:
        return string(where, "document_text", record)
    tokens = record.get("document_tokens")
    if not isinstance(tokens, list):
        raise ValueError(f'{where}: expected the page as "document_text" or "document_tokens"')
    try:
        return " ".join(token["token"] for token in tokens)
    except (TypeError, KeyError):
        raise ValueError(f'{where}: expected "document_tokens" that each have a "token"') from None


def _title(where: str, record: dict, text: str) -> str:
    """The page's title where the line says it, else its first heading, as NCI's preparation."""
    if isinstance(record.get("document_title"), str):
        title = _plain(record["document_title"])
    else:
        heading = re.search("<H1>(.*?)</H1>", text, re.DOTALL)
        title = _plain(heading[1]) if heading else ""
    if not title:
        raise ValueError(f'{where}: the page has no title: neither "document_title" nor <H1>')
    return title
