"""NQ320k from the raw Natural Questions v1.0, with the counts that its papers give (Table 4).

The raw files are one a split, or the original release's shards; a line is a question and a
Wikipedia page. The pages are the documents, one a title, and each question's page is relevant. A
document's id is its number in the order of first appearance, training before development, as in
NCI's and GenRet's files; a query's is its ``example_id``. As the format "nq" (`recognises`,
`read`) the same files are read whatever they hold.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data_modules.formats.layout import Asked, Document, Layout, asked_layout
from data_modules.formats.readers import find_all, given_path, json_lines, string, word
from gr_mvdr.texts import check_characters

COUNTS = {
    "documents": 109_739,
    "train": 307_373,
    "dev": 7_830,
    "dev_seen": 6_075,
    "dev_unseen": 1_755,
}
FIELDS = ("abstract", "content")
_PARTS = ("dev_seen", "dev_unseen")
# The simplified release is one file a split, with or without the bucket's name before its own.
_WHOLE = {"train": "*simplified-nq-train.jsonl", "dev": "*nq-dev-all.jsonl"}
_SHARDS = {"train": 50, "dev": 5}  # of the original release
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

    One pass over the files gives the documents and leaves the questions in memory (some 100 MB for
    all 315,203).

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
    fields = [text] if isinstance(text, str) else list(text)
    if not fields or set(fields) - set(FIELDS):
        raise ValueError(f"data.text={text}: must be one or both of {', '.join(FIELDS)}")
    files = {split: _raw_files(folder, split, check_counts) for split in _WHOLE}
    key = TitleKey(titles)
    asked: dict[str, list[Asked]] = {}  # by split, filled by the one pass over the files
    numbers: dict[str, int] = {}  # of each title, in the order of first appearance

    def documents() -> Iterator[Document]:
        """Each title's first page: training comes first, so its copy of a page wins."""
        numbers.clear()
        for split, own in files.items():
            asked[split] = []
            for where, record in json_lines(*own):
                page = _page(where, record)
                title = _title(where, record, page)
                known = len(numbers)
                number = numbers.setdefault(key(title), known)
                id, text = word(where, "example_id", record), string(where, "question_text", record)
                asked[split].append(Asked(where, id, text, (str(number),)))
                if number == known:
                    text = " ".join(filter(None, (field(page, name) for name in fields)))
                    if first_tokens is not None:
                        text = " ".join(text.split()[:first_tokens])
                    yield Document(where, str(number), title, text)
            if split == "train":
                of_training = len(numbers)
        for part in _PARTS:  # of pages that training has, too, or of others
            seen = part == "dev_seen"
            asked[part] = [q for q in asked["dev"] if (int(q.documents[0]) < of_training) == seen]
        found = {"documents": len(numbers), **{split: len(own) for split, own in asked.items()}}
        for name, expected in COUNTS.items() if check_counts else ():
            if found[name] != expected:
                rule = f"expected {expected:,} {name}, got {found[name]:,}: is a file cut short?"
                raise ValueError(f"nq320k: {rule} ({_RELAX})")

    raw = [file for own in files.values() for file in own]
    return asked_layout(
        name="nq320k",
        files=(*raw, *([titles] if titles else [])),
        options={
            "reader": "natural_questions/1",
            "text": fields,
            "first_tokens": first_tokens,
            "title_vocabulary": titles is not None,
            "check_counts": check_counts,
        },
        documents=documents,
        splits={split: lambda split=split: iter(asked[split]) for split in _WHOLE},
        parts={split: lambda split=split: iter(asked[split]) for split in _PARTS},
    )


def recognises(path: Path) -> bool:
    return path.is_dir() and any(part for split in _WHOLE for part in _found(path, split))


def read(path: Path) -> Layout:
    return replace(nq320k(str(path), check_counts=False), name=path.resolve().name)


def _found(folder: Path, split: str) -> tuple[list[Path], list[Path]]:
    """The files of a split of either release, in the folder or in its folder of that name."""
    names = _WHOLE[split], f"nq-{split}-[0-9][0-9].jsonl"
    whole, shards = (find_all(folder, name, f"{split}/{name}") for name in names)
    return whole, shards


def _raw_files(folder: Path, split: str, check_shards: bool) -> list[Path]:
    """The files of a split.

    Raises:
        FileNotFoundError: a file or a shard is missing.
        ValueError: both releases are there.
    """
    whole, shards = _found(folder, split)
    if len(whole) + bool(shards) > 1:
        names = ", ".join(file.name for file in (*whole, *shards)[:4])
        raise ValueError(f"data.path={folder}: {split} questions twice ({names}): keep one copy")
    needed = _SHARDS[split] if check_shards else 1
    if not whole and len(shards) < needed:
        raise FileNotFoundError(
            f"data.path={folder}: the {split} questions are missing, {_WHOLE[split]}.gz, or "
            f"{needed - len(shards)} of the {needed} files nq-{split}-NN.jsonl.gz ({_RELAX})"
        )
    return whole or shards


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
        self._pieces = vocabulary and WordPiece.from_file(str(vocabulary), unk_token="[UNK]")

    def __call__(self, title: str) -> str:
        normal = self._normaliser.normalize_str(title)
        words = [word for word, _ in self._splitter.pre_tokenize_str(normal)]
        return " ".join(word if self._is_spelt(word) else "[UNK]" for word in words)

    def _is_spelt(self, word: str) -> bool:
        return not self._pieces or self._pieces.tokenize(word)[0].value != "[UNK]"


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


def _page(where: str, record: dict) -> str:
    """The page of a line with its tags, tokens separated by blanks.

    The simplified training file has it in ``document_text``; the original release, and the
    development file of the simplified one, as ``document_tokens``, and say its ``document_title``.
    """
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
    said = record.get("document_title")
    heading = re.search("<H1>(.*?)</H1>", text, re.DOTALL)
    title = _plain(said if isinstance(said, str) else heading[1] if heading else "")
    if not title:
        raise ValueError(f'{where}: the page has no title: neither "document_title" nor <H1>')
    check_characters(where, "the page's title", title)  # the key of a title needs whole ones
    return title
