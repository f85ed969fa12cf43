"""The intersective scorer: SEAL's own numbers and cases worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from gr_mvdr.decoding.evidence import score_documents, share_scores
from gr_mvdr.decoding.ngram_index import NgramIndex

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"


@pytest.mark.parametrize("number", [1, 2])
def test_equals_the_original_scorer(number):
    golden = json.loads((GOLDEN / f"seal_scoring_{number}.json").read_text())
    index, keys = NgramIndex.build(golden["docs"]), golden["keys"]
    for key, count in golden["counts"].items():
        assert index.count([int(token) for token in key.split()]) == count
    for key, tokens in golden["continuations"].items():
        assert index.successors([int(token) for token in key.split()]).tolist() == tokens
    for name, unigrams in [("without", None), ("with", golden["unigram_log_probs"])]:
        expected = {int(d): s for d, s in golden[f"scores_{name}_unigrams"].items()}
        scores = score_documents(index, keys, unigrams, **golden["params"])
        assert scores == pytest.approx(expected, abs=1e-6)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        shares = share_scores(index, keys, unigrams, [*scores], **golden["params"])
        summed = {number: sum(part for _, part in own) for number, own in shares.items()}
        assert summed == pytest.approx(scores, abs=1e-9)


def test_unigrams_among_the_keys_are_keys_like_others():
    """With alpha = 1 they score as if they had been given as keys."""
    golden = json.loads((GOLDEN / "seal_scoring_1.json").read_text())
    index, unigrams = NgramIndex.build(golden["docs"]), golden["unigram_log_probs"]
    options, keys = golden["params"] | {"alpha": 1.0}, golden["keys"]
    best = np.argsort(unigrams)[::-1][: options["use_top_k_unigrams"]].tolist()
    new = [token for token in best if token > 2 and [token] not in [ngram for ngram, _ in keys]]
    given = [*keys, *(([token], unigrams[token]) for token in new)]
    expected = score_documents(index, given, unigrams, **options)
    options["add_best_unigrams_to_ngrams"] = True
    assert score_documents(index, keys, unigrams, **options) == pytest.approx(expected, abs=1e-9)


# By hand ------------------------------------------------------------------------------------------


def test_special_ids_are_cut_off_and_equal_keys_merged():
    index = NgramIndex.build([[3, 4, 1], [5, 6, 1]])
    plain = score_documents(index, [([3, 4], -0.1)])
    assert plain[0] > 0
    merged = score_documents(index, [([3, 4], -0.1), ([0, 3, 4, 1], -0.2), ([1], -0.01)])
    assert merged == plain
    assert score_documents(index, [([1], -0.1), ([], -0.1)], np.full(7, -0.1)) == {}


def test_among_some_documents_the_best_of_them_are_scored_as_ever():
    texts = [[3, 4, 5, 1], [3, 4, 6, 1], [3, 4, 7, 1], [8, 9, 8, 9, 1]]
    index, keys = NgramIndex.build(texts), [([3, 4], -0.1), ([3, 4, 5], -0.2), ([8, 9], -0.3)]
    everything = score_documents(index, keys)
    assert next(iter(everything)) == 0 and len(everything) == 4
    assert score_documents(index, keys, among=range(4)) == everything
    some = score_documents(index, keys, among=[2, 1], n_docs_complete_score=2)
    assert some == {1: everything[1], 2: everything[2]}, "0 takes nobody's place"
    assert score_documents(index, [], among=[1]) == {}
