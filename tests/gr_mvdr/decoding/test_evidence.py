"""The intersective scorer: SEAL's own numbers, a plain reference, and cases worked out by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gr_mvdr.decoding.evidence import score_documents, share_scores
from gr_mvdr.decoding.ngram_index import NgramIndex

GOLDEN = Path(__file__).parents[3].parent / "shared" / "golden"


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden files are not here")
@pytest.mark.parametrize("number", [1, 2])
def test_equals_the_original_scorer(number):
    golden = json.loads((GOLDEN / f"seal_scoring_{number}.json").read_text())
    index = NgramIndex.build(golden["docs"])
    for key, count in golden["counts"].items():
        assert index.count([int(token) for token in key.split()]) == count
    for key, tokens in golden["continuations"].items():
        assert index.successors([int(token) for token in key.split()]).tolist() == tokens
    for name, unigrams in [("without", None), ("with", golden["unigram_log_probs"])]:
        expected = {int(d): s for d, s in golden[f"scores_{name}_unigrams"].items()}
        scores = score_documents(index, golden["keys"], unigrams, **golden["params"])
        assert scores == pytest.approx(expected, abs=1e-6)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)


# A plain reference, from the description of the scorer ------------------------------------------


def plain_odds(log_prob, count, n_tokens, smoothing):
    given, corpus = math.exp(log_prob), (count + smoothing) / (n_tokens + smoothing)
    if not count or not given:
        return 0.0
    return max(0.0, math.log(given / (1 - given)) - math.log(corpus / (1 - corpus)))


def places_of(ngram, document):
    n = len(ngram)
    return [i for i in range(len(document) - n + 1) if tuple(document[i : i + n]) == ngram]


def plain_document(document, weights, unigrams, beta):
    free, covered, score = [True] * len(document), set(), 0.0
    for ngram, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        result = False
        for place in places_of(ngram, document):
            span = range(place, place + len(ngram))
            if all(free[i] for i in span):
                result = True
                for i in span:
                    free[i] = False
        if result:
            types = set(ngram)
            score += weight * (1 - beta + beta * len(types - covered) / len(types))
            covered |= types
    for token in {t for t, is_free in zip(document, free, strict=True) if is_free}:
        score += unigrams.get(token, 0.0) * (1 - beta if token in covered else 1)
    return score


def plain_scores(documents, keys, log_probs, *, rare, best, alpha, beta, smoothing, top, add):
    n_tokens = sum(map(len, documents))

    def count(ngram):
        return sum(len(places_of(ngram, document)) for document in documents)

    weights = {k: plain_odds(p, count(k), n_tokens, smoothing) ** alpha for k, p in keys.items()}
    order = sorted(range(len(log_probs)), key=lambda t: (-log_probs[t], t))[:top]
    single = {key[0] for key in keys if len(key) == 1}
    unigrams = {
        t: plain_odds(log_probs[t], count((t,)), n_tokens, smoothing)
        for t in sorted(order)
        if t not in single and t > 2
    }
    if add:
        for token in sorted(unigrams, key=lambda t: (-unigrams[t], t))[: len(keys)]:
            weights[token,] = unigrams[token]
    weights = {key: weight for key, weight in weights.items() if weight > 0}
    rare_weights = {key: weight for key, weight in weights.items() if count(key) <= rare}
    first = {n: plain_document(d, rare_weights, {}, beta) for n, d in enumerate(documents)}
    chosen = sorted((n for n in first if first[n] > 0), key=lambda n: (-first[n], n))[:best]
    return {n: plain_document(documents[n], weights, unigrams, beta) for n in chosen}


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_plain_reference(seed):
    add = seed % 2 == 1
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.integers(6, 30))
    documents = [
        [*rng.zipf(1.4, rng.integers(0, 40)).clip(1, vocabulary - 3) + 2, 1] for _ in range(25)
    ]
    documents = [[int(token) for token in document] for document in documents]
    keys = {}
    for document in documents * 2:
        start, n = int(rng.integers(len(document))), int(rng.integers(1, 5))
        ngram = tuple(document[:-1][start : start + n])
        if ngram:
            keys[ngram] = float(-rng.exponential(3) - 0.01)
    log_probs = np.log(rng.dirichlet(np.ones(vocabulary + 5)))
    scores = score_documents(
        NgramIndex.build(documents),
        list(keys.items()),
        log_probs,
        max_occurrences_1=15,
        n_docs_complete_score=12,
        use_top_k_unigrams=8,
        add_best_unigrams_to_ngrams=add,
    )
    expected = plain_scores(
        documents, keys, log_probs.tolist(),
        rare=15, best=12, alpha=2.0, beta=0.8, smoothing=5.0, top=8, add=add,
    )  # fmt: skip
    assert scores == pytest.approx(expected, abs=1e-9)
    options = dict(use_top_k_unigrams=8, add_best_unigrams_to_ngrams=add)
    shares = share_scores(
        NgramIndex.build(documents), [*keys.items()], log_probs, [*scores], **options
    )
    assert list(shares) == list(scores)
    for number, parts in shares.items():
        assert sum(value for _, value in parts) == pytest.approx(scores[number], abs=1e-9)
        assert all(places_of(ngram, documents[number]) for ngram, _ in parts)


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
