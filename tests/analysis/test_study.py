"""Studies as tables and curves: of one run, and of a sweep's runs together."""

from itertools import product

import pytest
from omegaconf import OmegaConf

from analysis.compare.groups import compare_runs
from analysis.figures import read_gallery
from analysis.runs.numbers import make_frame
from analysis.studies.study import (
    Curves,
    StudyTable,
    draw_curves,
    read_curves,
    read_study,
    study_rows,
    tabulate_study,
    write_study,
    write_sweep_study,
)
from analysis.studies.sweep import CompareRuns
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.measures import costs
from tests.analysis.test_claims import keep_study
from tests.analysis.test_compare import write_run
from tests.runs import read_lines_of

METRICS = {name: ranking_metric(name) for name in ("mrr@10", "recall@1")}


def table_of(rows):
    """A study's table from rows of settings and metrics."""
    found = []
    for row in rows:
        setting = {k: v for k, v in row.items() if k not in (*METRICS, "flops")}
        rows = [METRICS[k].row(v) for k, v in row.items() if k in METRICS]
        rows += costs({"scoring_flops": row["flops"]}) if "flops" in row else []
        found += study_rows(setting, rows)
    return StudyTable.of(*read_study(make_frame(found)))


def test_a_table_averages_seeds_and_keeps_null_apart_from_a_missing_setting(tmp_path):
    rows = [{"p": p, "seed": seed, "mrr@10": seed * p} for seed in (1, 3) for p in (0.1, 0.2)]
    rows += [{"p": 0.1, "q": None, "seed": 1, "mrr@10": 7.0, "flops": 2.5e6}]
    study = table_of(rows)
    header, *lines = tabulate_study(study, "h").lines
    assert [cell.text for cell in header] == ["p", "q", "MRR@10", "cost scoring flops"]
    texts = [[cell.text for cell in line] for line in lines]
    # 0.1 and 0.3: mean 0.2, sample deviation 0.2 / √2.
    assert texts == [
        ["0.1", "–", "0.200 ± 0.141", "–"],
        ["0.2", "–", "0.400 ± 0.283", "–"],
        ["0.1", "null", "7.000", "2.500 MFLOPs"],
    ]
    write_study(study, "h", tmp_path)
    last = {"p": 0.1, "seed": 1, "q": "null", "mrr@10": 7.0, "cost/scoring_flops": 2.5e6}
    assert read_lines_of(tmp_path / "study.csv")[-1] == last


GATES = [
    {"gate": gate, "keep": keep, "seed": seed, "mrr@10": keep / 2 + seed / 10, "recall@1": 0.5}
    for gate, keep, seed in product(["lp", "hard"], [1.0, 0.1, 0.4], [1, 3])
]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []


def test_a_line_for_each_hue_sorted_by_x_with_the_deviation_over_seeds():
    figure = draw_curves(Curves(x="keep", hue="gate"), table_of(GATES), "title")
    (axes,) = figure.axes
    line = axes.lines[0]
    assert line.get_xdata().tolist() == [0.1, 0.4, 1.0]
    assert line.get_ydata().tolist() == pytest.approx([0.25, 0.4, 0.7])
    # The sample deviation of 0.1 and 0.3 is 0.2 / √2: a whisker reaches that far to either side.
    low, high = axes.collections[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 0.2 / 2**0.5)
    assert legend(figure) == ["lp", "hard"]


def test_a_line_is_named_by_the_settings_that_a_row_has():
    rows = [
        {"mode": "gather", "k": 1, "mrr@10": 0.9},
        {"mode": "impute", "k": 1, "m": "last", "mrr@10": 0.8},
        {"mode": "impute", "k": 1, "m": 0.2, "mrr@10": 0.1},
    ]
    rows = table_of(rows)
    figure = draw_curves(Curves(x="k", hue=["mode", "m"]), rows, "t")
    assert legend(figure) == ["gather", "impute, last", "impute, m = 0.2"]
    with pytest.raises(ValueError, match=r"settings share a point of k: name what distinguishes"):
        draw_curves(Curves(x="k", hue="mode"), rows, "t")


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match="curves.hue=depth: must be one of gate, keep, seed"):
        draw_curves(Curves(x="keep", hue="depth"), table_of(GATES), "t")
    with pytest.raises(ValueError, match=r"curves.colour=red: must be one of column"):
        read_curves({"x": "keep", "colour": "red"})


def write_study_run(folder, system, seed, study=None, place="almanac", typed=(), **config):
    metrics = {"retrieve/mrr@10": 0.5, "rerank/mrr@10": 0.75, "cost/train_seconds": 3}
    write_run(folder, system, seed, metrics, config, collection=place, overrides=[*typed])
    if study:
        keep_study(folder, study)


@pytest.fixture
def gates(tmp_path):
    """Two gates, the first with two seeds, each with a study of two settings."""
    for number, (gate, seed) in enumerate([("lp", 1), ("lp", 2), ("hard", 1)]):
        rows = [({"keep_document": keep}, keep / seed) for keep in (0.5, 1.0)]
        config = {"model": {"salience": {"query": {"gate": gate}}}}
        typed = [f"+salience={gate}"]
        write_study_run(tmp_path / str(number), "ALIGNER", seed, rows, typed=typed, **config)
    return tmp_path


CURVES = {"x": "keep_document", "hue": "salience"}


def finish(sweep, **callback):
    """What Hydra tells the callback of a sweep."""
    compare = CompareRuns(**callback)
    for folder in sorted(sweep.iterdir()):
        compare.on_job_end(OmegaConf.create({"run": str(folder)}), None)
    hydra = {"sweep": {"dir": str(sweep)}, "sweeper": {"params": {"salience": "lp,hard"}}}
    compare.on_multirun_end(OmegaConf.create({"hydra": hydra}))


def test_a_sweep_ends_with_its_studies_as_one_table_and_its_curves(gates):
    finish(gates, curves=OmegaConf.create([CURVES, CURVES | {"column": "system"}]))
    rows = read_lines_of(gates / "study.csv")
    assert list(rows[0]) == ["system", "salience", "seed", "keep_document", "mrr@10"]
    assert [list(row.values()) for row in rows][1:4] == [
        ["ALIGNER", "lp", 1, 1.0, 1.0],
        ["ALIGNER", "lp", 2, 0.5, 0.25],
        ["ALIGNER", "lp", 2, 1.0, 0.5],
    ]
    table = (gates / "study.md").read_text()
    assert "| ALIGNER | lp | 0.5 | 0.375 ± 0.177 |" in table
    titles = [entry.title for entry in read_gallery(gates / "figures")]
    assert titles == ["MRR@10 by keep_document"] * 2


def test_curves_that_cannot_be_drawn_fail_the_sweep(gates):
    with pytest.raises(SystemExit, match="error: .*curves.y=ndcg@10: must be one of system"):
        finish(gates, curves=CURVES | {"y": "ndcg@10"})


def test_a_run_without_a_study_is_one_row_of_its_main_metrics(tmp_path):
    for size in (64, 32):
        write_study_run(tmp_path / str(size), "MVA", 1, model={"dimension": size})
    comparison = compare_runs([tmp_path])
    assert write_sweep_study(comparison, tmp_path, ["model.dimension"]) == []
    curves = [Curves("model.dimension", "rerank/mrr@10")]
    assert write_sweep_study(comparison, tmp_path, ["model.dimension"], curves)
    assert [row["model.dimension"] for row in read_lines_of(tmp_path / "study.csv")] == [32, 64]


def test_a_sweep_over_collections_ends_with_their_average(tmp_path):
    """Mean over the collections that have the setting, seed by seed."""
    for name, first, second in (("arguana", 0.2, 0.4), ("nq", 0.6, None)):
        for seed in (1, 2):
            study = [({"k": 1}, first * seed)] + ([({"k": 2}, second)] if second else [])
            folder = tmp_path / f"runs/{name}{seed}"
            write_study_run(folder, "XTR", seed, study, name, collection=name)
    comparison = compare_runs([tmp_path / "runs"])
    curves = [Curves("k", hue="collection")]
    table, _ = write_sweep_study(comparison, tmp_path, ["collection"], curves)
    rows = read_lines_of(tmp_path / "study.csv")
    assert {row.get("setting") for row in rows} == {"arguana", "nq", None}
    averages = [row for row in rows if row["collection"] == "average"]
    found = [[row.get(c) for c in ("seed", "collections", "k", "mrr@10")] for row in averages]
    assert found == [[1, 2, 1, 0.4], [1, 1, 2, 0.4], [2, 2, 1, 0.8], [2, 1, 2, 0.4]]
    # In the table the average has its deviation over seeds: 0.4 and 0.8.
    assert "| average | 1 | 2 | 0.600 ± 0.283 |" in table.read_text()
