import torch

from analysis.questions.tokens import TokenKinds, idf_bin

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

    def __init__(self, pieces):
        self.pieces = pieces

    def __len__(self):
        return len(self.pieces)

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[number] for number in ids]


def names(flags, pieces=PIECES):
    return [pieces[number] for number in flags.nonzero().flatten().tolist()]


def test_every_piece_has_its_kind():
    kinds = TokenKinds.of(Tokenizer(PIECES), len(PIECES) + 3, (0, 1))
    assert kinds.content[-3:].all()  # docid tokens
    kinds = TokenKinds.of(Tokenizer(PIECES), len(PIECES), (0, 1))
    assert names(kinds.special) == ["<pad>", "</s>"]
    assert names(kinds.punctuation) == ["▁", ".", "▁(", None]
    # "the" within a word is no stopword; the list is in lower case
    assert names(kinds.stopword) == ["▁the", "▁The", "▁them"]
    assert names(kinds.content) == ["the", "▁apple", "3", "ça"]


def test_the_marks_of_byte_level_tokenisers_are_no_letters():
    pieces = ["<pad>", "</s>", "Ġ", "Ġ,", "Ġthe", "the", "Ġapple"]
    kinds = TokenKinds.of(Tokenizer(pieces), 7, (0, 1))
    assert names(kinds.punctuation, pieces) == ["Ġ", "Ġ,"]
    assert names(kinds.stopword, pieces) == ["Ġthe"]


def test_bins_hold_their_lower_edge_and_the_last_has_no_end():
    idf = torch.tensor([0.0, 1.99, 2.0, 3.9, 4.0, 6.0, 7.99, 8.0, 14.0, 16.7])
    assert idf_bin(idf).tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 4]
