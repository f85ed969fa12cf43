"""Texts to tokens by way of their words: each different word is tokenised once.

A collection of millions of words has tens of thousands of different ones. Most tokenisers cut a
text at white space before they look for pieces, so that a text's tokens are those of its words, one
after the other, each with the space before it. Where a tokeniser or a text is not like that, the
text is read as if it were one word.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from gr_mvdr.tokenizers import WORD_SPLIT

_WORD, _SPACED_WORD = re.compile(r"\S+"), re.compile(r"\s*\S+")
# What may act on the white space next to it: controls, of which not all take the same for white
# space, the mark that pieces have for it, and characters that form one grapheme with what follows
# (Unicode's Prepend).
_BOUND = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2581\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e"
    "\U000110bd\U000110cd\U000111c2\U000111c3\U0001193f\U00011941\U00011a3a"
    "\U00011a84-\U00011a89\U00011d46\U00011f02]"
)
_KEPT = 1 << 20  # tokens of words that are remembered
_LISTS = pa.list_(pa.int32())
# Steps of a normaliser that never look beyond a word, the first of which neither lose a word nor
# make a space, and steps of a pre-tokeniser that cut at spaces.
_KEEP = ("NFC", "NFD", "Lowercase")
_LOCAL = (*_KEEP, *"NFKC NFKD Nmt Precompiled Strip StripAccents BertNormalizer".split())
_CUTS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")
_COLLAPSES = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
_SHORTENS = {**_COLLAPSES, "pattern": {"Regex": " {2,}"}}


class WordReader:
    """Makes tokens of texts, as the tokeniser does, and finds where their words start."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.by_words = not tokenizer.is_fast or reads_words_alone(tokenizer)
        self._forget()

    def _forget(self) -> None:
        self.known: dict[str, int] = {}  # part of a text → its number
        self.tokens, self.starts = pa.array([], _LISTS), pa.array([], _LISTS)  # of each part

    def read(self, texts: Sequence[str]) -> tuple[pa.ListArray, pa.ListArray]:
        """The tokens of each text, whole and without special ones, and its word starts, int32.

        `word_starts` has one entry for each white-space separated word, the position of its first
        token, so that a span of words can be cut out of the tokens.
        """
        parts = [self._parts(text) for text in texts]
        if len(self.tokens.values) > _KEPT:
            self._forget()
        self._learn(chain.from_iterable(parts))
        ends = np.cumsum([0, *map(len, parts)])
        chosen = map(self.known.__getitem__, chain.from_iterable(parts))
        numbers = pa.array(np.fromiter(chosen, np.int64, ends[-1]))
        tokens, starts = self.tokens.take(numbers), self.starts.take(numbers)
        token_ends, start_ends = tokens.offsets.to_numpy(), starts.offsets.to_numpy()
        # A part's starts count from its own first token; a text's count from the text's.
        first = token_ends[:-1] - np.repeat(token_ends[ends[:-1]], np.diff(ends))
        counted = starts.flatten().to_numpy() + np.repeat(first, np.diff(start_ends))
        return (
            pa.ListArray.from_arrays(token_ends[ends], tokens.flatten()),
            pa.ListArray.from_arrays(start_ends[ends], counted.astype(np.int32)),
        )

    def _parts(self, text: str) -> list[str]:
        bound = self.tokenizer.is_fast and (text[-1:].isspace() or _BOUND.search(text))
        return [text] if bound or not self.by_words else _SPACED_WORD.findall(text)

    def _learn(self, parts: Iterable[str]) -> None:
        """Tokenises the parts that are new."""
        new = [part for part in dict.fromkeys(parts) if part not in self.known]
        if not new:
            return
        tokens, starts = self._tokenise(new)
        self.known |= zip(new, range(len(self.known), len(self.known) + len(new)), strict=True)
        self.tokens = pa.concat_arrays([self.tokens, pa.array(tokens, _LISTS)])
        self.starts = pa.concat_arrays([self.starts, pa.array(starts, _LISTS)])

    def _tokenise(self, parts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        """The tokens and the word starts of each part."""
        if not self.tokenizer.is_fast:  # one in Python (ByT5) has a token for each space
            spaces = [[len(part) - len(part.lstrip())] for part in parts]
            return self.tokenizer(parts, add_special_tokens=False)["input_ids"], spaces
        # A call sets the options of the model within, which is twice as fast when asked itself.
        self.tokenizer(parts[:1], add_special_tokens=False)
        found = self.tokenizer.backend_tokenizer.encode_batch(parts, add_special_tokens=False)
        starts = [find_word_starts(p, one.offsets) for p, one in zip(parts, found, strict=True)]
        return [one.ids for one in found], starts


def reads_words_alone(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text's tokens are those of its words, each with the space before it.

    True only where every step is known to see no more than a word: T5's, BERT's and BART's
    tokenisers, and those that are made here.
    """
    model = tokenizer.backend_tokenizer
    normalizer, cut = _steps(model.normalizer), _steps(model.pre_tokenizer)
    added = model.get_added_tokens_decoder().values()
    # Any other added token is looked for in the text, spaces included.
    special = tokenizer.split_special_tokens and all(token.special for token in added)
    if not special or not cut or getattr(model.model, "dropout", None):
        return False
    if any(step.get("prepend_scheme", "always") != "always" for step in cut):
        return False
    return all(map(_is_local, normalizer)) and _cuts_at_spaces(cut[0], normalizer)


def _steps(part: Any) -> list[dict]:
    """The steps of a normaliser or pre-tokeniser as they are saved, sequences laid open."""
    if part is None:
        return []
    step = part if isinstance(part, dict) else json.loads(part.__getstate__())
    inner = step.get("normalizers") or step.get("pretokenizers")
    return [one for some in inner for one in _steps(some)] if inner else [step]


def _is_local(step: dict) -> bool:
    if step["type"] == "Replace":
        text = step["pattern"].get("String", " ") + step["content"]
        return step in (_COLLAPSES, _SHORTENS) or _WORD.fullmatch(text) is not None
    return step["type"] in _LOCAL


def _cuts_at_spaces(step: dict, normalizer: list[dict]) -> bool:
    rest = [step for step in normalizer if step["type"] not in _KEEP]
    # Several spaces, which a lost word leaves, are tokens to both of these.
    if step["type"] == "Metaspace":
        single = _COLLAPSES in rest[-2:] and any(s["type"] == "Strip" for s in rest[-2:])
        return single and step["split"]
    if step["type"] == "ByteLevel":  # which adds a prefix to tabs, too
        return not rest and step["use_regex"] and not step["add_prefix_space"]
    return step["type"] in _CUTS or step == json.loads(WORD_SPLIT.__getstate__())


def find_word_starts(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """The position of the first token of each word of a text.

    Args:
        text: W words separated by white space.
        offsets: the characters [start, end) of each token; a token of white space alone belongs
            to the word that follows it.

    Returns:
        W ascending token positions.
    """
    # The first token that reaches past the word's first character is the word's first token,
    # unless a token of the space before it (which ends there) opens the word.
    ends, starts = [end for _, end in offsets], []
    for word in _WORD.finditer(text):
        place = bisect_right(ends, word.start())
        opened = place > 0 and not text[slice(*offsets[place - 1])].strip()
        starts.append(place - opened)
    return starts
