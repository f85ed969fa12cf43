"""Searches that are planned on a sample of queries, on clustered vectors."""

import pytest
import torch
from torch.nn.functional import normalize

from gr_mvdr.alignment import MaxSim
from gr_mvdr.files import read_sealed, write_sealed
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index import plan
from gr_mvdr.token_index.index import SearchOptions, TokenIndex
from gr_mvdr.token_vectors import PackedTokens, TokenVectors, stack

COLBERT, DOCUMENTS, LENGTH, DEPTH = Scoring(MaxSim()), 600, 20, 100


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """A folder with the index of documents whose tokens crowd around 100 words, and queries."""
    generator = torch.Generator().manual_seed(0)

    def vectors(words, noise):
        spread = noise * torch.randn(len(words), 16, generator=generator)
        return normalize(centres[words] + spread, dim=1)

    centres = normalize(torch.randn(100, 16, generator=generator), dim=1)
    words = torch.randint(100, (DOCUMENTS, LENGTH), generator=generator)
    counts = torch.full((DOCUMENTS,), LENGTH)
    packed = PackedTokens(vectors(words.flatten(), 0.1), counts, words.flatten())
    folder = tmp_path_factory.mktemp("plan") / "index"
    TokenIndex.build(folder, [str(n) for n in range(DOCUMENTS)], [packed])
    asked = words[torch.randperm(DOCUMENTS, generator=generator)[:24], :6]
    mask = torch.ones(6, dtype=torch.bool)
    return folder, [TokenVectors(vectors(row, 0.15), mask, row) for row in asked]


@pytest.fixture
def index(clustered, monkeypatch):
    """Where the exact search is dear, so that something is to be chosen; no plan is known yet."""
    monkeypatch.setattr(plan, "_SIMILARITY", 1.0)
    (clustered[0] / plan._PLANS).unlink(missing_ok=True)
    opened = TokenIndex(clustered[0])
    opened.keep_sample(clustered[1])
    return opened


def best(index, queries, options, depth=DEPTH):
    found = index.search(queries, COLBERT, options)
    return [set(f.documents[f.scores.topk(depth).indices].tolist()) for f in found]


def recall(index, queries, options, depth=DEPTH):
    exact = best(index, queries, SearchOptions(), depth)
    found = best(index, queries, options, depth)
    shares = [len(a & b) / depth for a, b in zip(exact, found, strict=True)]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("depth", [10, DEPTH])
def test_a_chosen_search_finds_what_was_wanted_and_less_is_less_work(
    index, clustered, depth, capsys
):
    found = {}
    for wanted in (0.7, 0.95):
        options = index.planned(SearchOptions("gather", recall=wanted), COLBERT, depth)
        assert options.mode == "gather" and not options.open_keys
        assert recall(index, clustered[1], options, depth) >= wanted
        assert f"recall={wanted}" in capsys.readouterr().out
        found[wanted] = options
    assert found[0.7].refine <= found[0.95].refine < DOCUMENTS


def test_a_choice_is_made_once_of_everything_that_it_depends_on(index, clustered, monkeypatch):
    asked = SearchOptions("gather", recall=0.8)
    made = []
    choose = plan._Planner.choose
    monkeypatch.setattr(plan._Planner, "choose", lambda *a: made.append(1) or choose(*a))
    first = index.planned(asked, COLBERT, DEPTH)
    again = TokenIndex(clustered[0])
    assert again.planned(asked, COLBERT, DEPTH) == first and len(made) == 1
    for options, scoring, depth in (
        (asked, COLBERT, 10),
        (asked, Scoring(MaxSim(), "query_tokens"), DEPTH),
        (asked.changed(recall=0.81), COLBERT, DEPTH),
    ):
        again.planned(options, scoring, depth)
    assert len(made) == 4
    again.keep_sample(clustered[1][:20])
    again.planned(asked, COLBERT, DEPTH)
    assert len(made) == 5


def test_the_users_values_win(index, clustered):
    own = SearchOptions("gather", neighbours=30, probes=4, refine=120)
    assert index.planned(own, COLBERT, DEPTH) is own
    chosen = index.planned(own.changed(refine="auto", recall=1.0), COLBERT, DEPTH)
    assert (chosen.mode, chosen.neighbours, chosen.probes) == ("gather", 30, 4)
    assert isinstance(chosen.refine, int)
    every = index.planned(SearchOptions("gather", probes=None, recall=0.9), COLBERT, DEPTH)
    assert every.probes is None and recall(index, clustered[1], every) >= 0.9


def test_the_exact_search_takes_over(index, clustered, monkeypatch, capsys):
    gather = SearchOptions("gather", recall=1.0)
    whole = index.planned(gather, COLBERT, DEPTH)
    scores = index.exact(stack(clustered[1]), COLBERT).T
    for row, found in zip(scores, index.search(clustered[1], COLBERT, whole), strict=True):
        assert torch.equal(found.scores.sort(stable=True).indices, row.sort(stable=True).indices)
    assert "exact search" in capsys.readouterr().out
    monkeypatch.setattr(plan, "_SIMILARITY", 0.009)  # a small collection
    assert index.planned(gather.changed(recall=0.9), COLBERT, DEPTH).mode == "exact"


def test_the_least_estimates_are_chosen_that_find_what_was_wanted(index, clustered, capsys):
    asked = SearchOptions("fde", recall=0.9, fde_planes=4, fde_projection=None)
    options = index.planned(asked, COLBERT, 10)
    assert options.mode == "fde" and 10 <= options.refine < DOCUMENTS
    assert recall(index, clustered[1], options, 10) >= 0.9
    fewer = options.changed(refine=options.refine // 2)
    assert recall(index, clustered[1], fewer, 10) < recall(index, clustered[1], options, 10)
    assert "refine=" in capsys.readouterr().out
    assert index.planned(asked.changed(recall=1.0), COLBERT, 10).mode == "exact"


def test_imputation_comes_as_close_as_it_can(index, clustered, capsys):
    options = index.planned(SearchOptions("impute", recall=1.0), COLBERT, DEPTH)
    assert options.mode == "impute" and not options.open_keys
    assert "the most that was reached" in capsys.readouterr().out


def test_a_search_that_prunes_needs_no_sample_and_one_that_finds_nothing_is_planned(tmp_path):
    vectors = normalize(torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    ids, counts = torch.arange(2000), torch.ones(2000, dtype=torch.int64)
    names = [str(n) for n in range(2000)]
    tokens = PackedTokens(vectors, counts, ids, salience=torch.ones(2000))
    index = TokenIndex.build(tmp_path / "index", names, [tokens], dtype="residual")
    pruned = index.planned(SearchOptions("gather", keep_document=0.5), COLBERT, DEPTH)
    assert pruned.mode == "gather" and not pruned.open_keys
    mask, one = torch.ones(1, dtype=torch.bool), torch.ones(1)
    index.keep_sample([TokenVectors(v[None], mask, ids[:1], one) for v in vectors[:20]])
    index.delete(names[:-1])  # most clusters are empty
    chosen = index.planned(SearchOptions("gather", probes=1), COLBERT, DEPTH)
    assert chosen.probes == 1 and not chosen.open_keys


def test_a_plan_that_another_hand_wrote_is_refused(index):
    asked, path = SearchOptions("gather", recall=0.8), index.directory / plan._PLANS
    index.planned(asked, COLBERT, DEPTH)
    found = read_sealed(path)
    for chosen in ({"mode": "rerank"}, {"probes": 4}, {"neighbours": "7"}, {"other": 1}):
        found["plans"][0]["chosen"] = chosen
        write_sealed(path, found)
        with pytest.raises(ValueError, match="plans.json: "):
            index.planned(asked, COLBERT, DEPTH)


def test_a_folder_that_cannot_be_written_is_searched_and_what_is_not_chosen_is_refused(
    index, clustered, monkeypatch
):
    def refuse(*_, **__):
        raise PermissionError("read-only")

    monkeypatch.setattr(plan, "write_sealed", refuse)
    gather = SearchOptions(mode="gather", neighbours=250, refine=None)
    chosen = index.planned(gather, COLBERT, DEPTH)
    assert not chosen.open_keys and not (clustered[0] / plan._PLANS).exists()
    with pytest.raises(ValueError, match="model.search.probes=auto: must have a value"):
        index.search(clustered[1], COLBERT, gather)
