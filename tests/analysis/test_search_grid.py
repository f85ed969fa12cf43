"""One index searched under many settings."""

from unittest import mock

import pytest

from analysis.runs.queries import read_queries
from analysis.runs.settings import write_setting
from analysis.studies.search_grid import expand_grids
from analysis.studies.study import check_study, run_study
from gr_mvdr.evaluation.ranking import Ranking, evaluate, recall_of_exact
from tests.models.conftest import make_docid, make_multi_vector
from tests.runs import read_lines_of
from tests.searches import make_search

CURVES = {"x": "neighbours"}


def study(kind="SearchGrid", **arguments):
    searches = {name: make_search(name).settings for name in ("gather", "exact")}
    own = {"searches": searches} if kind == "SearchGrid" else {}
    return {"_target_": f"analysis.studies.search_grid.{kind}", "curves": CURVES} | own | arguments


@pytest.fixture
def made(tiny_data, tmp_path):
    """Makes a study of an indexed system; its rows."""

    def run(system, **changes):
        system.index(tiny_data.documents, tmp_path / "index")
        run_study(study(**changes), system, tiny_data, tmp_path)
        return read_lines_of(tmp_path / "study.csv")

    return run


def test_every_combination_is_a_row_with_its_quality_and_costs(made, tiny_data, tmp_path):
    system = make_multi_vector()
    grids = [{"search": ["gather"], "neighbours": [3, 100]}, {"search": ["exact"]}]
    retrieve, encode = system.searcher.search, mock.Mock(wraps=system.encoded_queries)

    def refusing(encoded, scoring, k, search, among=None):
        if search.pool == 9999:
            raise ValueError("must be ≤ the index's tokens")
        return retrieve(encoded, scoring, k, search, among)

    with (
        mock.patch.object(system, "encoded_queries", encode),
        mock.patch.object(system.searcher, "search", refusing),
        pytest.warns(UserWarning, match=r"'pool': 9999.*left out.*must be ≤"),
    ):
        rows = made(system, settings=[*grids, {"pool": [9999]}])
    assert encode.call_count == 1, "queries are encoded once"
    found = [(row["search"], row.get("neighbours")) for row in rows]
    assert found == [("gather", 3), ("gather", 100), ("exact", None)]  # 9999 does not fit
    queries = tiny_data.evaluation.test_queries("test")
    by_query = read_queries(tmp_path)
    for row, (mode, neighbours) in zip(rows, found, strict=True):
        options = {"neighbours": neighbours} if neighbours else {}
        part, setting = write_setting({"search": mode} | options), make_search(mode, **options)
        encoded = system.encoded_queries(queries)
        ranking = system.searcher.search(encoded, system.scoring, 100, setting)
        for metric, value in evaluate(
            ranking, tiny_data.evaluation.judgements("test", queries)
        ).items():
            assert row[metric] == pytest.approx(value), metric
        own = by_query[by_query["part"] == part]
        assert own["query"].tolist() == list(queries["id"])
        assert own["mrr@10"].mean() == pytest.approx(row["mrr@10"])
        assert row["cost/index_bytes"] > 0 and row["cost/query_ms"] > 0
    few, many, exact = rows
    assert (
        few["recall_of_exact@10"] < many["recall_of_exact@10"] <= exact["recall_of_exact@10"] == 1
    )
    assert few["cost/candidates"] < many["cost/candidates"] <= exact["cost/candidates"]
    assert exact["cost/candidates"] == 30
    assert exact["search_error@10"] == 0 and few["cost/scoring_flops"] < exact["cost/scoring_flops"]


def test_a_study_that_does_not_fit_is_refused_before_training():
    system = make_multi_vector()
    check_study(study(settings={"search": ["gather"], "neighbours": [10]}), system)
    for wrong, model, message in (
        ({"settings": {"neighbours": [1]}}, system, "neighbours=1: must be one of "),
        ({"settings": {"search": ["near"]}}, system, "search=near: must be one of gather, exact"),
        ({"settings": {"pool": [1]}}, object(), "object has no index of token vectors"),
        ({"settings": {"beam_size": [2]}, "kind": "BeamGrid"}, object(), "generates no docids"),
        ({"settings": {"k": [1]}, "kind": "BeamGrid"}, make_docid(), r"study\.settings=k: must be"),
    ):
        with pytest.raises(ValueError, match=message):
            check_study(study(**wrong), model)
    with pytest.raises(ValueError, match=r"study\.settings\.pool=4: must be a list of values"):
        expand_grids({"pool": 4})


def test_beams_lose_what_a_wider_one_finds(made, tiny_data):
    """Every docid is in the widest beam: it loses nothing that scoring all documents finds."""
    system = make_docid("atomic", tiny_data.documents, tiny_data.known_documents)
    beams = {"settings": {"beam_size": [2, 30]}, "curves": {"x": "beam_size"}}
    narrow, wide = made(system, kind="BeamGrid", **beams)
    assert [row["recall_of_exact@10"] for row in (narrow, wide)] == [0.2, 1]
    assert narrow["search_error@10"] >= wide["search_error@10"] == 0


def test_recall_of_the_exact_search_counts_its_first_ten():
    exact = Ranking({"a": {f"d{n}": -n for n in range(20)}, "b": {"x": 1, "y": 0}})
    found = Ranking({"a": {f"d{n}": n for n in range(4, 14)}, "b": {"y": 0}})
    # Of a's ten d0 to d9 six are found (d4 to d9), of b's two one.
    assert recall_of_exact(exact, found) == pytest.approx((0.6 + 0.5) / 2)
    assert recall_of_exact(exact, Ranking({})) == 0
