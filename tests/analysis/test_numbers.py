"""A number is a row: nothing reads a fact about it from its name, and no formatted cell is read."""

import ast
import csv
import json

import pytest
from pandas import DataFrame

from analysis.claims import Claim, Side, judge_claims
from analysis.compare import compare
from analysis.compare.groups import compare_runs
from analysis.questions.analysis import Analysis
from analysis.record import tabulate_results
from analysis.runs.numbers import (
    describe,
    export_numbers,
    make_frame,
    read_numbers,
    write_numbers,
)
from analysis.runs.queries import keep_queries, read_queries, tabulate_queries
from analysis.runs.report import write_report
from analysis.runs.run_folder import read_run
from analysis.studies.study import StudyTable, read_study, study_rows, tabulate_study
from gr_mvdr.measures import STUDY, Group, Metric
from tests.analysis.test_compare import write_run
from tests.runs import ROOT

NAME = "odd@1/2 of = all"
ODD = Metric(NAME, "A meaning of one's own.", better="high", headline=True)


class Own(Analysis):
    """An analysis of the user's own, which this library does not list."""

    name, title, reading, metrics = "own", "My own question", "How to read my numbers.", (ODD,)


@pytest.fixture
def runs(tmp_path):
    """Three seeds of two systems, with the metric in their numbers, queries and studies."""
    folders = []
    for system, value in (("a", 0.75), ("b", 0.5)):
        for seed in (1, 2, 3):
            run = write_run(tmp_path / f"runs/{system}{seed}", system, seed, {}, splits=["test"])
            rows = Own(None).findings([ODD.row(value, low=value - 0.1, high=value + 0.1)]).rows
            rows += study_rows({"k": 1}, [ODD.row(value)])
            write_numbers(run, frame := make_frame(rows))
            export_numbers(run, frame)
            keep_queries(
                run, [tabulate_queries("own", {f"q{n}": {NAME: value} for n in range(40)})]
            )
            folders.append(run)
    return folders


def test_a_metric_of_any_name_reaches_every_table_unchanged(runs, tmp_path):
    key = f"analysis/own/{NAME}"
    written = json.loads((runs[0] / "metrics.json").read_text())
    assert written == read_run(runs[0]).metrics
    assert written == {key: 0.75, f"{key}_low": 0.65, f"{key}_high": 0.85}
    page = write_report(runs[0]).read_text()
    for text in (NAME, Own.title, Own.reading, ODD.meaning.replace("'", "&#39;"), "0.750 [0.650"):
        assert text in page, text
    folder = compare([tmp_path / "runs"], tmp_path / "out", metrics=[NAME]).folder
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert {row["metric"] for row in rows} == {NAME} and key in {row["key"] for row in rows}
    assert NAME in (folder / "comparison.html").read_text()
    assert f"| own {NAME} | **0.750 ± 0.000** | 0.500 ± 0.000 |" in (
        (folder / "comparison.md").read_text()
    )
    table = tabulate_results(str(tmp_path / "runs"), metrics=key).splitlines()
    assert table[0] == f"| almanac | own {NAME} | seeds |"
    assert table[2] == "| a | **0.750 ± 0.000** | 3 |"
    claim = Claim("c", "ours", Side("a", "own"), Side("b", "own"), NAME)
    judged = judge_claims(compare_runs([tmp_path / "runs"]), [claim])
    assert judged["effect"].tolist() == [0.25] and judged["verdict"].tolist() == ["confirmed"]
    assert NAME in judged["compared"].iloc[0]
    study = StudyTable.of(*read_study(read_numbers(runs[0])))
    assert [*study.frame] == ["k", NAME]
    assert [cell.text for cell in tabulate_study(study, "h").lines[0]] == ["k", NAME]


def test_of_two_numbers_of_one_place_the_last_one_counts_and_none_is_damaged(runs):
    frame = make_frame([ODD.row(1.0), ODD.row(2.0), ODD.row(3.0, part="p")])
    assert frame["value"].tolist() == [2.0, 3.0]
    assert describe(frame)["headline"].tolist() == [True, False]  # a part is no headline
    DataFrame({"group": ["a"]}).to_parquet(runs[0] / "metrics.parquet")
    with pytest.raises(ValueError, match=r"metrics.parquet: must be a table .* it has no place"):
        read_run(runs[0])


def test_the_settings_of_a_study_are_no_numbers_of_a_summary(runs, tmp_path):
    asked = {"metrics": [NAME], "baseline": "a", "output": tmp_path / "out"}
    page = (compare([tmp_path / "runs"], **asked).folder / "comparison.md").read_text()
    assert f"| own {NAME} |" in page and "| study " not in page
    assert "significantly better than every other" not in page  # only the baseline is compared
    with pytest.raises(ValueError, match="metrics=mrr@99: no run has it, they have odd@1"):
        compare([tmp_path / "runs"], metrics=["mrr@99"])


def test_all_queries_of_an_earlier_measurement_go(runs):
    keep_queries(runs[0], [tabulate_queries("other", {"q9": {NAME: 1.0}})])
    keep_queries(runs[0], [tabulate_queries("own", {"q1": {NAME: 1.0}})])
    table = read_queries(runs[0])
    assert table[["group", "query"]].values.tolist() == [["other", "q9"], ["own", "q1"]]


def test_a_chapter_with_a_reading_but_no_title_is_shown(runs):
    group = Group("own", "", "How to read it.")
    write_numbers(runs[0], make_frame([ODD.row(1.0, group=group)]))
    assert "How to read it." in write_report(runs[0]).read_text()


@pytest.mark.parametrize("part", ["[1]", "no JSON", "1"])
def test_a_foreign_setting_of_a_study_is_refused_with_its_file(runs, part):
    write_numbers(runs[0], make_frame([ODD.row(1.0, part=part, group=STUDY)]))
    with pytest.raises(ValueError, match=r"metrics.parquet: must be the table of a run's numbers"):
        read_run(runs[0])


def test_no_code_takes_a_key_or_a_cell_apart():
    """Paths of classes and of files have dots and slashes too: these calls name their sign."""
    taken = []
    for file in [*sorted((ROOT / "analysis").rglob("*.py")), ROOT / "train.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            first = node.args[0] if node.args else None
            sign = first.value if isinstance(first, ast.Constant) else None
            splits = node.func.attr in ("split", "rsplit", "partition", "rpartition")
            begins = node.func.attr in ("startswith", "removeprefix", "endswith")
            if splits and sign in ("/", "@", " [", " ± "):
                taken.append(f"{file.name}:{node.lineno}")
            if begins and sign in ("retrieve/", "rerank/", "cost/", "_low", "_high"):
                taken.append(f"{file.name}:{node.lineno}")
    assert taken == []
