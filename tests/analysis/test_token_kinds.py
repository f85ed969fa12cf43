import pytest
import torch

from analysis.tokens import TokenKinds

PIECES = [
    "<pad>",
    "</s>",
    "▁the",
    "the",
    "▁The",
    "▁them",
    "▁apple",
    "▁",
    ".",
    "▁(",
    "3",
    "ça",
    None,
]


class Tokenizer:
    """As much of a Hugging Face tokeniser as is read."""

    all_special_ids = (0, 1)

    def __init__(self, pieces):
        self.pieces = pieces

    def __len__(self):
        return len(self.pieces)

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[number] for number in ids]


def names(flags, pieces=PIECES):
    return [pieces[number] for number in flags.nonzero().flatten().tolist()]


def test_every_piece_has_its_kind():
    kinds = TokenKinds.of(Tokenizer(PIECES), len(PIECES))
    assert names(kinds.special) == ["<pad>", "</s>"]
    assert names(kinds.punctuation) == ["▁", ".", "▁(", None]
    # "the" within a word is no stopword; the list is in lower case
    assert names(kinds.stopword) == ["▁the", "▁The", "▁them"]
    assert names(kinds.content) == ["the", "▁apple", "3", "ça"]


def test_no_token_is_of_two_kinds_and_none_of_no_kind():
    kinds = TokenKinds.of(Tokenizer(PIECES), 20)
    parts = torch.stack([kinds.special, kinds.punctuation, kinds.stopword, kinds.content])
    assert (parts.sum(0) == 1).all()


def test_without_word_marks_every_piece_is_a_word():
    pieces = ["<pad>", "</s>", "the", "apple"]
    kinds = TokenKinds.of(Tokenizer(pieces), 4)
    assert names(kinds.stopword, pieces) == ["the"]
    assert names(kinds.content, pieces) == ["apple"]


def test_special_tokens_are_nothing_else():
    pieces = ["|||", "▁the", "▁a"]
    kinds = TokenKinds.of(Tokenizer(pieces), 3)  # ids 0 and 1 are special
    assert not kinds.punctuation.any() and kinds.special.tolist() == [True, True, False]
    assert kinds.stopword.tolist() == [False, False, True]


def test_docid_tokens_are_content():
    kinds = TokenKinds.of(Tokenizer(PIECES), len(PIECES) + 3)
    assert len(kinds.special) == len(PIECES) + 3
    assert kinds.content[-3:].all()


def test_fewer_ids_than_the_tokeniser_has_are_refused():
    with pytest.raises(ValueError, match="size=5: must be ≥ 13"):
        TokenKinds.of(Tokenizer(PIECES), 5)
