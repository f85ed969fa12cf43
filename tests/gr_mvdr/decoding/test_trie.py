"""The trie against a set of prefixes in plain Python, and its search."""

import numpy as np
import pytest
import torch

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.trie import Trie
from tests.gr_mvdr.decoding.test_beam_search import END, PathModel, plain_search


def random_sequences(seed, vocabulary=6, n_documents=60, longest=5):
    """Short identifiers over few tokens: many are equal, or the beginning of another, or empty."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, n_documents)
    return [rng.integers(2, vocabulary, length).tolist() for length in lengths]


def prefixes_of(sequences):
    return {tuple(s[:end]) for s in sequences for end in range(len(s) + 1)}


def padded(sequences, length=None):
    length = max(map(len, sequences)) if length is None else length
    rows = [[*sequence, *[-1] * (length - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).view(len(sequences), length)


def search(trie, vocabulary, n_queries=1, beam_size=4, length=None, **options):
    model = PathModel(vocabulary, range(n_queries), options.pop("grain", None))
    length = trie.depth if length is None else length
    return beam_search(model, trie, n_queries, beam_size, length, END, **options)


# The arrays -----------------------------------------------------------------------------------


def test_expanding_all_prefixes_at_once_visits_exactly_the_paths():
    sequences = random_sequences(0)
    trie, table = Trie.build(sequences), prefixes_of(sequences)
    absent = torch.tensor([[9, -1, -1], [2**40, 4, 4], [-1, 3, 4]])
    assert trie.find(absent).tolist() == [-1, -1, trie.find(torch.tensor([[3, 4]]))[0]]
    prefixes, state = [()], trie.root(1, "cpu")
    for length in range(1, trie.depth + 2):
        result = trie.expand(state)
        rows = zip(result.row.tolist(), result.token.tolist(), strict=True)
        extended = [(*prefixes[row], token) for row, token in rows]
        assert extended == sorted(extended)
        assert set(extended) == {prefix for prefix in table if len(prefix) == length}
        assert result.state.tolist() == trie.find(padded(extended, length)).tolist()
        for path, node in zip(extended, result.state.tolist(), strict=True):
            named = [n for n, sequence in enumerate(sequences) if tuple(sequence) == path]
            assert trie.documents_at(node).tolist() == named
        chosen = torch.arange(len(extended)) % 3 != 1  # any selection of hypotheses will do
        prefixes = [prefix for prefix, kept in zip(extended, chosen, strict=True) if kept]
        state = result.state[chosen]
        table = {p for p in table if len(p) <= length or p[:length] in prefixes}


# The search -----------------------------------------------------------------------------------


def test_the_best_below_a_node_is_of_the_documents_that_begin_with_its_path():
    sequences = random_sequences(2)
    trie, prefixes = Trie.build(sequences), sorted(prefixes_of(sequences))
    scores = torch.randn(len(sequences), 3, dtype=torch.float64)
    scores[[n for n, s in enumerate(sequences) if s[:1] == [4]]] = -torch.inf
    best = trie.best_below(scores[torch.from_numpy(trie.documents)])
    assert best.shape == (len(trie), 3)
    for path, node in zip(prefixes, trie.find(padded(prefixes)).tolist(), strict=True):
        below = [n for n, s in enumerate(sequences) if s and tuple(s[: len(path)]) == path]
        assert torch.equal(best[node], scores[below].max(0).values)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    ("end", "beam_size", "extra_length", "grain"),  # a coarse grain makes many scores equal
    [([], 1, 0, None), ([END], 3, 2, None), ([], 3, 2, 2.0), ([END], 40, 1, 2.0)],
)
def test_search_equals_the_plain_search(end, beam_size, extra_length, grain, planned):
    sequences = [s + end for s in random_sequences(3) if s]
    trie = Trie.build(sequences)
    length = trie.depth + extra_length
    bonus = (2 * torch.randn(len(trie), 3, generator=torch.Generator().manual_seed(0))).round()
    bonus[:, 1] = -torch.inf  # no sequence may be chosen for query 1
    plan = (lambda first: bonus) if planned else None
    result = search(trie, 7, 3, beam_size, length, grain=grain, plan=plan)
    prefixes = prefixes_of(sequences)

    def successors_of(path):
        return [token for token in range(7) if (*path, token) in prefixes]

    for query in range(3):
        model = PathModel(7, [], grain)

        def bonus_of(path, query=query):
            return bonus[trie.find(torch.tensor([path])), query][0] if planned else 0.0

        asked = model, successors_of, query, beam_size, length, bonus_of
        expected, candidates = plain_search(*asked)
        assert sorted(result.final.of(query)) == sorted(expected)
        assert result.candidates.of(query) == candidates
