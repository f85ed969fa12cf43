"""Trie search equals transformers' `generate` with `prefix_allowed_tokens_fn`, to 1e-5.

Both take the log-softmax over the whole vocabulary before the constraint and add up what they
choose. They differ in which ended hypotheses they keep: `generate` only those among the best `beam`
candidates of a step, ours (SEAL's) among the best 2 × beam. The two set-ups here leave no room for
that: in one all docids are equally long, so that they end together and nothing competes with them;
in the other there are no more docids than beams, so that nothing is ever pruned.
"""

import numpy as np
import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from gr_mvdr.decoding.trie import Trie
from tests.benchmarks.bench_trie_search import (
    END,
    assert_same,
    children_of_prefixes,
    search_by_generate,
    search_by_trie,
)

VOCABULARY, FIRST_TOKEN = 60, 40


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **shape)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)  # sharper than T5's own: scores far from equal
    return model


def search_both(model, docids, beam_size, seed):
    """Five queries searched by both; each docid ends with the end token."""
    length = max(map(len, docids))
    queries = torch.randint(3, 40, (5, 7), generator=torch.Generator().manual_seed(seed))
    return (
        search_by_trie(model, queries, Trie.build(docids), beam_size, length),
        search_by_generate(
            model, queries, children_of_prefixes(docids), beam_size, length, with_scores=True
        ),
    )


@pytest.mark.parametrize(("depth", "beam_size"), [(1, 6), (2, 2), (4, 6)])
def test_docids_of_one_length(model, depth, beam_size):
    # At least as many first tokens as beams: `generate` would fill a beam with impossible ones.
    tokens = np.random.default_rng(depth).integers(FIRST_TOKEN, FIRST_TOKEN + 6, (300, depth))
    tokens[:6, 0] = FIRST_TOKEN + np.arange(6)
    ours, theirs = search_both(model, [[*row, END] for row in tokens.tolist()], beam_size, depth)
    assert_same(ours, theirs)
    assert [len(result) for result in ours] == [beam_size] * 5
    scores = [score for result in ours for _, score in result]
    assert len({round(score, 5) for score in scores}) == len(scores)  # no equal scores to hide in


@pytest.mark.parametrize("n_docids", [2, 7])
def test_docids_of_many_lengths_that_all_fit_into_the_beam(model, n_docids):
    rng = np.random.default_rng(n_docids)
    drawn = (
        tuple(rng.integers(FIRST_TOKEN, FIRST_TOKEN + 3, rng.integers(1, 6))) for _ in range(90)
    )
    distinct = list(dict.fromkeys(drawn))[:n_docids]
    docids = [[*map(int, docid), END] for docid in distinct]
    assert len({len(docid) for docid in docids}) > 1
    ours, theirs = search_both(model, docids, n_docids, n_docids)
    assert_same(ours, theirs)
    assert all(sorted(ids for ids, _ in result) == sorted(docids) for result in ours)
