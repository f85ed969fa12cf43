"""One index searched under many settings."""

from statistics import fmean

import pytest
import torch
from analysis.tables.rows import read_rows

from analysis.studies.search_grid import expand_grids
from analysis.studies.study import check_study, run_study
from gr_mvdr.evaluation.ranking import Ranking, recall_of_exact
from models.docid import Docid

GRID = {"mode": ["gather"], "keep_document": [0.25, 1.0]}
CURVES = {"x": "keep_document", "title": "Pruning"}


def study(**changes):
    arguments = {"settings": GRID, "curves": CURVES} | changes
    return {"_target_": "analysis.studies.search_grid.SearchGrid"} | arguments


@pytest.fixture
def made(studied_system, studied_data, tmp_path):
    """Makes a study of six queries; its rows."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index/vectors.bin").write_bytes(b"x" * 1234)

    def run(metrics=None, **changes):
        data = studied_data(6)
        data.metrics = metrics or data.metrics
        run_study(study(**changes), studied_system, data, tmp_path)
        return read_rows(tmp_path / "study.csv")

    return run


def test_every_combination_is_a_row_with_its_quality_and_costs(made, tmp_path):
    less, all_ = made()
    assert (less["mode"], less["keep_document"], all_["keep_document"]) == ("gather", 0.25, 1.0)
    # Of 12 documents the first 3 are left: half of the six queries cannot find theirs.
    assert less["recall@100"] == 0.5 and all_["recall@100"] == 1.0
    assert less["recall_of_exact@10"] < all_["recall_of_exact@10"] == 1.0
    assert [row["search_error@10"] for row in (less, all_)] == [0.5, 0]
    assert [row["cost/candidates"] for row in (less, all_)] == [3, 12]
    assert [row["cost/scoring_flops"] for row in (less, all_)] == [30, 120]
    assert less["cost/index_bytes"] == 1234 and less["cost/query_ms"] > 0
    queries = read_rows(tmp_path / "study_queries.csv")
    assert {query["query"] for query in queries} == {f"q{number}" for number in range(6)}
    for number, row in enumerate((less, all_)):
        mean = fmean(query[f"{number}/mrr@10"] for query in queries)
        assert mean == pytest.approx(row["mrr@10"])


def test_queries_are_encoded_once_and_searched_as_deep_as_the_metrics_look(made, studied_system):
    calls = []
    studied_system.encoder.register_forward_hook(lambda *_: calls.append(1))
    rows = made(["mrr@10", "recall@1000"], depth=5)
    assert "recall@1000" in rows[0] and len(calls) == 6
    # The exact search, and of each setting one query that builds what it needs, then all.
    searches = [(queries, k, keep) for queries, k, keep, _ in studied_system.searches]
    settings = [(n, 1000, keep) for keep in (0.25, 1.0) for n in (1, 6)]
    assert searches == [(6, 10, 1.0), *settings]
    assert studied_system.searches[0][3] == {"mode": "exact"}


def test_grids_follow_each_other_and_queries_can_be_fewer(made, studied_system):
    grids = [{"keep_document": [0.5]}, {"mode": ["impute"], "keep_document": [1.0, 0.75]}]
    rows = made(settings=grids, max_queries=2)
    found = [(row.get("mode"), row["keep_document"]) for row in rows]
    assert found == [(None, 0.5), ("impute", 1.0), ("impute", 0.75)]
    assert {queries for queries, *_ in studied_system.searches} == {1, 2}


def test_a_setting_that_does_not_fit_the_index_is_left_out_with_a_warning(made):
    curves = CURVES | {"x": "neighbours"}
    with pytest.warns(UserWarning, match=r"'neighbours': 1000.*left out.*must be ≤"):
        rows = made(settings={"neighbours": [10, 1000]}, curves=curves)
    assert [row["neighbours"] for row in rows] == [10]


def test_bad_studies_are_refused_before_training(studied_system):
    check_study(study(), studied_system)
    with pytest.raises(ValueError, match="object has no index of token vectors"):
        check_study(study(), object())
    for wrong, message in (
        ({"settings": {"neighbors": [1]}}, "model.search.neighbors: must be one of mode"),
        ({"depth": 0}, "study.depth=0: must be a whole number ≥ 1"),
    ):
        with pytest.raises(ValueError, match=message):
            check_study(study(**wrong), studied_system)


def test_beams_lose_what_a_wider_one_finds(studied_data, tmp_path):
    """Every docid is in the widest beam: it loses nothing that scoring all documents finds."""
    names = [f"d{n}" for n in range(6)]
    scores = {q: {d: -float(abs(int(d[1]) - int(q[1]))) for d in names} for q in ("q0", "q1")}

    class Docids(Docid):
        document_ids, plan = names, None

        def __init__(self):
            torch.nn.Module.__init__(self)

        def rerank(self, queries, documents, candidates):
            assert documents["id"] == names == candidates["q0"]
            return Ranking(scores)

        def retrieve(self, queries, k, beam_size):
            return Ranking({q: dict(list(scores[q].items())[-beam_size:]) for q in queries["id"]})

    beams = study(settings={"beam_size": [2, 6]}, curves={"x": "beam_size"})
    beams["_target_"] = "analysis.studies.search_grid.BeamGrid"
    (tmp_path / "index").mkdir()
    run_study(beams, Docids(), studied_data(2), tmp_path)
    narrow, wide = read_rows(tmp_path / "study.csv")
    assert [row["search_error@10"] for row in (narrow, wide)] == [1, 0]
    assert [row["recall_of_exact@10"] for row in (narrow, wide)] == [2 / 6, 1]
    with pytest.raises(ValueError, match="study: object generates no docids"):
        check_study(beams, object())
    with pytest.raises(ValueError, match=r"study\.settings=keep_query: must be"):
        check_study(beams | {"settings": {"keep_query": [1]}}, Docids())


def test_recall_of_the_exact_search_counts_its_first_ten():
    exact = Ranking({"a": {f"d{n}": -n for n in range(20)}, "b": {"x": 1, "y": 0}})
    found = Ranking({"a": {f"d{n}": n for n in range(4, 14)}, "b": {"y": 0}})
    # Of a's ten d0 to d9 six are found (d4 to d9), of b's two one.
    assert recall_of_exact(exact, found) == pytest.approx((0.6 + 0.5) / 2)
    assert recall_of_exact(exact, Ranking({})) == 0


def test_an_option_without_a_list_of_values_is_named():
    with pytest.raises(ValueError, match=r"study\.settings\.mode=gather: must be a list of values"):
        expand_grids({"mode": "gather"})
