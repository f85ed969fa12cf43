"""The tokens around a text: T5's end token, BERT's [CLS] and [SEP], ColBERT's markers.

Tables hold only the tokens of texts. A template adds the tokens around them, up to a maximum
length, to make a model's inputs and targets.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gr_mvdr.token_vectors import SIDES

Ids = tuple[int, ...]
# Words of several kinds: a prompt that changes the tokens of none of these changes no text.
_CHAT, _TEXT = "chat", "{text}"  # of `read_template`'s prompt
_PROBES = ("which", "a.b", "Zürich", "42")
_MOST_PROBES = 300


@dataclass(frozen=True)
class TextTemplate:
    """Token ids around texts. The defaults are T5's: nothing before a text, </s> after it.

    Attributes:
        query, document: the tokens before a query and before a document that an encoder reads, such
            as [CLS] and a marker.
        pair: the tokens between a query and a document in one sequence (a cross-encoder), after the
            query's suffix; None = the tokeniser has no template for two texts.
        types: whether such a sequence has token types that mark query and document (BERT).
        suffix: the tokens after every text that an encoder reads.
        target: the tokens before an identifier that a decoder generates (BART's <s>).
        stop: the token that ends an identifier.
        pad: the padding token, which is also T5's start token.
        unknown: the token for text outside the vocabulary.
        expansion: the token that pads queries (ColBERT's augmentation); None = no expansion.
        skip: tokens whose vectors a document does not keep (punctuation in ColBERT).
        query_text, document_text: text before a query and before a document that is tokenised with
            it: the end of a prompt that shares a token with the text after it ("Query:").
        cuts_start: whether a text that is too long loses its first tokens, not its last ones.
        pads_start: whether the expansion precedes a query.
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
    query_text: str = ""
    document_text: str = ""
    cuts_start: bool = False
    pads_start: bool = False

    def __post_init__(self):
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), list):  # a configuration has lists
                object.__setattr__(self, field.name, tuple(value))

    @property
    def settings(self) -> dict[str, Any]:
        """The template as plain values for a checkpoint: `TextTemplate(**settings)` equals it."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @property
    def joined(self) -> dict[str, str]:
        """Side → the text that is tokenised with its texts."""
        return {"query": self.query_text, "document": self.document_text}

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
        """Returns a query as an encoder reads it, cut to `length` tokens in total."""
        return _within(self.query, tokens, self.suffix, length, self.cuts_start)

    def read_document(self, tokens: Sequence[int], length: int) -> list[int]:
        """Returns a document as an encoder reads it, cut to `length` tokens in total."""
        return _within(self.document, tokens, self.suffix, length, self.cuts_start)

    def append(self, read: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Inserts further tokens before the suffix of an encoder's input."""
        return [*read[: len(read) - len(self.suffix)], *tokens, *self.suffix]

    def read_target(self, tokens: Sequence[int], length: int) -> list[int]:
        """Returns an identifier as a decoder generates it, cut to `length` tokens in total."""
        return _within(self.target, tokens, (self.stop,), length)


def _within(
    before: Ids, tokens: Sequence[int], after: Ids, length: int, cuts_start: bool = False
) -> list[int]:
    room = max(0, length - len(before) - len(after))
    first = max(0, len(tokens) - room) if cuts_start else 0
    return [*before, *tokens[first : first + room], *after]


def read_template(
    tokenizer: Any,
    markers: Mapping[str, str | None] | None = None,
    skip: str | Sequence[str] | None = None,
    expansion: str | None = None,
    prompt: str | None = None,
) -> TextTemplate:
    """Reads the template of a Hugging Face tokeniser.

    Args:
        markers: side, "query" or "document" → the token that begins its texts ([Q], [D]), or any
            text that is read before them ("query: ").
        skip: "punctuation", or a list of words: documents do not keep the vectors of these tokens.
        expansion: the token that pads queries, such as [MASK].
        prompt: what a causal language model reads for a query, "Question: {text} Title:"; "chat" =
            a user's turn in the tokeniser's chat template.

    Raises:
        ValueError: the tokeniser lacks a named token or a chat template, or the prompt has nothing
            after its text.
    """
    stop = tokenizer.eos_token_id
    if stop is None:
        stop = tokenizer.sep_token_id
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed, both = (tokenizer(*texts)["input_ids"] for texts in (("a",), ("a", "a")))
    start = _find(framed, text)
    if start is None:
        raise ValueError(
            f"tokenizer={tokenizer.name_or_path}: must give a text the same tokens with "
            "special tokens around it and without them"
        )
    before, after = tuple(framed[:start]), tuple(framed[start + len(text) :])
    suffix = after or (stop,)  # a tokeniser made by this library adds nothing
    rest = both[start + len(text) :] if _find(both, text) == start else []
    between = _find(rest, text)

    def read_marker(text: str) -> tuple[Ids, str]:
        token = tokenizer.get_vocab().get(text)
        return join_prompt(tokenizer, tokenizer, text) if token is None else ((token,), "")

    query, document = (read_marker((markers or {}).get(side) or "") for side in SIDES)
    opening = before
    if prompt is not None:
        opening, suffix = _read_prompt(tokenizer, prompt)
        opening = opening if prompt == _CHAT else before + opening  # a chat has its own BOS
    return TextTemplate(
        query=opening + query[0],
        query_text=query[1],
        document=before + document[0],
        document_text=document[1],
        pair=None if between is None else tuple(rest[len(suffix) : between]),
        types="token_type_ids" in tokenizer.model_input_names,
        suffix=suffix,
        target=before,
        stop=stop,
        pad=tokenizer.pad_token_id,
        unknown=tokenizer.unk_token_id,
        expansion=_find_token(tokenizer, "expansion", expansion) if expansion else None,
        skip=_find_words(tokenizer, skip or ()),
        cuts_start=tokenizer.truncation_side == "left",
        pads_start=tokenizer.padding_side == "left",
    )


def _read_prompt(tokenizer: Any, prompt: str) -> tuple[Ids, Ids]:
    """Returns the tokens before and after the text of a prompt.

    Raises:
        ValueError: there is nothing after the text, or no chat template.
    """
    whole, key = prompt, f"tokenizer.prompt={prompt!r}"
    if prompt == _CHAT:
        if tokenizer.chat_template is None:
            raise ValueError(f"{key}: tokenizer={tokenizer.name_or_path} has no chat template")
        asked = [{"role": "user", "content": _TEXT}]
        whole = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    opening, _, ending = whole.partition(_TEXT)
    if not ending:
        raise ValueError(f"{key}: must have {_TEXT}, and a text after it")
    read = dict(add_special_tokens=False, split_special_tokens=False)
    before, after = (tuple(tokenizer(part, **read)["input_ids"]) for part in (opening, ending))
    return before, after


def join_prompt(theirs: Any, ours: Any, prompt: str) -> tuple[Ids, str]:
    """Splits a prompt into tokens, and a text that is tokenised with what follows it.

    The text is "" if no token reaches over the prompt's end, as after "query: " in BERT. Byte-level
    tokenisers read the ":" of "Query:" together with a word.

    Args:
        theirs: the tokeniser that reads the prompt, special tokens included.
        ours: the tokeniser that reads the texts.

    Raises:
        ValueError: the tokenisers differ.
    """
    cut = theirs is not ours and theirs.truncation_side == "left"  # of prompt and text together
    splits = [(prompt[:end], prompt[end:]) for end in range(len(prompt), -1, -1)]
    for head, rest in splits[-1:] if cut else (splits[0], (prompt.rstrip(), ""), *splits[1:]):
        ids = theirs(head, add_special_tokens=False)["input_ids"]
        if agree(theirs, ours, prompt, ids, rest):
            return tuple(ids), rest
    raise ValueError(f"prompt={prompt!r}: must not change the tokens of the text after it")


def agree(theirs: Any, ours: Any, prompt: str, ids: Sequence[int], rest: str = "") -> bool:
    """Returns whether tokens `ids` and `rest` with a text are what prompt and text are together.

    Texts are probes, and what follows the prompt's last character within a token.
    """

    def read(tokenizer: Any, text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    ends, after = theirs.convert_ids_to_tokens(list(ids[-1:])), list[str]()
    if ends and theirs.is_fast and len(theirs.tokenize(prompt + "a")) > len(ids):
        after = [t[1:] for t in theirs.get_vocab() if t[:1] == ends[0][-1:] and t[1:].isalnum()]
    probes = *_PROBES, *sorted(after)[:_MOST_PROBES]
    return all(read(theirs, prompt + word) == [*ids, *read(ours, rest + word)] for word in probes)


def _find(framed: Sequence[int], text: Sequence[int]) -> int | None:
    """Returns the place of a text's tokens in a sequence; None if absent."""
    starts = range(len(framed) - len(text) + 1)
    return next((n for n in starts if list(framed[n : n + len(text)]) == list(text)), None)


def _find_token(tokenizer: Any, key: str, text: str) -> int:
    """Returns the id of a token by its text; `key` is the option that the user typed.

    Raises:
        ValueError: the tokeniser has no such token.
    """
    token = tokenizer.get_vocab().get(text)
    if token is None:
        raise ValueError(f"tokenizer.{key}={text}: must be a token of the tokeniser")
    return token


def _find_words(tokenizer: Any, words: str | Sequence[str]) -> Ids:
    """Returns the ids of tokens that equal one of these words, at a text's start or inside it."""
    vocabulary, ids = tokenizer.get_vocab(), set()
    for word in string.punctuation if words == "punctuation" else words:
        alone = tokenizer(word, add_special_tokens=False)["input_ids"]
        ids |= {vocabulary.get(word), alone[0] if len(alone) == 1 else None}
    return tuple(sorted(ids - {None, tokenizer.unk_token_id}))
