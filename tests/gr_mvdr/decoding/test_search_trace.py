"""The path of a search and what may follow a prefix, on models whose probabilities are a table."""

import math

import pytest
import torch

from gr_mvdr.decoding.beam_search import beam_search
from gr_mvdr.decoding.search_trace import Hypothesis, SearchTrace, continue_prefix
from gr_mvdr.decoding.trie import Trie

END, VOCABULARY = 1, 8
# The greedy path through token 2 ends at 0.6 · 0.5 = 0.30, the best document has 0.4 · 0.9 = 0.36.
GARDEN = {(): {2: 0.6, 3: 0.4}, (2,): {4: 0.5, 5: 0.4}, (3,): {4: 0.9, 5: 0.1}}
DOCIDS = [[2, 4], [2, 5], [3, 4], [3, 5]]


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


def path_to(document, docids, probabilities, beam_size):
    """The path of a search for a document, and what the search found."""
    docid, trie = tuple(docids[document]), Trie.build(docids)
    trace = SearchTrace({docid[:length] for length in range(1, len(docid) + 1)}, END)
    step = trace.timed(step_of(probabilities))
    result = beam_search(step, trie, 1, beam_size, trie.depth, END, observer=trace.observe)
    named = lambda tokens: [n for n, d in enumerate(docids) if (*d,) == tokens]  # noqa: E731
    return trace.path(result, named, range(99)), result


def hypothesis(tokens, probability, *documents):
    return Hypothesis(tokens, pytest.approx(math.log(probability)), documents, len(documents))


def test_a_lost_gold_worked_out_by_hand():
    path, _ = path_to(2, DOCIDS, GARDEN.__getitem__, beam_size=1)
    assert path.lost == 1 and path.lost_step is path.steps[0]
    first, second = path.steps
    assert (first.alive, first.rank) == (False, 2) and first.best == hypothesis((3,), 0.4)
    assert first.kept == (hypothesis((2,), 0.6),) and first.limit == first.kept[0]
    assert (second.alive, second.rank, second.best) == (False, None, None)
    assert second.kept == (hypothesis((2, 4), 0.3),) and second.limit == second.kept[0]
    assert path.generated == (hypothesis((2, 4), 0.3, 0),)


@pytest.mark.parametrize("beam_size", [1, 2, 5, 40])
def test_a_path_is_the_searchs_own(beam_size):
    """On random docids: what is kept goes on, and what replaced the gold is more probable."""
    generator = torch.Generator().manual_seed(beam_size)
    docids = torch.randint(1, VOCABULARY, (60, 4), generator=generator).tolist()
    docids = [d[: d.index(END) + 1] if END in d else [*d, END] for d in docids]
    docids = [d for d in docids if len(d) > 1]

    def random(prefix):
        number = sum(token * VOCABULARY**place for place, token in enumerate(prefix, start=1))
        draw = torch.Generator().manual_seed(number)
        values = (2 * torch.randn(VOCABULARY, generator=draw, dtype=torch.float64)).softmax(0)
        return dict(enumerate(values.tolist()))

    lost = 0
    for document, docid in enumerate(docids):
        path, result = path_to(document, docids, random, beam_size)
        for number, step in enumerate(path.steps):
            assert all(len(one.tokens) == number + 1 for one in step.kept)
            for one in step.kept:
                prefix = one.tokens[:-1]
                assert not number or prefix in {kept.tokens for kept in path.steps[number - 1].kept}
            values = [one.log_prob for one in step.kept]
            assert values == sorted(values, reverse=True)
            going_on = [one for one in step.kept if one.tokens[-1] != END]
            assert len(going_on) <= beam_size and step.limit == (going_on or [None])[-1]
            if step.best:
                kept = step.best.tokens in {one.tokens for one in step.kept}
                assert kept or step.limit.log_prob >= step.best.log_prob
                assert kept == any(one.tokens == step.best.tokens for one in step.kept)
        assert [(list(g.tokens), g.log_prob) for g in path.generated] == result.final.of(0)
        continuations = tuple(docid) in {one.tokens for one in path.generated}
        assert (path.lost is None) == continuations and (continuations or beam_size < 40)
        assert continuations or not path.steps[path.lost - 1].alive
        lost += not continuations
    assert bool(lost) == (beam_size < 40)


# What may follow a prefix -------------------------------------------------------------------------


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
