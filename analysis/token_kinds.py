"""Which tokens carry content: one rule for special tokens, punctuation and stopwords."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from data_modules.spans import STOPWORDS

WORD_MARK = "▁"  # SentencePiece's: the piece begins a word


@dataclass(frozen=True)
class TokenKinds:
    """What kind of token every id is.

    The rule, the same in every measurement:

    - *Special* tokens (the tokeniser's own list: padding, end, unknown, sentinels) never count as
      aligning tokens. They stay on the other side as something to align to, since the system sees
      them there.
    - *Punctuation* is a piece without a letter or digit, the bare word mark ▁ included.
    - A *stopword* is a whole word of the English list `data_modules.spans.STOPWORDS`, in whatever
      case: a piece that begins a word ("▁the"), or any piece of a tokeniser without word marks.
      A piece within a word is none ("the" of "▁ba the").
    - *Content* is all the rest. So are ids beyond the tokeniser's, the tokens of docids.

    Rates are given over all tokens that are not special, and over content tokens.

    Attributes:
        special, punctuation, stopword: (V,) bool, no id in two of them.
    """

    special: Tensor
    punctuation: Tensor
    stopword: Tensor

    @property
    def content(self) -> Tensor:
        """(V,) bool, none of the three."""
        return ~(self.special | self.punctuation | self.stopword)

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> "TokenKinds":
        """The kinds of a Hugging Face tokeniser's ids.

        Args:
            tokenizer: any with `convert_ids_to_tokens` and `all_special_ids`.
            size: V; ids from len(tokenizer) on are docid tokens.

        Raises:
            ValueError: fewer ids than the tokeniser has.
        """
        if size < len(tokenizer):
            raise ValueError(f"size={size}: must be ≥ {len(tokenizer)}, the tokeniser's size")
        # A tokeniser may have gaps between its ids.
        pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
        special = torch.zeros(size, dtype=torch.bool)
        special[list(tokenizer.all_special_ids)] = True
        marked = any(piece.startswith(WORD_MARK) for piece in pieces)
        found = [(_is_punctuation(piece), _is_stopword(piece, marked)) for piece in pieces]
        found += [(False, False)] * (size - len(pieces))
        punctuation, stopword = torch.tensor(found, dtype=torch.bool).reshape(-1, 2).unbind(1)
        return cls(special, punctuation & ~special, stopword & ~special)


def _is_punctuation(piece: str) -> bool:
    return not any(letter.isalnum() for letter in piece)


def _is_stopword(piece: str, marked: bool) -> bool:
    begins = piece.startswith(WORD_MARK) or not marked
    return begins and piece.removeprefix(WORD_MARK).lower() in STOPWORDS
