from statistics import fmean

import pytest
from pandas import DataFrame, read_csv

from analysis.compare import compare, compare_rankings
from analysis.compare.groups import Group, Section
from analysis.compare.significance import compare_effectiveness, compare_values
from analysis.runs.numbers import find
from analysis.runs.run_folder import read_run
from tests.analysis.test_compare import judge_gold, rank_gold, write_run

QUERIES = [f"q{n}" for n in range(40)]


def run_of(folder, ranks, queries=QUERIES):
    """A run in which the relevant document of each query stands at the given rank."""
    write_run(folder, folder.name, 1, {"retrieve/mrr@10": fmean(1 / rank for rank in ranks)})
    judge_gold(folder, ranks, queries)
    return read_run(folder)


def section_of(tmp_path, **systems):
    groups = [Group([run_of(tmp_path / name, ranks)], name) for name, ranks in systems.items()]
    return Section("fruit", groups)


def test_means_and_intervals_over_queries(tmp_path):
    section = section_of(tmp_path, good=[1, 2] * 20, sure=[1] * 40)
    found = compare_effectiveness(section)
    good, sure = (find(g.numbers, "retrieve", "mrr@10") for g in section.groups)
    assert good.value == pytest.approx(0.75)
    # The mean of 40 values with deviation 1/4 has a standard error of 0.04.
    assert good.low == pytest.approx(0.75 - 1.96 * 0.04, abs=0.015)
    assert good.high == pytest.approx(0.75 + 1.96 * 0.04, abs=0.015)
    assert sure.low == sure.high == 1
    assert found.winners == {"mrr@10": "sure"}  # both systems find all


def test_every_pair_of_systems_is_tested_and_corrected(tmp_path):
    section = section_of(tmp_path, best=[1] * 40, near=[1] * 39 + [5], bad=[5] * 40)
    found = compare_effectiveness(section)
    mrr = {
        (row["first"], row["second"]): row
        for row in found.differences.to_dict("records")
        if row["metric"] == "mrr@10"
    }
    assert set(mrr) == {("best", "near"), ("best", "bad"), ("near", "bad")}
    assert mrr["best", "bad"]["difference"] == pytest.approx(0.8)
    assert mrr["best", "near"]["p"] == pytest.approx(0.3235, abs=1e-4)
    assert mrr["best", "near"]["corrected"] == mrr["best", "near"]["p"]  # the largest of three
    assert mrr["best", "bad"]["p"] == 0
    rows = {name: cell.text for name, cell in found.table.cells["retrieve MRR@10"].items()}
    assert rows["best − near"] == "+0.020 [−0.020, 0.060] (p = 0.323)"
    assert rows["best − bad"] == "+0.800 [0.800, 0.800] (p < 0.001) *"
    assert found.winners == {}  # the best is no better than the next one but by chance


def test_means_over_seeds_that_are_equal_tie():
    values = [DataFrame({("mrr@10", 1): [mean]}, index=["q"]) for mean in (0.1 + 0.2, 0.3)]
    found = compare_values(dict(zip("ab", values, strict=True)), ["mrr@10"])
    assert found.differences[["wins", "ties", "losses"]].values.tolist() == [[0, 1, 0]]
    assert found.differing() is None


def test_a_system_without_or_with_other_judgements_is_named(tmp_path):
    section = section_of(tmp_path, first=[1] * 40, second=[1] * 40)
    other = run_of(tmp_path / "other", [1] * 3, queries=["a", "b", "c"])
    section.groups.append(Group([other], "other"))
    (tmp_path / "second/queries.parquet").unlink()
    found = compare_effectiveness(section, baseline="second")  # then nothing is tested
    assert len(found.notes) == 2 and found.differences.empty and found.baseline == "second"
    found = compare_effectiveness(section)
    assert [*found.values] == ["first"] and found.differences.empty
    assert (
        "second: no intervals and tests, a run has no retrieve in queries.parquet" in found.notes[0]
    )
    assert "other: no intervals and tests, judged on other queries" in found.notes[1]


def test_rankings_are_compared_with_a_baseline_over_queries():
    """Win, tie and loss are counts of queries; the queries that differ most come first."""
    ranks = {"base": [2] * 4, "best": [1, 1, 2, 5], "same": [2] * 4}
    rankings = {name: rank_gold(own) for name, own in ranks.items()}
    qrels = {f"q{n}": {"gold": 1} for n in range(4)}
    found = compare_rankings(rankings, qrels, ["nDCG@10"], ["RR@10"], baseline="base")
    assert found.means["mrr@10"].tolist() == pytest.approx([0.5, 0.675, 0.5])
    rows = found.differences[["first", "second", "wins", "ties", "losses"]].values.tolist()
    assert rows == [["best", "base", 2, 1, 1], ["same", "base", 0, 4, 0]]
    assert found.winners == {}
    largest = found.differing(1).cells
    assert (
        largest.index.tolist() == ["best − base"] and largest["1"].iloc[0].text == "q0: 1.00, 0.50"
    )
    for options, said in (
        ({"baseline": "none"}, "baseline=none: must be one of base, best, same"),
        ({"tested": ["hits@3"]}, "hits@3: must be recall"),
    ):
        with pytest.raises(ValueError, match=said):
            compare_rankings(rankings, qrels, **options)


def test_a_collection_without_the_baseline_is_not_tested_and_says_so(tmp_path):
    for collection, systems in {"fruit": ("bm25", "dpr"), "cities": ("dpr", "xtr")}.items():
        for system in systems:
            folder = tmp_path / collection / system
            write_run(folder, system, 1, {"retrieve/mrr@10": 1.0}, collection=collection)
            judge_gold(folder, [1, 2, 1])
    folder = compare([tmp_path], tmp_path / "out", baseline="bm25").folder
    assert "cities: no tests, it has no system bm25." in (folder / "comparison.md").read_text()
    tests = read_csv(folder / "comparison_tests.csv")
    assert {*tests["setting"]} == {"fruit"} and {*tests["second"]} == {"bm25"}
    with pytest.raises(ValueError, match="baseline=none: must be one of dpr, xtr, bm25"):
        compare([tmp_path], tmp_path / "out", baseline="none")
