import pytest
from datasets import Dataset

from gr_mvdr.identifiers.titles import Titles
from gr_mvdr.tokenizers import EOS_ID


def documents(titles, texts=None):
    ids = [f"d{number}" for number in range(len(titles))]
    texts = texts or [[50 + number] * 12 for number in range(len(titles))]
    return Dataset.from_dict({"id": ids, "title_tokens": titles, "tokens": texts})


def test_the_identifier_is_the_title_and_the_end_token():
    scheme = Titles()
    table = documents([[7, 8], [9], [7, 8]])
    scheme.fit(table, 100)
    assert scheme.assign(table) == [[7, 8, EOS_ID], [9, EOS_ID], [7, 8, EOS_ID]]
    assert (scheme.n_tokens, scheme.width) == (0, None)


def test_a_missing_title_is_refused_with_count_and_first_id():
    message = r"model.identifiers.missing=refuse: 2 documents have no title, the first is 'd1'"
    with pytest.raises(ValueError, match=message):
        Titles().fit(documents([[7], [], [8], []]), 100)


def test_or_the_first_tokens_of_the_text_are_its_name():
    table = documents([[7], [], []], [[1] * 9, [21, 22, 23, 24], [31]])
    found = Titles(missing="first_tokens", first_tokens=3).assign(table)
    assert found == [[7, EOS_ID], [21, 22, 23, EOS_ID], [31, EOS_ID]]


def test_the_end_token_names_what_has_neither_title_nor_text():
    found = Titles(missing="first_tokens").assign(documents([[7], [], []], [[1], [], []]))
    assert found == [[7, EOS_ID], [EOS_ID], [EOS_ID]]


def test_a_long_title_is_refused_with_the_longest():
    titles = [[5] * 3, [5] * 4, [5] * 6, [5] * 5]
    message = r"max_length=4: 3 titles .* the longest \('d2'\) 7, .*long=cut"
    with pytest.raises(ValueError, match=message):
        Titles(max_length=4).fit(documents(titles), 100)


def test_or_a_long_title_is_cut_and_still_ends():
    found = Titles(max_length=4, long="cut").assign(documents([[5, 6, 7, 8, 9], [5, 6]]))
    assert found == [[5, 6, 7, EOS_ID], [5, 6, EOS_ID]]


def test_saved_options_must_be_the_same(tmp_path):
    table = documents([[7, 8], [9]])
    scheme = Titles()
    scheme.fit(table, 100)
    scheme.save(tmp_path / "scheme")
    loaded = Titles()
    loaded.load(tmp_path / "scheme")
    assert loaded.assign(table) == scheme.assign(table)
    with pytest.raises(ValueError, match="max_length=9: .* made with max_length=32"):
        Titles(max_length=9).load(tmp_path / "scheme")
