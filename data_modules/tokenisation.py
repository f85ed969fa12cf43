"""From text columns to token columns: cleaning, joining fields, tokenising; each step is cached."""

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import tokenizers
from datasets import Dataset, DatasetInfo, Features, List, Value
from datasets.table import InMemoryTable
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from data_modules.collection import (
    ROWS,
    TABLES,
    cache_folder,
    keep_table,
    short_hash,
    write_batches,
    write_once,
)
from data_modules.formats.named_pairs import read_generated
from data_modules.formats.readers import numbered_lines
from gr_mvdr.backbones import read_backbone_config
from gr_mvdr.files import sha256
from gr_mvdr.options import AtLeast, ExistingPath, Text
from gr_mvdr.passages import PassageOptions, document_ids
from gr_mvdr.progress import track
from gr_mvdr.texts import clean_text, join_texts
from gr_mvdr.tokenizers import (
    SPECIAL_TOKENS,
    UNK_ID,
    WordTokenizer,
    add_special_tokens,
    build_word_tokenizer,
    load_tokenizer,
    wrap_tokenizer,
)

_INTEGERS = List(Value("int32"))
_TOKEN = re.compile(r"[\[<]\S+[\]>] ?")
_WORD, _SPACED_WORD = re.compile(r"\S+"), re.compile(r"\s*\S+")
Named = TypeVar("Named")
_LEARNED_FROM = 50_000  # most documents, and most queries, that a new tokeniser is trained on


def choose_tokenizer(
    documents: Dataset,
    queries: Dataset,
    language: str,
    backbone: Text | None,
    path: ExistingPath | None,
    unit: Literal["piece", "word"],
    vocab_size: Annotated[int, AtLeast(7)],  # six are special tokens
    lowercase: bool,
    special_tokens: dict[str, Text] | None = None,
    markers: dict[str, Text | None] | None = None,
    expansion: Text | None = None,
    prefix_space: bool | None = None,
    skip: Literal["punctuation"] | list[Text] | None = None,
    template: dict[str, Any] | None = None,
    prompt: Text | None = None,
) -> PreTrainedTokenizerBase:
    """Loads or trains the tokeniser of a run.

    Args:
        documents, queries: the texts that a new tokeniser is trained on (training queries only).
        language: of the words of `unit`, see `Analyzer`.
        backbone: name of a pretrained backbone; its tokeniser is used unless there is a path.
        path: path of a `tokenizer.json`, such as T5's vocabulary.
        unit: "piece" (a Unigram tokeniser is trained if there is no backbone and no path) or "word"
            (always made from the collection, for lexical systems).
        vocab_size: rows of the embedding table; a trained tokeniser has at most this many pieces.
        lowercase: whether a trained tokeniser maps texts to lower case.
        special_tokens: name → a text that a model adds to its sources and targets ("|| title",
            "@@"); a trained tokeniser learns their characters, which the collection may lack.
        markers, expansion: see `read_template`. Those such as [Q] or <q> are tokens, which are
            added if the vocabulary lacks them; other markers are texts. The expansion of a
            pretrained backbone must be a token that it was trained with.
        template: the template of a model that is taken over without training; None = no such model.
        prefix_space: see `load_tokenizer`.
        skip, prompt: not used here, see `RetrievalDataModule.template`.

    Raises:
        ValueError: a tokeniser has more tokens than the embedding table has rows, or a pretrained
            backbone lacks the token of the expansion.
    """
    if unit == "word" or (backbone is None and path is None):
        special = list((special_tokens or {}).values())
        loaded = _make_tokenizer(documents, queries, language, unit, vocab_size, lowercase, special)
    else:
        key = "tokenizer.path" if path else "backbone.name"
        rows = read_backbone_config(backbone, None).vocab_size if backbone else None
        loaded = load_tokenizer(path or backbone, prefix_space, key)
        tokens = max(loaded.get_vocab().values()) + 1
        if rows is not None and tokens > rows:
            rule = f"must have at most {rows:,}, the rows of the model's embedding table"
            raise ValueError(
                f"{key}={path or backbone}: its tokeniser has {tokens:,} tokens, {rule}"
            )
    if backbone and expansion and expansion not in loaded.get_vocab():
        own = loaded.mask_token or loaded.eos_token
        rule = (
            f"must be a token of backbone.name={backbone}, such as {own}: a new one has no vector"
        )
        raise ValueError(f"tokenizer.expansion={expansion}: {rule}")
    # A model that is not trained has no vectors of new tokens: it reads its markers as texts.
    wanted = [expansion, *(() if template else (markers or {}).values())]
    add_special_tokens(loaded, [text for text in wanted if text and _TOKEN.fullmatch(text)])
    if backbone is None and path and len(loaded) > vocab_size:
        raise ValueError(
            f"tokenizer.vocab_size={vocab_size}: must be ≥ {len(loaded)}, "
            f"the size of tokenizer.path={path}"
        )
    return loaded


def _make_tokenizer(
    documents: Dataset,
    queries: Dataset,
    language: str,
    unit: str,
    vocab_size: int,
    lowercase: bool,
    special: list[str],
) -> PreTrainedTokenizerBase:
    """Makes a tokeniser of the collection's words or pieces; the result is cached."""
    made_from = documents._fingerprint, queries._fingerprint
    key = short_hash("unigram/7", _LEARNED_FROM, *made_from, vocab_size, lowercase, *special)
    if unit == "word":
        key = short_hash("word/2", *made_from, language)
    path = cache_folder("tokenizers") / f"{key}.json"
    with write_once(path) as partial:
        if partial is not None:
            if unit == "word":
                made = build_word_tokenizer(_texts(documents, queries), language)
            else:
                texts = (_spread(table, _LEARNED_FROM) for table in (documents, queries))
                made = train_tokenizer(chain(_texts(*texts), special), vocab_size, lowercase)
            made.backend_tokenizer.save(str(partial))
    if unit == "word":
        return WordTokenizer(tokenizers.Tokenizer.from_file(str(path)), language)
    return load_tokenizer(path)


def _spread(table: Dataset, rows: int) -> Dataset:
    """Selects at most this many rows, evenly spaced."""
    if len(table) <= rows:
        return table
    return table.select(np.linspace(0, len(table) - 1, rows).astype(np.int64))


def _texts(documents: Dataset, queries: Dataset) -> Iterator[str]:
    for table in (documents, queries):
        for rows in table.iter(1000):
            yield from rows["text"]


def clean_table(table: Dataset, steps: list[str]) -> Dataset:
    """Replaces the columns `text` and, if there is one, `title` by their cleaned form.

    Args:
        steps: steps of `clean_text`; [] = return the table unchanged.

    Raises:
        ValueError: an unknown step.
    """
    if not steps:
        return table
    names = [name for name in ("title", "text") if name in table.column_names]

    def clean_rows(rows: pa.Table) -> dict[str, list[str]]:
        return {
            name: [clean_text(text, steps) for text in rows[name].to_pylist()] for name in names
        }

    return _map(table, clean_rows, short_hash("clean/3", table._fingerprint, steps), "cleaning")


def split_documents(documents: Dataset, passages: PassageOptions | None) -> Dataset:
    """Splits the documents' texts into passages: a row for each, as `gr_mvdr.passages` describes.

    Args:
        documents: columns id, title, text.
        passages: None = return the documents unchanged.
    """
    if passages is None:
        return documents

    def split(rows: pa.Table) -> dict[str, list | pa.ChunkedArray]:
        row, columns = passages.split_all(rows["id"].to_pylist(), rows["text"].to_pylist())
        repeated = rows.take(row)
        return {name: repeated[name] for name in rows.column_names} | columns

    first = passages.score == "first"
    key = short_hash("passages/1", documents._fingerprint, passages.words, passages.stride, first)
    return _map(documents, split, key, "splitting documents", start=Value("int64"))


def join_fields(documents: Dataset, fields: list[str]) -> Dataset:
    """Replaces `text` by the chosen fields joined with " | "; empty fields are left out.

    Args:
        documents: columns id, title, text.
        fields: "title", "text" or both, in the order of the result (the papers: title | text).
    """

    def join(rows: pa.Table) -> dict[str, list[str]]:
        texts = zip(*(rows[field].to_pylist() for field in fields), strict=True)
        return {"text": list(map(join_texts, texts))}

    key = short_hash("join/1", documents._fingerprint, list(fields))
    return _map(documents, join, key, "joining fields")


def add_tokens(table: Dataset, tokenizer: PreTrainedTokenizerBase, joined: str = "") -> Dataset:
    """Adds the columns `tokens` and `word_starts`, see `encode_texts`.

    `joined` is tokenised with every text, see `TextTemplate.joined`.

    A table with titles also gets `title_tokens`, the token ids of the title alone.
    """
    titled = "title" in table.column_names
    names = ["tokens", "word_starts", *(["title_tokens"] if titled else [])]

    def tokenise(rows: pa.Table) -> dict[str, list]:
        texts = [joined + text for text in rows["text"].to_pylist()]
        columns = [*encode_texts(texts, tokenizer)]
        if titled:
            columns.append(encode_texts(rows["title"].to_pylist(), tokenizer)[0])
        return dict(zip(names, columns, strict=True))

    key = short_hash("tokens/4", table._fingerprint, hash_vocabulary(tokenizer), joined)
    return _map(table, tokenise, key, "tokenising", **{name: _INTEGERS for name in names})


def encode_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[list[int]], list[list[int]]]:
    """The token ids of each text, uncut and without special tokens, and the starts of its words.

    Words are separated by white space. The start of a word is the position of its first token, so
    that the tokens of a span of words can be cut out of the text's tokens.
    """
    if isinstance(tokenizer, WordTokenizer):
        words = [*map(tokenizer.words, texts)]
        starts = [[*accumulate(map(len, own), initial=0)][:-1] for own in words]
        return [[*chain.from_iterable(own)] for own in words], starts
    if tokenizer.is_fast:
        tokenizer(texts[:1], add_special_tokens=False)  # sets the backend's options
        encoded = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        starts = [find_word_starts(t, one.offsets) for t, one in zip(texts, encoded, strict=True)]
        return [one.ids for one in encoded], starts
    ids, starts = [], []
    for words in map(_SPACED_WORD.findall, texts):  # ByT5 reads bytes: a space is a token
        read = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        ends = accumulate(map(len, read), initial=0)
        ids.append([*chain(*read)])
        starts.append([n + len(w) - len(w.lstrip()) for n, w in zip(ends, words, strict=False)])
    return ids, starts


def find_word_starts(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """The position of the first token of each word of a text.

    Args:
        text: W words separated by white space.
        offsets: the characters [start, end) of each token; a token of only white space belongs to
            the word after it.

    Returns:
        W ascending token positions.
    """
    # The first token that reaches past the word's first character is the word's first token,
    # unless the token before it is the space in front of the word.
    ends, starts = [end for _, end in offsets], []
    for word in _WORD.finditer(text):
        place = bisect_right(ends, word.start())
        after_space = place > 0 and not text[slice(*offsets[place - 1])].strip()
        starts.append(place - after_space)
    return starts


def cut_spans(document: dict, starts: Sequence[int], length: int) -> list[list[int]]:
    """Returns, for each start, the tokens of `length` words, or fewer at the document's end.

    Args:
        document: a row with `tokens` and `word_starts`.
        starts: numbers of the words at which the spans start.
        length: words per span.
    """
    tokens = document["tokens"]
    bounds = [*document["word_starts"], len(tokens)]
    last = len(bounds) - 1
    return [tokens[bounds[start] : bounds[min(start + length, last)]] for start in starts]


def replace_titles(
    documents: Dataset, path: str | Path | None, tokenizer: PreTrainedTokenizerBase
) -> Dataset:
    """Replaces the documents' `title_tokens` by the tokens of texts from a file.

    The column `codes` is added, which holds the words of each text.

    Args:
        documents: a table from `add_tokens`.
        path: a file of lines `docid<TAB>text`, one per document. Texts may be equal, and the file
            may name further documents. None = return the documents unchanged.

    Raises:
        ValueError: a line breaks the format or names a document again; a document has no line.
    """
    if path is None:
        return documents
    texts: dict[str, str] = {}
    for where, line in numbered_lines(Path(path).expanduser()):
        name, _, text = line.partition("\t")
        if not name or not text.strip():
            raise ValueError(f"{where}: expected docid<TAB>text, got {line[:60]!r}")
        if name in texts:
            raise ValueError(f"{where}: names the document {name!r} a second time")
        texts[name] = text.strip()
    ids, texts = documents["id"][:], _find_each(documents, texts)
    if nameless := [name for name in ids if name not in texts]:
        raise ValueError(
            f"data.identifiers={path}: must name every document, {len(nameless):,} have no line, "
            f"the first is {nameless[0]!r}"
        )

    def tokenise(rows: pa.Table) -> dict[str, list]:
        named = [texts[identifier] for identifier in rows["id"].to_pylist()]
        codes = [text.split() for text in named]
        return {"title_tokens": encode_texts(named, tokenizer)[0], "codes": codes}

    made_from = documents._fingerprint, [texts[name] for name in ids], hash_vocabulary(tokenizer)
    key = short_hash("identifiers/2", *made_from)
    return _map(documents, tokenise, key, "tokenising", codes=List(Value("string")))


def add_views(
    documents: Dataset, views: Mapping[str, str], tokenizer: PreTrainedTokenizerBase
) -> Dataset:
    """Adds a column `NAME_tokens` for each view: the token lists of each document's texts.

    Args:
        views: name → file of lines `{"document_id": …, "queries": […]}`, as
            `experiment=query_generation` writes them. If several lines name a document, it has the
            texts of all; documents that no line names have []. Texts without a token are left out.

    Raises:
        ValueError: a line breaks the format or names an unknown document (the message names
            file:line); or the file has no text.
    """
    for view, path in views.items():
        name, file = f"{view}_tokens", Path(path).expanduser()
        # The file is read only if the column is not cached yet.
        texts = cache(partial(_read_view, file, documents))

        def tokenise(rows: pa.Table, name: str = name, texts: Callable = texts) -> dict[str, list]:
            own = [texts().get(i, []) for i in rows["id"].to_pylist()]
            flat = [*chain(*own)]
            ids = iter(tokenizer(flat, add_special_tokens=False)["input_ids"] if flat else ())
            return {name: [[t for t in islice(ids, len(some)) if t] for some in own]}

        made_from = documents._fingerprint, name, sha256(file), hash_vocabulary(tokenizer)
        key = short_hash("view/1", *made_from)
        documents = _map(documents, tokenise, key, "tokenising", **{name: List(_INTEGERS)})
    return documents


def _read_view(file: Path, documents: Dataset) -> dict[str, list[str]]:
    """Document id → the texts that a file has for the document; see `add_views`."""
    known, texts_of = {*documents["id"][:], *document_ids(documents)}, dict[str, list[str]]()
    for where, identifier, texts in read_generated(file):
        if identifier not in known:
            raise ValueError(f"{where}: document {identifier!r} is not in the collection")
        texts_of.setdefault(identifier, []).extend(texts)
    if not any(map(str.strip, chain(*texts_of.values()))):
        raise ValueError(f"{file}: the file holds no query")
    return _find_each(documents, texts_of)


def _find_each(documents: Dataset, named: Mapping[str, Named]) -> dict[str, Named]:
    """Id of a row → what a file has for it: for the passage, or else for its document."""
    pairs = zip(documents["id"][:], document_ids(documents), strict=True)
    names = ((own, own if own in named else document) for own, document in pairs)
    return {own: named[name] for own, name in names if name in named}


def encode_special_tokens(
    special_tokens: Mapping[str, str], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[int]]:
    """Name → the token ids of a special token's text, without </s>.

    Raises:
        ValueError: the tokeniser does not know all characters of a text; unknown tokens would make
            special tokens equal.
    """
    encoded = {}
    for name, text in special_tokens.items():
        # The text may name one of the tokeniser's own special tokens (T5's "<extra_id_1>").
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=False)
        encoded[name] = ids["input_ids"]
        if not encoded[name] or tokenizer.unk_token_id in encoded[name]:
            raise ValueError(f"tokenizer.special_tokens.{name}={text}: unknown to the tokeniser")
    return encoded


def hash_vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """The SHA-256 of everything that determines a tokeniser's output; part of cache keys."""
    if tokenizer.is_fast:
        language = tokenizer.init_kwargs.get("language", "")
        made_of = language + tokenizer.backend_tokenizer.to_str()
    else:
        made_of = f"{type(tokenizer).__name__} {sorted(tokenizer.get_vocab().items())}"
    return hashlib.sha256(made_of.encode()).hexdigest()


def _map(
    table: Dataset,
    function: Callable[[pa.Table], Mapping[str, list | pa.Array]],
    key: str,
    description: str,
    **new: List | Value,
) -> Dataset:
    """Returns the table with further columns, or with some of its columns replaced.

    The result is written once, in the folder `TABLES` next to the table's own file; if the table
    has no file, the result stays in memory.

    Args:
        function: maps a batch of rows to columns for these rows, or to all columns of other rows.
        key: identifies everything that the columns depend on.
        new: name → type of each further column.
    """
    features = Features({**table.features, **new})
    schema = features.arrow_schema

    def batches() -> Iterator[pa.RecordBatch]:
        arrow = table.with_format("arrow")
        for start in track(range(0, len(table), ROWS), description):
            rows = arrow[start : start + ROWS]
            columns = {name: rows[name] for name in rows.column_names} | dict(function(rows))
            made = pa.table([columns[name] for name in schema.names], schema)
            yield from made.combine_chunks().to_batches()

    if not table.cache_files:
        made = InMemoryTable(pa.Table.from_batches(batches(), schema))
        return Dataset(made, DatasetInfo(features=features), fingerprint=key)
    place = Path(table.cache_files[0]["filename"]).parent
    tables = place if place.name == TABLES else place / TABLES
    return keep_table(tables, features, key, lambda file: write_batches(file, schema, batches()))


# A tokeniser trained on a collection

# A private-use character that no text contains; pieces with it are dropped after training.
_MARK = "\ue000"
_LETTERS = re.compile(r"\w+")
# Training sees at most this many letters of a word. A single sequence of 300,000 letters (DNA,
# base64) has too many different substrings: training takes minutes or does not end.
_LONGEST_WORD = 256
_LONG_WORD = re.compile(rf"\b(\w{{{_LONGEST_WORD}}})(\w+)")


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """Trains a SentencePiece-like Unigram tokeniser with T5's special ids on a collection.

    Training sees only the first 256 letters of a longer word. The trained tokeniser reads such a
    word whole.

    Args:
        texts: the documents and training queries.
        vocab_size: at most this many pieces, the special ones included.
        lowercase: map text to lower case first. A model trained from scratch cannot know that
            "The" and "the" are one word.

    Raises:
        ValueError: the texts have more different characters than the vocabulary has room for.
    """
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    spaces = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    steps = [tokenizers.normalizers.NFKC(), spaces, tokenizers.normalizers.Strip()]
    if lowercase:
        steps.append(tokenizers.normalizers.Lowercase())
    model.normalizer = tokenizers.normalizers.Sequence(steps)
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(),
            # Otherwise a name with a comma attached would become a second piece.
            tokenizers.pre_tokenizers.Punctuation("isolated"),
        ]
    )
    model.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        unk_token="<unk>",
        show_progress=False,
    )
    # The order in which threads add floats varies; with one thread, training is reproducible.
    threads = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        model.train_from_iterator(_with_marked_copies(_cut_long_words(texts)), trainer)
    except Exception as error:  # `tokenizers` raises no more specific class
        if "vocabulary is not large enough" not in str(error):
            raise
        rule = "must be larger than the number of different characters in the texts"
        raise ValueError(f"tokenizer.vocab_size={vocab_size}: {rule}") from None
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        os.environ |= {} if threads is None else {"TOKENIZERS_PARALLELISM": threads}
    model.model = tokenizers.models.Unigram(_settled_vocabulary(model), UNK_ID, False)
    return wrap_tokenizer(model)


def _cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts with long words cut to `_LONGEST_WORD` letters; prints how many were cut.

    The letters of the part that is cut off follow as one-letter words, so that training sees the
    complete alphabet.
    """
    count = 0
    for text in texts:
        cut, words = _LONG_WORD.subn(lambda w: " ".join([w[1], *sorted(set(w[2]))]), text)
        count += words
        yield cut
    if count:
        print(
            f"tokenizer: training sees only the first {_LONGEST_WORD} letters of longer words "
            f"({count:,} in these texts)"
        )


def _with_marked_copies(texts: Iterable[str]) -> Iterator[str]:
    """Yields each text, and then a copy of it in which every word ends with a mark.

    The trainer's first candidates are the strings that occur in at least two *distinct* words. A
    word that is not part of another word therefore never becomes a piece, however frequent it is
    ("was" is split into "▁" and "was", a name into syllables). The marked copies make every word
    part of another one. On the almanac this lowers the number of pieces per word from 2.2 to 1.2.
    """
    for text in texts:
        yield text
        yield _LETTERS.sub(rf"\g<0>{_MARK}", text)


def _settled_vocabulary(model: tokenizers.Tokenizer) -> list[tuple[str, float]]:
    """The trained pieces and scores, without marked pieces and in a reproducible order.

    Characters that only complete the alphabet get the trainer's lowest score, that score + 0.0001,
    and so on, in the order of a hash table that changes from call to call. Here they all share the
    lowest score. Scores are rounded, because sums of floats also depend on that order.
    """
    vocabulary = [(p, round(score, 6)) for p, score in json.loads(model.to_str())["model"]["vocab"]]
    special, pieces = vocabulary[: len(SPECIAL_TOKENS)], dict(vocabulary[len(SPECIAL_TOKENS) :])
    lowest = min(pieces.values())
    characters = [piece for piece in pieces if len(piece) == 1]
    reach = lowest + 0.0001 * len(characters)
    pieces |= {piece: lowest for piece in characters if pieces[piece] < reach}
    kept = [item for item in pieces.items() if _MARK not in item[0]]
    return special + sorted(kept, key=lambda item: (-item[1], item[0]))
