import csv
from statistics import fmean

import pytest

from analysis.studies.search_grid import SearchGrid
from analysis.studies.study import check_study, run_study
from gr_mvdr.evaluation.ranking import Ranking, recall_of_exact

GRID = {"mode": ["gather"], "keep_document": [0.25, 1.0]}
CURVES = {"x": "keep_document", "title": "Pruning"}


def study(**changes):
    arguments = {"settings": GRID, "curves": CURVES} | changes
    return {"_target_": "analysis.studies.search_grid.SearchGrid"} | arguments


def made(run, system, data, **changes):
    (run / "index").mkdir(exist_ok=True)
    (run / "index/vectors.bin").write_bytes(b"x" * 1234)
    run_study(study(**changes), system, data, run)
    with (run / "study.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_combination_is_a_row_with_its_quality_and_costs(
    studied_system, studied_data, tmp_path
):
    less, all_ = made(tmp_path, studied_system, studied_data(6))
    assert (less["mode"], less["keep_document"], all_["keep_document"]) == ("gather", "0.25", "1.0")
    # Of 12 documents the first 3 are left: half of the six queries cannot find theirs.
    assert float(less["recall@100"]) == 0.5 and float(all_["recall@100"]) == 1.0
    assert float(less["recall_of_exact@10"]) < float(all_["recall_of_exact@10"]) == 1.0
    assert [float(row["cost/candidates"]) for row in (less, all_)] == [3, 12]
    assert [float(row["cost/scored_tokens"]) for row in (less, all_)] == [15, 60]
    assert [float(row["cost/scoring_flops"]) for row in (less, all_)] == [30, 120]
    assert float(less["cost/bytes_per_token"]) == 32
    assert float(less["cost/index_bytes"]) == 1234 and float(less["cost/query_ms"]) > 0
    assert {"recall@1", "mrr@10", "ndcg@10"} <= set(less)
    assert (tmp_path / "figures/study.png").is_file()
    with (tmp_path / "study_queries.csv").open() as file:
        queries = list(csv.DictReader(file))
    assert {query["query"] for query in queries} == {f"q{number}" for number in range(6)}
    for number, row in enumerate((less, all_)):
        mean = fmean(float(query[f"{number}/mrr@10"]) for query in queries)
        assert mean == pytest.approx(float(row["mrr@10"]))


def test_queries_are_encoded_once_and_warmed_up(studied_system, studied_data, tmp_path):
    calls = []
    studied_system.encoder.register_forward_hook(lambda *_: calls.append(1))
    data = studied_data(6)
    data.metrics = ["mrr@4"]
    made(tmp_path, studied_system, data, depth=5, curves=CURVES | {"y": "mrr@4"})
    assert len(calls) == 6
    # The exact search, and of each setting one query that builds what it needs, then all.
    searches = [(queries, k, keep) for queries, k, keep, _ in studied_system.searches]
    assert searches == [(6, 10, 1.0), (1, 5, 0.25), (6, 5, 0.25), (1, 5, 1.0), (6, 5, 1.0)]
    assert studied_system.searches[0][3] == {"mode": "exact"}


def test_the_datas_metrics_are_measured_as_deep_as_they_look(
    studied_system, studied_data, tmp_path
):
    data = studied_data(6)
    data.metrics = ["mrr@10", "recall@1000"]
    rows = made(tmp_path, studied_system, data, depth=5)
    assert {"mrr@10", "recall@1000", "recall_of_exact@10"} <= rows[0].keys()
    assert [k for _, k, *_ in studied_system.searches] == [10, 1000, 1000, 1000, 1000]


def test_grids_stand_one_after_the_other_and_queries_can_be_fewer(
    studied_system, studied_data, tmp_path
):
    grids = [{"keep_document": [0.5]}, {"mode": ["impute"], "keep_document": [1.0, 0.75]}]
    two = [CURVES, {"x": "cost/searched_bytes", "hue": "mode"}]
    rows = made(
        tmp_path, studied_system, studied_data(6), settings=grids, max_queries=2, curves=two
    )
    assert all((tmp_path / f"figures/{name}.png").is_file() for name in ("study", "study_2"))
    assert {row["cost/searched_bytes"] for row in rows} == {"99"}
    assert [(row["mode"], row["keep_document"]) for row in rows] == [
        ("", "0.5"),
        ("impute", "1.0"),
        ("impute", "0.75"),
    ]
    assert {queries for queries, *_ in studied_system.searches} == {1, 2}


def test_what_does_not_fit_the_index_is_left_out_and_said(studied_system, studied_data, tmp_path):
    curves = CURVES | {"x": "neighbours"}
    with pytest.warns(UserWarning, match=r"'neighbours': 1000.*left out.*must be ≤"):
        rows = made(
            tmp_path,
            studied_system,
            studied_data(6),
            settings={"neighbours": [10, 1000]},
            curves=curves,
        )
    assert [row["neighbours"] for row in rows] == ["10"]
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match="study.settings: none of them fits"),
    ):
        made(tmp_path, studied_system, studied_data(6), settings={"neighbours": [999]})


def test_bad_studies_are_refused_before_training(studied_system):
    class Generative:
        pass

    with pytest.raises(ValueError, match="Generative has no index of token vectors"):
        check_study(study(), Generative())
    with pytest.raises(ValueError, match="model.search.neighbors: must be one of mode"):
        check_study(study(settings={"neighbors": [1]}), studied_system)
    for wrong, message in (
        ({"settings": {"mode": "gather"}}, "study.settings.mode=gather: must be a list"),
        ({"settings": {"mode": []}}, "study.settings.mode="),
        ({"settings": []}, "study.settings: must hold at least one"),
        ({"depth": 0}, "study.depth=0: must be ≥ 1"),
        ({"max_queries": 0}, "study.max_queries=0: must be ≥ 1"),
    ):
        with pytest.raises(ValueError, match=message):
            check_study(study(**wrong), studied_system)
    check_study(study(), studied_system)
    assert SearchGrid(GRID, CURVES).settings == [
        {"mode": "gather", "keep_document": 0.25},
        {"mode": "gather", "keep_document": 1.0},
    ]


def test_recall_of_the_exact_search_counts_its_first_ten():
    exact = Ranking({"a": {f"d{n}": -n for n in range(20)}, "b": {"x": 1, "y": 0}})
    found = Ranking({"a": {f"d{n}": n for n in range(4, 14)}, "b": {"y": 0}})
    # Of a's ten d0 to d9 six are found (d4 to d9), of b's two one.
    assert recall_of_exact(exact, found) == pytest.approx((0.6 + 0.5) / 2)
    assert recall_of_exact(exact, Ranking({})) == 0
