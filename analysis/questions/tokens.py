"""Which tokens carry content, and how rare they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from data_modules.module import RetrievalDataModule
from data_modules.seal_examples import STOPWORDS

# Marks of a piece that begins a word: SentencePiece's, and a byte-level tokeniser's space.
WORD_MARKS = ("▁", "Ġ")


def find_special(data: RetrievalDataModule) -> list[int]:
    """Returns the ids of special tokens: the tokeniser's, and the template's, such as [unused0]."""
    return sorted({*data.tokenizer.all_special_ids, *data.template.special})


@dataclass(frozen=True)
class TokenKinds:
    """Classifies every token id.

    All analyses use the same rule:

    - *Special* tokens (`find_special`: padding, end, unknown, markers) never count as aligning
      tokens. Other tokens may align to them, since the system sees them there.
    - *Punctuation* is a piece without a letter or digit, including a bare word mark.
    - A *stopword* is a whole word of the English list `data_modules.seal_examples.STOPWORDS`, in
      any case: a piece that begins a word ("▁the"), or any piece of a tokeniser without word
      marks. A piece within a word is not a stopword ("the" of "▁ba the").
    - *Content* is every other token, including docid tokens, whose ids lie beyond the tokeniser's.

    Rates are given over all tokens that are not special, and over content tokens.

    Attributes:
        special, punctuation, stopword: (V,) bool; no id is in two of them.
    """

    special: Tensor
    punctuation: Tensor
    stopword: Tensor

    @property
    def content(self) -> Tensor:
        """(V,) bool, ids in none of the three other kinds."""
        return ~(self.special | self.punctuation | self.stopword)

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, size: int, special: Sequence[int]
    ) -> "TokenKinds":
        """Classifies the ids of a Hugging Face tokeniser.

        Args:
            size: V; ids from len(tokenizer) on are docid tokens.
            special: ids of special tokens, from `find_special`.
        """
        # A tokeniser may have gaps between its ids.
        pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
        marked = any(piece.startswith(WORD_MARKS) for piece in pieces)
        masks = torch.zeros(3, size, dtype=torch.bool)
        is_special, punctuation, stopword = masks
        is_special[list(special)] = True
        for number, piece in enumerate(pieces):
            begins = piece.startswith(WORD_MARKS)
            word = piece[1:] if begins else piece
            if not is_special[number]:
                punctuation[number] = not any(letter.isalnum() for letter in word)
                stopword[number] = (begins or not marked) and word.lower() in STOPWORDS
        return cls(is_special, punctuation, stopword)


BIN_EDGES = (0, 2, 4, 6, 8, 15)  # the paper's Figures 2 and 3
BIN_NAMES = tuple(f"{low}-{high}" for low, high in pairwise(BIN_EDGES))


def idf_bin(idf: Tensor) -> Tensor:
    """Returns the number of the bin 0-2-4-6-8-15 that each value falls into; int64, same shape.

    A bin includes its lower edge. The last bin has no upper edge, since the rarest tokens of a
    corpus with more than a million documents exceed 15.
    """
    inner = torch.tensor(BIN_EDGES[1:-1], dtype=idf.dtype, device=idf.device)
    return torch.bucketize(idf, inner, right=True)
