from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from analysis.analysis import Findings
from analysis.figures import Gallery, GalleryEntry, read_gallery
from analysis.studies.study import (
    average_seeds,
    check_study,
    order_columns,
    run_study,
    tabulate_study,
    write_study,
)
from analysis.tables.metric_names import Statistic
from analysis.tables.rows import read_rows

ROWS = [
    {"mode": "gather", "neighbours": 10, "mrr@10": 0.5, "cost/query_ms": 1.25},
    {"mode": "impute", "neighbours": 10, "imputation": None, "mrr@10": 0.25},
]


class CountingStudy:
    """A study that says what it was called with."""

    def __init__(self, settings: dict):
        assert type(settings) is dict and type(settings["keep"]) is list
        self.settings = settings

    def check(self, model):
        if model.paradigm != "multi_vector":
            raise ValueError("study: another model")

    def __call__(self, model, data, run):
        assert (model.paradigm, data, type(run)) == ("multi_vector", "data", type(Path()))
        rows = [{"keep": keep, "mrr@10": keep} for keep in self.settings["keep"]]
        entry = GalleryEntry("study", "Title", "Caption")
        metrics = {"analysis/study/settings": len(rows)}
        table = tabulate_study(rows, "heading")
        tables = {"study": rows, "study_more": [{"a": 1}]}
        return Findings(metrics, tables, [(Figure(), entry)]), table


@pytest.fixture
def settings(monkeypatch):
    """As Hydra gives them; the class is found under a name of the project's."""
    monkeypatch.setattr("analysis.studies.study.CountingStudy", CountingStudy, raising=False)
    settings = {
        "_target_": "analysis.studies.study.CountingStudy",
        "settings": {"keep": [0.5, 1.0]},
    }
    return OmegaConf.create({"study": settings}).study


MODEL = SimpleNamespace(paradigm="multi_vector")


def test_a_study_leaves_a_table_a_figure_and_its_metrics(settings, tmp_path):
    assert run_study(settings, MODEL, "data", tmp_path) == {"analysis/study/settings": 2}
    assert (tmp_path / "study.csv").read_text().splitlines() == [
        "keep,mrr@10",
        "0.5,0.5",
        "1.0,1.0",
    ]
    assert (tmp_path / "study_more.csv").read_text().splitlines() == ["a", "1"]
    assert (tmp_path / "study.md").read_text().splitlines()[:5] == [
        "## heading",
        "",
        "| keep | MRR@10 |",
        "|---|---:|",
        "| 0.5 | 0.500 |",
    ]
    assert [entry.name for entry in read_gallery(tmp_path / "figures")] == ["study"]
    assert (tmp_path / "figures/study.pdf").is_file()
    assert not list(tmp_path.rglob("*.partial"))


def test_a_study_keeps_the_figures_that_a_run_has(settings, tmp_path):
    Gallery(tmp_path / "figures").add(Figure(), GalleryEntry("other", "t", "c"))
    run_study(settings, MODEL, "data", tmp_path)
    assert [e.name for e in read_gallery(tmp_path / "figures")] == ["other", "study"]


def test_no_study_is_made_where_none_is_asked_for(tmp_path):
    check_study(None, MODEL)
    assert run_study(None, MODEL, "data", tmp_path) == {} and not list(tmp_path.iterdir())


def test_a_study_refuses_a_model_before_it_is_trained_and_after(settings, tmp_path):
    other = SimpleNamespace(paradigm="lexical")
    for make in (check_study, lambda *a: run_study(*a, "data", tmp_path)):
        with pytest.raises(ValueError, match="study: another model"):
            make(settings, other)
    check_study(settings, MODEL)
    assert not list(tmp_path.iterdir())


def test_rows_are_read_as_they_were_written(tmp_path):
    assert order_columns(ROWS) == ["mode", "neighbours", "imputation", "mrr@10", "cost/query_ms"]
    write_study(ROWS, tmp_path / "study.csv")
    assert read_rows(tmp_path / "study.csv") == ROWS


def test_seeds_are_averaged_and_nothing_else():
    rows = [{"seed": seed, "p": p, "mrr@10": seed * p} for seed in (1, 3) for p in (0.1, 0.2)]
    rows.append({"p": 0.1, "q": None, "seed": 1, "mrr@10": 7.0})
    found = average_seeds(rows)
    assert [settings for settings, _ in found] == [{"p": 0.1}, {"p": 0.2}, {"p": 0.1, "q": None}]
    # 0.1 and 0.3: mean 0.2, sample deviation 0.2 / √2.
    assert found[0][1]["mrr@10"].mean == pytest.approx(0.2)
    assert found[0][1]["mrr@10"].std == pytest.approx(0.2 / 2**0.5)
    assert found[2][1]["mrr@10"] == Statistic(7.0, None)


def test_a_table_has_units_and_dashes():
    row = {"mode": "impute", "mrr@10": 0.1, "cost/scoring_flops": 2.5e6, "cost/candidates": 12.4}
    table = tabulate_study([*ROWS, row], "h")
    assert table.corner == "mode"
    assert table.columns[:3] == ["neighbours", "imputation", "MRR@10"]
    texts = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert texts["gather"] == ["10", "–", "0.500", "1.2 ms", "–", "–"]
    impute = [[cell.text for cell in cells] for name, cells in table.rows if name == "impute"]
    assert impute[0][:3] == ["10", "null", "0.250"]
    assert impute[1] == ["–", "–", "0.100", "–", "2.500 MFLOPs", "12"]
