"""What may follow a prefix, on a model whose probabilities are a table; a search's times."""

import pytest
import torch

from gr_mvdr.decoding.search_trace import continue_prefix
from gr_mvdr.decoding.trie import Trie

VOCABULARY = 8


def step_of(probabilities):
    """The step function of one query, from next-token probabilities by prefix."""
    prefixes = []

    def step(tokens, parents):
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        prefixes[:] = [(*prefixes[p], t) for p, t in pairs] if prefixes else [()]
        values = torch.full((len(prefixes), VOCABULARY), 1e-9, dtype=torch.float64)
        for row, prefix in enumerate(prefixes):
            for token, value in probabilities(prefix).items():
                values[row, token] = value
        return values.log()

    return step


def after(prefix, constraint, k, table):
    return continue_prefix(step_of(table.__getitem__), constraint, prefix, k, range(99))


def test_what_follows_a_prefix_of_a_trie():
    table = {(): {7: 0.5, 2: 0.3, 3: 0.15, 6: 0.05}, (2,): {3: 0.7, 5: 0.2, 4: 0.1}}
    trie = Trie.build([[2, 4], [2, 5, 6], [3, 4], [2, 4], []])
    best, other = after([], trie, 1, table)
    assert (best.token, best.allowed, best.n_documents, best.documents) == (7, False, 0, ())
    assert (other.token, other.allowed, other.documents) == (2, True, (0, 3, 1))
    assert (best.probability, other.probability) == pytest.approx((0.5, 0.3))
    two = [(one.token, one.allowed) for one in after([], trie, 2, table)]
    assert two == [(7, False), (2, True), (3, True)]
    assert [one.token for one in after([2], trie, 1, table)] == [3, 5]
    assert [one.documents for one in after([2], trie, 9, table) if one.allowed] == [(1,), (0, 3)]
    assert after([2, 4], trie, 9, table | {(2, 4): {}}) == []
    for prefix in ([4], [2, 6], [2, 4, 4]):
        with pytest.raises(ValueError, match=r"prefix=\[.*\]: must be one that a search can"):
            after(prefix, trie, 9, table | {(2, 4): {}, (2, 4, 4): {}})
