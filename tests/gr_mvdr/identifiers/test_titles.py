import pytest
from datasets import Dataset

from gr_mvdr.identifiers.docids import Titles
from gr_mvdr.tokenizers import EOS_ID


def named(titles, texts=None, **options):
    """The identifiers of documents d0, d1, …"""
    ids = [f"d{number}" for number in range(len(titles))]
    texts = texts or [[50 + number] * 12 for number in range(len(titles))]
    table = Dataset.from_dict({"id": ids, "title_tokens": titles, "tokens": texts})
    scheme = Titles(**options)
    scheme.fit(table, 100)
    assert (scheme.n_tokens, scheme.width) == (0, None)
    return scheme.assign(table).sequences


def test_the_identifier_is_the_title_and_the_end_token():
    assert named([[7, 8], [9], [7, 8]]) == [[7, 8, EOS_ID], [9, EOS_ID], [7, 8, EOS_ID]]


def test_a_missing_title_is_refused_or_replaced_by_the_first_tokens_of_the_text():
    message = r"model.identifiers.missing=refuse: 2 documents have no title, the first is 'd1'"
    with pytest.raises(ValueError, match=message):
        named([[7], [], [8], []])
    texts = [[1] * 9, [21, 22, 23, 24], [31], []]
    result = named([[7], [], [], []], texts, missing="first_tokens", first_tokens=3)
    assert result == [[7, EOS_ID], [21, 22, 23, EOS_ID], [31, EOS_ID], [EOS_ID]]


def test_a_long_title_is_refused_with_the_longest_or_cut():
    message = r"max_length=4: 3 titles .* the longest \('d2'\) 7, .*long=cut"
    with pytest.raises(ValueError, match=message):
        named([[5] * 3, [5] * 4, [5] * 6, [5] * 5], max_length=4)
    result = named([[5, 6, 7, 8, 9], [5, 6]], max_length=4, long="cut")
    assert result == [[5, 6, 7, EOS_ID], [5, 6, EOS_ID]]
