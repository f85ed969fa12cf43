"""Saliences by hand, their gates and gradients, and what pruning keeps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gr_mvdr.alignment import MaxSim, TopP
from gr_mvdr.evaluation.bm25 import count_terms
from gr_mvdr.relevance import Scoring
from gr_mvdr.salience import (
    FrequencySalience,
    IdfSalience,
    LearnedSalience,
    count_tokens,
    inverse_document_frequency,
    relaxed_top_k,
    top_share,
)
from gr_mvdr.token_vectors import TokenVectors

MASK = torch.arange(6) < torch.tensor([6, 4, 1, 0])[:, None]
IDS = torch.arange(24).view(4, 6) + 3


def learned(gate="lp", **options):
    """w = (1, −2, 0), b = ¼."""
    salience = LearnedSalience(3, gate, **options).double()
    salience.weight.data = torch.tensor([1.0, -2.0, 0.0]).double()
    salience.bias.data.fill_(0.25)
    return salience


def random_vectors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, 3, dtype=torch.double, generator=generator)


def token_scores(vectors):
    return (vectors[..., 0] - 2 * vectors[..., 1] + 0.25).clamp(min=0)


def test_the_lp_gate_is_the_relaxed_top_k_of_its_share():
    options = {"sparsity": 0.4, "epsilon": 0.5}
    vectors = random_vectors()
    saliences, scores = learned("lp", **options)(vectors, IDS, MASK), token_scores(vectors)
    for row, m, result in zip(scores, (6, 4, 1), saliences, strict=False):
        gates = relaxed_top_k(row[:m], math.ceil(0.4 * m), 0.5)
        assert torch.allclose(result[:m], gates * row[:m], atol=1e-6)


# IDF -------------------------------------------------------------------------------------------


SPECIAL = (0, 1, 2)
DOCUMENTS = [[3, 3, 4, 1], [3, 5, 1], [3, 1], []]


def idf(frequency):
    return math.log(1 + (4 - frequency + 0.5) / (frequency + 0.5))


def fitted():
    salience = IdfSalience(3)
    salience.fit(DOCUMENTS, 7, SPECIAL)
    return salience


def test_counts_occurrences_and_documents(monkeypatch):
    corpus = [[1, 1, 2], [2, 3], [], [2, 2, 2]]
    expected = [[0, 2, 5, 1, 0], [0, 1, 3, 1, 0]]
    assert count_tokens(corpus, 5).tolist() == expected
    monkeypatch.setattr("gr_mvdr.salience._CHUNK", 1)  # the size of a slice changes nothing
    assert count_tokens(corpus, 5).tolist() == expected


def test_idf_equals_the_reference():
    # document frequencies and values of golden/alignment_measures.json
    idf = inverse_document_frequency(np.array([21, 19, 15, 28]), n_documents=40)
    assert idf.tolist() == pytest.approx([0.645519132, 0.743157601, 0.972732043, 0.363667979])


def test_idf_by_hand():
    """Token 3 occurs four times in three documents, 4 and 5 once, 6 never; 1 ends a text."""
    ids = torch.tensor([[3, 4, 5, 6, 1, 0, 2, 3], [4, 4, 4, 4, 4, 4, 4, 9]])
    mask = torch.tensor([[True] * 7 + [False], [True] * 8])
    saliences = fitted()(torch.zeros(2, 8, 3), ids, mask)
    mean = (4 * idf(3) + idf(1) + idf(1)) / 6
    expected = [idf(3), idf(1), idf(1), idf(0), 0, 0, 0, 0]
    assert saliences.dtype == torch.float32
    assert saliences[0].tolist() == pytest.approx([value / mean for value in expected])
    # 9 is a pooling's learned token, beyond the vocabulary.
    assert saliences[1].tolist() == pytest.approx([idf(1) / mean] * 7 + [1])


# Pruning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.2, 0.4, 0.5, 1.0])
def test_the_best_share_of_each_text_is_kept(share):
    salience = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    kept = top_share(salience, MASK, share)
    for row, m, result in zip(salience, (6, 4, 1, 0), kept, strict=True):
        best = row[:m].argsort(descending=True)[: math.ceil(share * m)]
        assert sorted(result.nonzero().flatten().tolist()) == sorted(best.tolist())


def test_a_share_is_the_decimal_that_was_typed():
    """0.55 · 100 is 55 although the float product is slightly more, and 0.7 · 90 is not 62.99…"""
    mask = torch.ones(1, 100, dtype=torch.bool)
    assert top_share(torch.rand(1, 100), mask, 0.55).sum() == 55
    assert TopP(0.7).count(90) == 63
    chosen = TopP(0.7)(torch.rand(1, 90, 1), mask[:, :90], mask[:, :1])
    assert (chosen > 0).sum() == 63


# Term frequency --------------------------------------------------------------------------------


def test_max_sim_over_one_hot_vectors_is_bm25():
    generator = torch.Generator().manual_seed(2)
    documents = [torch.randint(4, 20, (n,), generator=generator).tolist() for n in (9, 3, 14, 6)]
    query = [5, 7, 7, 12, 19]
    idf, frequency = IdfSalience(20), FrequencySalience(20, k1=1.2, b=0.6)
    for part in (idf, frequency):
        part.fit(documents, 20, SPECIAL)

    def one_hot(text, part):
        ids = torch.tensor(text)
        vectors, mask = torch.eye(20)[ids], torch.ones(len(text), dtype=torch.bool)
        return TokenVectors(vectors, mask, ids, part(vectors[None], ids[None], mask[None])[0])

    texts = [one_hot(text, frequency) for text in documents]
    saliences = torch.stack([Scoring(MaxSim())(text, one_hot(query, idf)) for text in texts])
    index = count_terms(list("abcd"), documents).bm25(k1=1.2, b=0.6)
    expected = torch.as_tensor(index.scores(query), dtype=torch.float32)
    ratio = saliences / expected
    assert (expected > 0).all() and torch.allclose(ratio, ratio[0].expand(4), rtol=1e-4)


def test_a_learned_salience_begins_as_its_prior():
    prior = {"_target_": "gr_mvdr.salience.FrequencySalience", "k1": 1.0}
    salience, plain = LearnedSalience(3, "relu", prior=prior), FrequencySalience(3, k1=1.0)
    vectors, documents = random_vectors().float(), [[3, 4, 4], [7]]
    for part in (salience, plain):
        part.fit(documents, 30, SPECIAL)
    ids = IDS % 4 + 3  # tokens repeat
    assert torch.allclose(salience(vectors, ids, MASK), plain(vectors, ids, MASK))
    salience.weight.data = torch.tensor([1.0, -2.0, 0.0])
    salience.bias.data.fill_(0.25)
    expected = token_scores(vectors) * plain(vectors, ids, MASK)
    assert torch.allclose(salience(vectors, ids, MASK), expected, atol=1e-6)
    names = {name for name, _ in salience.named_parameters()}
    assert names == {"weight", "bias"}, "the prior is not learned"


def test_the_mean_of_a_text_weighs_its_vectors_by_salience():
    vectors = torch.tensor([[[1.0, 0], [0, 1], [9, 9]], [[7, 7], [7, 7], [7, 7]]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    text = TokenVectors(vectors, mask, torch.zeros(2, 3, dtype=torch.int64))
    assert text.mean().tolist() == [[0.5, 0.5], [0, 0]]
    salient = replace(text, salience=torch.tensor([[3.0, 1, 5], [2, 2, 2]]))
    assert salient.mean().tolist() == [[0.75, 0.25], [0, 0]]
