"""The tokens around a text: T5's end token, BERT's [CLS] and [SEP], ColBERT's markers.

Tables hold only the tokens of texts. A template adds the tokens around them, within a maximum
length, to make a model's input and its target.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True)
class TextTemplate:
    """Token ids around texts. The defaults are T5's: nothing before a text, </s> after it.

    Attributes:
        query, document: before a query and before a document that an encoder reads, such as [CLS]
            and a marker.
        pair: before the document where it follows a query in one sequence (a cross-encoder);
            None = the tokeniser has no template for two texts. types: whether such a sequence has
            token types that mark query and document (BERT).
        suffix: after every text that an encoder reads.
        target: before an identifier that a decoder generates (BART's <s>); stop: ends it.
        pad: the padding token, also T5's start token; unknown: for text outside the vocabulary.
        expansion: pads queries (ColBERT's augmentation); None = queries are not expanded.
        skip: tokens whose vectors a document does not keep (ColBERT: punctuation).
    """

    query: Ids = ()
    document: Ids = ()
    pair: Ids | None = ()
    types: bool = False
    suffix: Ids = (1,)
    target: Ids = ()
    stop: int = 1
    pad: int = 0
    unknown: int | None = 2
    expansion: int | None = None
    skip: Ids = ()

    def __post_init__(self):
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), list):  # as a configuration has it
                object.__setattr__(self, field.name, tuple(value))

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values, as a checkpoint holds them: `TextTemplate(**settings)` is this one."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @property
    def special(self) -> list[int]:
        """The ids of all special tokens, ascending."""
        pair = self.pair or ()
        around = {*self.query, *self.document, *pair, *self.suffix, *self.target}
        single = {self.stop, self.pad, self.unknown, self.expansion} - {None}
        return sorted(around | single)

    @property
    def least(self) -> int:
        """The shortest valid length: one token of the text and the tokens around it."""
        return 1 + max(len(self.query), len(self.document)) + len(self.suffix)

    def read_query(self, tokens: Sequence[int], length: int) -> list[int]:
        """A query's first tokens as an encoder reads them, at most `length` in total."""
        return _within(self.query, tokens, self.suffix, length)

    def read_document(self, tokens: Sequence[int], length: int) -> list[int]:
        """A document's first tokens as an encoder reads them; see `read_query`."""
        return _within(self.document, tokens, self.suffix, length)

    def append(self, read: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """An encoder's input with further tokens inserted before the suffix."""
        return [*read[: len(read) - len(self.suffix)], *tokens, *self.suffix]

    def read_target(self, tokens: Sequence[int], length: int) -> list[int]:
        """An identifier's first tokens as a decoder generates them."""
        return _within(self.target, tokens, (self.stop,), length)


def _within(before: Ids, tokens: Sequence[int], after: Ids, length: int) -> list[int]:
    return [*before, *tokens[: max(0, length - len(before) - len(after))], *after]


def read_template(
    tokenizer: Any,
    markers: Mapping[str, str | None] | None = None,
    skip: str | Sequence[str] | None = None,
    expansion: str | None = None,
) -> TextTemplate:
    """The template of a Hugging Face tokeniser.

    Args:
        markers: of the sides "query" and "document", a token that begins its texts ([Q], [D]).
        skip: "punctuation", or texts, whose vectors documents do not keep.
        expansion: a token that pads queries, such as [MASK].

    Raises:
        ValueError: the tokeniser lacks a padding token, an end token or a named token.
    """
    pad, stop = tokenizer.pad_token_id, tokenizer.eos_token_id
    if stop is None:
        stop = tokenizer.sep_token_id
    if pad is None or stop is None:
        lacks = "pads" if pad is None else "ends"
        raise ValueError(
            f"tokenizer={tokenizer.name_or_path}: has no token that {lacks} a text, must be of an "
            "encoder or of an encoder-decoder"
        )
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed, both = (tokenizer(*texts)["input_ids"] for texts in (("a",), ("a", "a")))
    start = _find(framed, text)
    if start is None:
        raise ValueError(
            f"tokenizer={tokenizer.name_or_path}: must give a text the same tokens with "
            "special tokens around it and without them"
        )
    before, after = tuple(framed[:start]), tuple(framed[start + len(text) :])
    suffix = after or (stop,)  # a tokeniser that was made here adds nothing by itself
    rest = both[start + len(text) :] if _find(both, text) == start else []
    between = _find(rest, text)
    sides = [(side, token) for side, token in (markers or {}).items() if token]
    known = {side: (_find_token(tokenizer, f"markers.{side}", token),) for side, token in sides}
    return TextTemplate(
        query=before + known.get("query", ()),
        document=before + known.get("document", ()),
        pair=None if between is None else tuple(rest[len(suffix) : between]),
        types="token_type_ids" in tokenizer.model_input_names,
        suffix=suffix,
        target=before,
        stop=stop,
        pad=pad,
        unknown=tokenizer.unk_token_id,
        expansion=_find_token(tokenizer, "expansion", expansion) if expansion else None,
        skip=_find_words(tokenizer, skip or ()),
    )


def _find(framed: Sequence[int], text: Sequence[int]) -> int | None:
    """The place of a text's tokens in a sequence; None if absent."""
    starts = range(len(framed) - len(text) + 1)
    return next((n for n in starts if list(framed[n : n + len(text)]) == list(text)), None)


def _find_token(tokenizer: Any, key: str, text: str) -> int:
    """The id of a token by its text; `key` is what the user typed it under.

    Raises:
        ValueError: the tokeniser has no such token.
    """
    token = tokenizer.get_vocab().get(text)
    if token is None:
        raise ValueError(f"tokenizer.{key}={text}: must be a token of the tokeniser")
    return token


def _find_words(tokenizer: Any, words: str | Sequence[str]) -> Ids:
    """The ids of tokens that are these words, within a text and at its start, ascending."""
    vocabulary, ids = tokenizer.get_vocab(), set()
    for word in string.punctuation if words == "punctuation" else words:
        alone = tokenizer(word, add_special_tokens=False)["input_ids"]
        ids |= {vocabulary.get(word), alone[0] if len(alone) == 1 else None}
    return tuple(sorted(ids - {None, tokenizer.unk_token_id}))
