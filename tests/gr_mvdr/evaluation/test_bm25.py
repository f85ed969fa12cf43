import math
import random

import pytest

from gr_mvdr.analyzer import split_words
from gr_mvdr.evaluation.bm25 import InvertedLists, count_terms

pytest.importorskip("scipy")

TEXTS = {
    "a": "the cat sat on the mat",
    "b": "the dog",
    "c": "a cat and a dog and a cat",
    "d": "nothing",
}


def index(k1=1.5, b=0.75):
    return count_terms(list(TEXTS), map(split_words, TEXTS.values())).bm25(k1, b)


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


@pytest.mark.parametrize("query", ["the dog", "cat cat dog", "cat unknown"])
@pytest.mark.parametrize("k1, b", [(1.5, 0.75), (0.9, 0.4)])
def test_scores_are_the_formula_and_the_sum_of_the_terms_shares(query, k1, b):
    lists, terms = index(k1, b), split_words(query)
    result = lists.scores(terms).tolist()
    assert result == pytest.approx([by_hand(query, d, k1, b) for d in TEXTS], abs=1e-5)
    for score, parts in zip(result, lists.shares(terms, TEXTS).values(), strict=True):
        assert [term for term, _ in parts] == terms
        assert sum(value for _, value in parts) == pytest.approx(score, abs=1e-5)


def test_the_scores_are_those_of_bm25s():
    bm25s, draw = pytest.importorskip("bm25s"), random.Random(0)
    words = [f"w{int(draw.paretovariate(0.6))}" for _ in range(3000)]
    texts = [words[n : n + draw.randrange(1, 40)] for n in range(0, 3000, 30)]
    theirs = bm25s.BM25(k1=1.2, b=0.6, method="lucene")
    theirs.index(texts, show_progress=False)
    ours = count_terms([f"d{n}" for n in range(len(texts))], texts).bm25(1.2, 0.6)
    for start in range(0, 3000, 100):
        asked = [word for word in words[start : start + 5] if word in ours.vocabulary]
        assert ours.scores(asked).tolist() == pytest.approx(theirs.get_scores(asked), abs=1e-4)


def test_the_best_are_those_with_a_common_term_ties_by_id():
    cat, dog = 5, 9  # terms may be token ids
    twins = count_terms(["x", "z", "y", "w"], [[cat], [cat], [cat], [dog]]).bm25()
    every = twins.best([cat], 9)
    assert list(every) == ["z", "y", "x"] and list(twins.best([cat], 2)) == ["z", "y"]
    assert twins.best([7], 3) == twins.best([cat], 0) == {}
    assert twins.best([cat], 9, ["w", "x", "y"]) == {name: every[name] for name in ("y", "x")}


def test_what_is_opened_scores_as_what_was_saved(tmp_path):
    index().save(tmp_path / "bm25", collection="these")
    opened = InvertedLists.open(tmp_path / "bm25", collection="these")
    query = split_words("the cat and a bird")
    assert opened.best(query, 3) == index().best(query, 3)
    with pytest.raises(ValueError, match="bm25: was made with collection "):
        InvertedLists.open(tmp_path / "bm25", collection="others")
