"""NQ320k from the raw Natural Questions v1.0, with the counts that its papers give (Table 4).

There is one raw file per split (simplified release) or several shards (original release). Each line
holds a question and a Wikipedia page. The documents are the pages, one for each title; the page of
a question is relevant to it. Documents are numbered in the order of first appearance, training
before development, and the number is the id, as in NCI's files. A query's id is its
``example_id``.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data_modules.formats.layout import Asked, Document, Layout, asked_layout
from data_modules.formats.readers import find_all, json_lines, missing, string, word

COUNTS = {
    "documents": 109_739,
    "train": 307_373,
    "dev": 7_830,
    "dev_seen": 6_075,
    "dev_unseen": 1_755,
}
FIELDS = ("abstract", "content")
_PARTS = ("dev_seen", "dev_unseen")
# The simplified release has one file per split; the download bucket's name may precede its name.
_WHOLE = {"train": "*simplified-nq-train.jsonl", "dev": "*nq-dev-all.jsonl"}
_TAG = re.compile(r"<[^<>\s]+>")  # a tag is one token, such as <P> or <Td_colspan="2">


def nq320k(
    path: str,
    text: str | Sequence[str] = FIELDS,
    first_tokens: int | None = None,
    title_vocabulary: str | None = None,
    check_counts: bool = True,
) -> Layout:
    """The collection of gr_as_mvdr Table 4, read from a folder of the raw files.

    One pass over the files yields the documents and keeps the questions in memory (about 100 MB for
    all 315,203).

    Args:
        path: the folder.
        text: the parts of a page that make up a document's text: abstract, content.
        first_tokens: number of white-space tokens kept of the text; None = all.
        title_vocabulary: BERT's vocab.txt, used to compare titles (`TitleKey`).
        check_counts: raise if the counts differ from `COUNTS`; false allows a part of the files.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: `text` names an unknown part; (on reading) a line breaks the format, or a count
            differs.
    """
    folder = Path(path).expanduser()
    titles = Path(title_vocabulary).expanduser() if title_vocabulary else None
    fields = [text] if isinstance(text, str) else list(text)
    if not fields or set(fields) - set(FIELDS):
        raise ValueError(f"data.text={text}: must be one or both of {', '.join(FIELDS)}")
    files = {split: _raw_files(folder, split) for split in _WHOLE}
    for split, own in files.items():
        if not own:
            raise missing(folder, f"{_WHOLE[split]}.gz", f"nq-{split}-NN.jsonl.gz")
    key = TitleKey(titles)
    asked: dict[str, list[Asked]] = {}  # split → questions, filled while the files are read
    numbers: dict[str, int] = {}  # key of a title → number of the document

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
        for part in _PARTS:  # dev questions whose page training has (seen) or lacks (unseen)
            seen = part == "dev_seen"
            asked[part] = [q for q in asked["dev"] if (int(q.documents[0]) < of_training) == seen]
        counts = {"documents": len(numbers), **{split: len(own) for split, own in asked.items()}}
        for name, expected in COUNTS.items() if check_counts else ():
            if counts[name] != expected:
                rule = f"expected {expected:,} {name}, got {counts[name]:,}: is a file cut short?"
                relax = "data.check_counts=false builds what is there"
                raise ValueError(f"nq320k: {rule} ({relax})")

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


def _raw_files(folder: Path, split: str) -> list[Path]:
    """A split's files in `folder` or a subfolder: of the simplified release, else the original."""
    names = _WHOLE[split], f"nq-{split}-[0-9][0-9].jsonl"
    whole, shards = (find_all(folder, name, f"{split}/{name}") for name in names)
    return whole or shards


class TitleKey:
    """Maps the spellings of one page's title to one key: BERT's lower-cased words without accents.

    With BERT's vocabulary, a word that it cannot spell becomes [UNK]. NCI's preparation does the
    same, since it compares titles after tokenising them with bert-base-uncased.
    """

    def __init__(self, vocabulary: Path | None = None):
        """
        Args:
            vocabulary: BERT's vocab.txt; None = no word becomes [UNK].
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
    """Returns a part of a page without tags, cut as in NCI's preparation.

    Args:
        text: the page with its tags.
        name: "abstract", the first paragraph; or "content", the text after it up to the end of the
            second-last list, or of the only list (the lists at the end of a page are links).
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

    The simplified training file stores the page in ``document_text``. The original release and the
    simplified development file store ``document_tokens``, and also give a ``document_title``.
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
    """The ``document_title`` of a line, else the page's first heading, as in NCI's preparation."""
    said = record.get("document_title")
    heading = re.search("<H1>(.*?)</H1>", text, re.DOTALL)
    title = _plain(said if isinstance(said, str) else heading[1] if heading else "")
    if not title:
        raise ValueError(f'{where}: the page has no title: neither "document_title" nor <H1>')
    return title
