"""A plan chooses what a beam keeps and changes no score; where its documents' scores come from."""

import math

import pytest
import torch

from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import SearchCosts
from models.beyond.planned_search import SearchPlan


class Given(SearchPlan):
    """A plan of scores (documents, B) that are given; the last query's where there are fewer."""

    def __init__(self, scores, weight=1.0, candidates=None):
        self.weight, self.candidates, self.given = weight, candidates, torch.tensor(scores)
        self.costs = SearchCosts()

    def scores(self, queries, rows, device):
        columns = [min(number, self.given.shape[1] - 1) for number in range(len(queries))]
        return self.given[rows][:, columns]


def test_numbers_by_hand():
    """The path to the best document is kept although its first token is the least probable."""
    trie = Trie.build([[2, 5], [2, 6], [3, 5], [4, 6]])
    bonus = Given([[0.5], [2.0], [-1.0], [3.0]], weight=0.5).bonus([""], trie, "cpu")
    nodes = trie.find(torch.tensor([[-1, -1], [2, -1], [3, -1], [4, -1], [2, 5], [2, 6]]))
    assert bonus[nodes, 0].tolist() == [1.5, 1.0, -0.5, 1.5, 0.25, 1.0]
    best = Given([[0.5], [2.0], [-1.0], [3.0]], candidates=2).bonus([""], trie, "cpu")
    assert best[nodes, 0].tolist() == [3.0, 2.0, -math.inf, 3.0, -math.inf, 2.0]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["semantic", "titles-np"])
def test_a_plan_changes_what_is_found_and_no_score(tools, queries, kind):
    documents = tools.named_documents()
    system = tools.make_docid(kind, beam_size=1)
    system.index(documents)
    free, every = system.retrieve(queries), dict.fromkeys(queries["id"], documents["id"])
    exact = system.rerank(queries, documents, every)
    wanted = torch.zeros(8, 3)
    for number, query in enumerate(queries["id"]):  # what a beam of one does not find
        lost = [n for n, name in enumerate(documents["id"]) if name not in free.scores(query)]
        wanted[lost[-1], number] = 1e3
    system.plan = Given(wanted.tolist())
    found = system.retrieve(queries, with_shares=True)
    shares = found.shares
    for number, query in enumerate(queries["id"]):
        gold = documents["id"][int(wanted[:, number].argmax())]
        assert gold in found.scores(query) and gold not in free.scores(query)
        for name, score in found.scores(query).items():
            assert score == pytest.approx(exact.scores(query)[name], abs=1e-4)
            assert sum(s.value for s in shares[query][name]) == pytest.approx(score, abs=1e-5)
    row = int(wanted[:, 0].argmax())
    assert system.trace_search(queries["tokens"][0], row, "").lost is None
    among = system.retrieve(queries, 100, documents["id"][:3])
    assert all(set(among.scores(query)) <= set(documents["id"][:3]) for query in queries["id"])
    # Without weight the search is today's, to the bit; a beam of all loses nothing to a plan.
    assert system.retrieve(queries, plan_weight=0) == free
    wide = system.retrieve(queries, beam_size=20)
    system.plan = None
    for query in queries["id"]:
        every = system.retrieve(queries, beam_size=20).scores(query)
        assert wide.scores(query) == pytest.approx(every, abs=1e-5)
