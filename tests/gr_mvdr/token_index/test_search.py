"""Searches whose values are chosen on a sample of queries, on clustered vectors."""

import json
import sys

import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import index as token_index
from gr_mvdr.token_index.index import PLANS, TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens, TokenVectors

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
    TokenIndex.build(folder, [str(n) for n in range(DOCUMENTS)], lambda ids: [packed])
    asked = words[torch.randperm(DOCUMENTS, generator=generator)[:224], :6]
    mask = torch.ones(6, dtype=torch.bool)
    queries = [TokenVectors(vectors(row, 0.15), mask, row) for row in asked]
    return folder, queries[:24], queries[24:]


@pytest.fixture
def index(clustered, monkeypatch):
    """As if the collection were large: reading one by one costs no more than reading in order."""
    monkeypatch.setattr(token_index, "_TOKEN", 1)
    monkeypatch.setattr(token_index, "_DOCUMENT", 1)
    (clustered[0] / PLANS).unlink(missing_ok=True)
    opened = TokenIndex(clustered[0])
    opened.keep_sample(clustered[1])
    return opened


def best(index, queries, options, depth=DEPTH):
    results = index.search(queries, COLBERT, options)
    return [set(r.documents[r.scores.topk(depth).indices].tolist()) for r in results]


def recall(index, queries, options, depth=DEPTH):
    exact = best(index, queries, SearchOptions(), depth)
    retrieved = best(index, queries, options, depth)
    return sum(len(a & b) / depth for a, b in zip(exact, retrieved, strict=True)) / len(exact)


def test_the_recall_is_reached(index, clustered):
    options = index.planned(SearchOptions("gather", recall=0.9), COLBERT, DEPTH)
    assert options.mode == "gather" and not options.open_keys
    assert recall(index, clustered[1], options, DEPTH) >= 0.9
    half = {key: getattr(options, key) // 2 for key in ("neighbours", "probes", "refine")}
    fewer = options.changed(**half | {"refine": max(DEPTH, half["refine"])})
    assert fewer == options or recall(index, clustered[1], fewer, DEPTH) < 0.95


@pytest.mark.parametrize("neighbours", [250, 500, 1000])
def test_the_recall_holds_on_other_queries(index, clustered, neighbours):
    """What is asked is just what the sample finds with these neighbours."""
    options = SearchOptions("impute", neighbours=neighbours, probes=None)
    wanted = recall(index, clustered[1], options)
    options = index.planned(SearchOptions("impute", probes=None, recall=wanted), COLBERT, DEPTH)
    assert recall(index, clustered[2], options) >= wanted


def test_the_exact_search_takes_over_where_it_is_cheaper(index, monkeypatch, capsys):
    monkeypatch.setattr(token_index, "_DOCUMENT", 4)  # 200 documents cost more than all 600
    assert index.planned(SearchOptions("gather", recall=1.0), COLBERT, DEPTH).mode == "exact"
    assert "mode=exact" in capsys.readouterr().out
    monkeypatch.undo()  # a small collection
    assert index.planned(SearchOptions("gather", recall=0.9), COLBERT, DEPTH).mode == "exact"


def test_a_file_of_plans_cannot_name_a_part(index, clustered):
    """A folder from elsewhere knows the key of a plan, and a search builds its proposer."""
    asked = SearchOptions("gather", recall=0.8)
    index.planned(asked, COLBERT, DEPTH)
    plans = json.loads((clustered[0] / PLANS).read_text())
    evil = {"mode": "fde", "refine": 0, "proposer": {"_target_": "antigravity.Proposer"}}
    (clustered[0] / PLANS).write_text(json.dumps(dict.fromkeys(plans, evil)))
    with pytest.raises(ValueError, match="plans.json: .*antigravity.Proposer: is not a part"):
        index.planned(asked, COLBERT, DEPTH)
    assert "antigravity" not in sys.modules


def test_the_users_values_win(index, clustered):
    own = SearchOptions("gather", neighbours=30, probes=4, refine=120)
    assert index.planned(own, COLBERT, DEPTH) is own
    chosen = index.planned(own.changed(refine="auto", recall=0.8), COLBERT, DEPTH)
    assert (chosen.mode, chosen.neighbours, chosen.probes) == ("gather", 30, 4)
    assert isinstance(chosen.refine, int)
    every = index.planned(SearchOptions("gather", probes=None, recall=0.9), COLBERT, DEPTH)
    assert every.probes is None and recall(index, clustered[1], every) >= 0.9
