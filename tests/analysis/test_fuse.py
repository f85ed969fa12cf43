"""Fusion: by hand, and with weights that are chosen on a split."""

import csv
from math import inf

import pytest

from analysis.compare import compare
from analysis.fuse import MAIN, Fusion, fuse, read_parts
from analysis.runs.run_folder import read_run
from gr_mvdr.evaluation.ranking import Ranking, read_qrels, write_qrels
from tests.analysis.test_compare import write_run

ONE = Ranking({"q": {"a": 9.0, "b": 5.0, "c": 1.0}, "r": {"a": 1.0}, "s": {"x": 2.0, "y": 1.0}})
TWO = Ranking({"q": {"c": 0.5, "d": 0.25, "a": 0.0, "lost": -inf}, "s": {"y": 1.0, "z": 1.0}})


def test_fusions_worked_out_by_hand():
    found = Fusion(k=10)([ONE, TWO])
    first, second, third = 1 / 11, 1 / 12, 1 / 13
    expected = {"a": first + third, "c": third + first, "b": second, "d": second}
    assert found.scores("q") == pytest.approx(expected)
    assert found.documents("q") == ["c", "a", "d", "b"]  # ties: the last id first
    assert found.scores("r") == pytest.approx({"a": first})  # of a query that one part lacks
    weighted = Fusion("combsum", weights=[0.25, 0.75])([ONE, TWO]).scores("q")
    assert weighted == pytest.approx({"c": 0.75, "d": 0.375, "a": 0.25, "b": 0.125})
    summed = Fusion("combsum", depth=2)([ONE, TWO]).scores("q")
    assert summed == pytest.approx({"c": 1, "a": 1})
    for query, expected in (("r", {"a": 1}), ("s", {"z": 1, "y": 1, "x": 1})):
        # A single hit, or equal ones, are the best that a part found.
        assert Fusion("combsum")([ONE, TWO]).scores(query) == expected


def test_equal_sums_are_ties_in_whatever_order_they_are_added():
    """y has the ranks 1, 2, 7 and z the ranks 7, 1, 2: in float64 the order of a sum shows."""
    orders = ("yabcdez", "zyfghij", "kzlmnoy")
    found = Fusion()([Ranking({"q": {d: -n for n, d in enumerate(order)}}) for order in orders])
    assert found.scores("q")["y"] == found.scores("q")["z"]
    assert found.documents("q")[:2] == ["z", "y"]


@pytest.fixture
def runs(tmp_path):
    """Two runs with a main split and dev: on dev only the second finds what is relevant."""
    made = []
    for name, main, dev in (("one", ONE, ONE), ("two", TWO, TWO)):
        metrics = {"retrieve/mrr@10": 0.5, "retrieve/dev/mrr@10": 0.5}
        folder = write_run(tmp_path / name, name, 1, metrics, splits=["test", "dev"])
        for split, ranking in (("", main), ("-dev", dev)):
            ranking.write(folder / f"retrieve{split}.trec", name)
            write_qrels({"q": {"c": 2, "d": 1}, "r": {"b": 1}}, folder / f"retrieve{split}.qrels")
        made.append(folder)
    return made


def test_runs_are_fused_split_by_split_into_a_folder_that_compare_reads(runs, tmp_path):
    folder = fuse(runs, Fusion("combsum"), tune="dev")
    assert folder.parent == tmp_path
    # From a weight of 0.6 on, the second's best document is the best of both.
    run, parts = read_run(folder), read_parts([*runs])
    weights = run.provenance["fusion"]["weights"]
    assert sum(weights) == pytest.approx(1) and weights[1] > weights[0]
    assert run.metrics["retrieve/dev/mrr@10"] == run.metrics["retrieve/mrr@10"] == 0.5
    again = Fusion("combsum", weights=weights)([part.rankings[MAIN] for part in parts])
    assert Ranking.read(folder / "retrieve.trec") == again
    assert fuse(runs, Fusion("combsum"), tune="dev") == folder  # made again in its place
    compare([*runs, folder], tmp_path / "compared")
    rows = csv.DictReader((tmp_path / "compared/comparison.csv").open())
    assert {row["system"] for row in rows} == {"one", "two", run.system}
    # Judgements of the main split replace the runs'; dev keeps its own.
    write_qrels({"q": {"b": 1}}, tmp_path / "own.qrels")
    parts = read_parts([*runs], tmp_path / "own.qrels")
    assert parts[0].qrels == {MAIN: {"q": {"b": 1}}, "dev": read_qrels(runs[0] / "retrieve.qrels")}


def test_what_cannot_be_fused_is_named(runs, tmp_path):
    other, wtq = (
        write_run(tmp_path / name, "x", 1, {"retrieve/mrr@10": 1}, splits=["test"], collection=name)
        for name in ("almanac", "wtq")
    )
    ONE.write(wtq / "retrieve.trec", "x")
    for asked, fusion, options, said in (
        ([runs[0], tmp_path / "no"], Fusion(), {}, "runs=.*no: no such folder or file"),
        (runs, Fusion("combsum", weights=[1.0]), {}, r"part_weights=\[1.0\]: must be 2 numbers"),
        (runs, Fusion("combsum"), {"tune": "test"}, "tune=test: must be a split besides .*dev"),
        (runs, Fusion(), {"output": tmp_path}, "exists, must be a new folder"),
        ([runs[0], other], Fusion(), {}, "retrieve.trec"),
        ([runs[0], wtq], Fusion(), {}, r"cannot be fused: almanac \(test, dev\); wtq \(test\)"),
    ):
        with pytest.raises((ValueError, OSError), match=said):
            fuse(asked, fusion, **options)
