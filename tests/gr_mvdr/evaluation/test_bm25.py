import math

import pytest

from gr_mvdr.evaluation.bm25 import BM25Index, split_words

pytest.importorskip("bm25s")

TEXTS = {
    "a": "the cat sat on the mat",
    "b": "the dog",
    "c": "a cat and a dog and a cat",
    "d": "nothing",
}


def index(k1=1.5, b=0.75):
    return BM25Index(list(TEXTS), [split_words(text) for text in TEXTS.values()], k1, b)


def by_hand(query, document, k1=1.5, b=0.75):
    texts = [split_words(text) for text in TEXTS.values()]
    mean = sum(map(len, texts)) / len(texts)
    terms, total = split_words(TEXTS[document]), 0.0
    for term in split_words(query):
        frequency = terms.count(term)
        holders = sum(term in text for text in texts)
        idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
        total += idf * frequency / (frequency + k1 * (1 - b + b * len(terms) / mean))
    return total


def test_words_are_lower_cased_runs_of_word_characters():
    assert split_words("The cat's  2nd_run: naïve, ÉTÉ!") == [
        "the",
        "cat",
        "s",
        "2nd_run",
        "naïve",
        "été",
    ]
    assert split_words(" …!") == []


@pytest.mark.parametrize("query", ["cat", "the dog", "cat cat dog", "cat unknown", "the the mat"])
@pytest.mark.parametrize("k1, b", [(1.5, 0.75), (0.9, 0.4)])
def test_scores_are_the_formula(query, k1, b):
    found = index(k1, b).scores(split_words(query))
    assert found.tolist() == pytest.approx([by_hand(query, d, k1, b) for d in TEXTS], abs=1e-5)


def test_terms_may_be_token_ids():
    numbered = BM25Index(["a", "b"], [[5, 7, 5], [9]])
    assert numbered.scores([5])[0] > 0 == numbered.scores([5])[1]
    assert numbered.scores([123]).tolist() == [0, 0]


def test_the_best_are_those_with_a_common_term_ties_by_id():
    twins = BM25Index(["x", "z", "y", "w"], [["cat"], ["cat"], ["cat"], ["dog"]])
    assert list(twins.best(["cat"], 2)) == ["z", "y"]
    assert list(twins.best(["cat"], 9)) == ["z", "y", "x"]
    assert twins.best(["bird"], 3) == {}


def test_no_candidates_may_be_asked_for():
    assert index().best(["cat"], 0) == {}


def test_what_is_opened_scores_as_what_was_saved(tmp_path):
    index().save(tmp_path / "bm25", collection="these")
    assert {path.suffix for path in (tmp_path / "bm25").iterdir()} <= {".npy", ".json"}
    opened = BM25Index.open(tmp_path / "bm25", collection="these")
    query = split_words("the cat and a bird")
    assert opened.scores(query).tolist() == index().scores(query).tolist()
    assert opened.best(query, 3) == index().best(query, 3)
    assert opened.document_frequencies.tolist() == index().document_frequencies.tolist()
    with pytest.raises(ValueError, match="bm25: was made from another collection"):
        BM25Index.open(tmp_path / "bm25", collection="others")


def test_an_index_whose_numbers_do_not_fit_is_refused(tmp_path):
    whole = index()
    whole.ids = whole.ids[:1]  # scores of documents beyond
    whole.save(tmp_path / "bm25")
    with pytest.raises(ValueError, match="bm25: is damaged"):
        BM25Index.open(tmp_path / "bm25")


def test_shares_of_a_query_sum_to_the_score():
    query = split_words("the cat the bird")  # "the" counts twice
    for name, parts in index().shares(query, index().ids).items():
        score = index().scores(query)[index().ids.index(name)]
        assert [term for term, _ in parts] == query
        assert sum(value for _, value in parts) == pytest.approx(score, abs=1e-5)


def test_among_given_documents_the_scores_are_the_same():
    twins = BM25Index(["x", "z", "y", "w"], [["cat"], ["cat"], ["cat"], ["dog"]])
    every = twins.best(["cat"], 9)
    assert twins.best(["cat"], 9, ["w", "x", "y"]) == {name: every[name] for name in ("y", "x")}


def test_without_a_word_nothing_is_found_and_that_is_said(tmp_path):
    with pytest.warns(UserWarning, match="BM25: none of the 2 documents has a word"):
        empty = BM25Index(["a", "b"], [split_words("?!"), split_words("")])
    assert empty.best(split_words("the cat"), 5) == {} and empty.best([], 5) == {}
    assert empty.scores(split_words("the cat")).tolist() == [0.0, 0.0]
    empty.save(tmp_path / "bm25")
    assert BM25Index.open(tmp_path / "bm25").best(split_words("the cat"), 5) == {}
    some = BM25Index(["a", "b"], [split_words("?!"), split_words("cat")])
    assert (
        list(some.best(split_words("the cat"), 5)) == ["b"] and some.best(split_words("?"), 5) == {}
    )
