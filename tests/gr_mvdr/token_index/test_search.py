"""Searches whose values are chosen on a sample of queries, on clustered vectors."""

import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.evaluation.ranking import recall_of_exact
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index import search
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import Query, SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors
from tests.searches import build_index, make_search

COLBERT, DOCUMENTS, LENGTH, DEPTH = Scoring(MaxSim()), 600, 20, 100


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """A folder with an index of documents whose tokens crowd around 100 words; queries; others."""
    generator = torch.Generator().manual_seed(0)

    def vectors(words, noise):
        spread = noise * torch.randn(len(words), 16, generator=generator)
        return normalize(centres[words] + spread, dim=1)

    centres = normalize(torch.randn(100, 16, generator=generator), dim=1)
    words = torch.randint(100, (DOCUMENTS, LENGTH), generator=generator)
    counts = torch.full((DOCUMENTS,), LENGTH)
    packed = PackedTokens(vectors(words.flatten(), 0.1), counts, words.flatten())
    folder = tmp_path_factory.mktemp("chosen") / "index"
    build_index(folder, map(str, range(DOCUMENTS)), lambda ids: [packed])
    asked = words[torch.randperm(DOCUMENTS, generator=generator)[:224], :6]
    mask = torch.ones(6, dtype=torch.bool)
    queries = [
        Query(str(n), TokenVectors(vectors(row, 0.15), mask, row)) for n, row in enumerate(asked)
    ]
    return folder, queries[:24], queries[24:]


@pytest.fixture
def index(clustered, monkeypatch):
    """As if the collection were large: reading one by one costs no more than reading in order."""
    monkeypatch.setattr(search, "_TOKEN", 1)
    monkeypatch.setattr(search, "_DOCUMENT", 1)
    opened = TokenIndex()
    opened.open_store(clustered[0])
    return opened


def tune(index, queries, *how, **options):
    index.options = make_search(*how, **options)
    return index.tune(queries, COLBERT, DEPTH)


def recall(index, queries, options):
    exact, found = (index.search(queries, COLBERT, DEPTH, how) for how in (make_search(), options))
    return recall_of_exact(exact, found, DEPTH)


def test_the_effort_is_doubled_until_the_recall_is_reached(index, clustered):
    options = tune(index, clustered[1], "gather", probes=4, refine=DEPTH, recall=0.9)
    assert index.costs.queries == 0, "the trials do not count"
    assert options.recall is None and index.options == options
    assert recall(index, clustered[1], options) >= 0.9
    factor = options.proposer.neighbours // 100
    assert factor > 1 and factor & (factor - 1) == 0  # a power of two
    assert (options.proposer.probes, options.scorer.refine) == (4 * factor, DEPTH * factor)
    half = options.changed(neighbours=50 * factor, probes=2 * factor, refine=DEPTH * factor // 2)
    assert recall(index, clustered[1], half) < 0.95
    assert SearchOptions(**options.settings) == options


@pytest.mark.parametrize("neighbours", [250, 500, 1000])
def test_the_recall_holds_on_other_queries(index, clustered, neighbours):
    """What is asked is just what the sample finds with these neighbours."""
    wanted = recall(index, clustered[1], make_search("impute", neighbours=neighbours))
    options = tune(index, clustered[1], "impute", recall=wanted)
    assert recall(index, clustered[2], options) >= wanted


def test_the_exact_search_takes_over_where_it_is_cheaper(index, clustered, monkeypatch, capsys):
    monkeypatch.setattr(search, "_DOCUMENT", 4)  # 200 documents cost more than all 600
    assert tune(index, clustered[1], "gather", refine=DEPTH, recall=1.0).proposer is None
    assert "all documents finds 1.000" in capsys.readouterr().out
    monkeypatch.undo()  # a small collection
    how = {"neighbours": 250, "recall": 0.9}
    assert tune(index, clustered[1], "gather", **how).proposer is None
    assert tune(index, clustered[1], "impute", **how).proposer is not None
    assert "finds -" not in capsys.readouterr().out, "the user's own effort is tried"
