"""Studies as tables and curves: of one run, and of a sweep's runs together."""

from itertools import product

import pytest
from analysis.tables.comparison import compare_runs
from analysis.tables.rows import read_rows
from omegaconf import OmegaConf

from analysis.figures import read_gallery
from analysis.studies.study import (
    Curves,
    draw_curves,
    read_curves,
    tabulate_study,
    write_study,
    write_sweep_study,
)
from analysis.studies.sweep import CompareRuns
from tests.analysis.test_compare import write_run


def test_a_table_averages_seeds_and_keeps_null_apart_from_a_missing_setting(tmp_path):
    rows = [{"p": p, "seed": seed, "mrr@10": seed * p} for seed in (1, 3) for p in (0.1, 0.2)]
    rows += [{"p": 0.1, "q": "null", "seed": 1, "mrr@10": 7.0, "cost/scoring_flops": 2.5e6}]
    table = tabulate_study(rows, "h")
    assert [table.corner, *table.columns][:3] == ["p", "q", "MRR@10"]
    texts = [[name, *(cell.text for cell in cells)] for name, cells in table.rows]
    # 0.1 and 0.3: mean 0.2, sample deviation 0.2 / √2.
    assert texts == [
        ["0.1", "–", "0.200 ± 0.141", "–"],
        ["0.2", "–", "0.400 ± 0.283", "–"],
        ["0.1", "null", "7.000", "2.500 MFLOPs"],
    ]
    write_study(rows, "h", tmp_path)
    columns = ["p", "seed", "q", "mrr@10", "cost/scoring_flops"]
    assert (tmp_path / "study.csv").read_text().splitlines()[0] == ",".join(columns)
    assert read_rows(tmp_path / "study.csv") == rows


GATES = [
    {"gate": gate, "keep": keep, "seed": seed, "mrr@10": keep / 2 + seed / 10, "recall@1": 0.5}
    for gate, keep, seed in product(["lp", "hard"], [1.0, 0.1, 0.4], [1, 3])
]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []


def test_a_line_for_each_hue_sorted_by_x_with_the_deviation_over_seeds():
    figure = draw_curves(Curves(x="keep", hue="gate"), GATES, "title")
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
    figure = draw_curves(Curves(x="k", hue=["mode", "m"]), rows, "t")
    assert legend(figure) == ["gather", "impute, last", "impute, m = 0.2"]
    with pytest.raises(ValueError, match=r"settings share a point of k: name what distinguishes"):
        draw_curves(Curves(x="k", hue="mode"), rows, "t")


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match="curves.hue=depth: must be one of gate, keep, seed"):
        draw_curves(Curves(x="keep", hue="depth"), GATES, "t")
    with pytest.raises(ValueError, match=r"curves.colour=red: must be one of column"):
        read_curves({"x": "keep", "colour": "red"})


def write_study_run(folder, system, seed, study=None, place="almanac", typed=(), **config):
    metrics = {"retrieve/mrr@10": 0.5, "rerank/mrr@10": 0.75, "cost/train_seconds": 3}
    write_run(folder, system, seed, metrics, config, collection=place, overrides=[*typed])
    if study:
        write_study(study, "study", folder)


@pytest.fixture
def gates(tmp_path):
    """Two gates, the first with two seeds, each with a study of two settings."""
    for number, (gate, seed) in enumerate([("lp", 1), ("lp", 2), ("hard", 1)]):
        rows = [{"keep_document": keep, "mrr@10": keep / seed} for keep in (0.5, 1.0)]
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
    rows = read_rows(gates / "study.csv")
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
    assert [row["model.dimension"] for row in read_rows(tmp_path / "study.csv")] == [32, 64]


def test_a_sweep_over_collections_ends_with_their_average(tmp_path):
    """Mean over the collections, seed by seed; a measure that one of them lacks has none."""
    for name, first, second in (("arguana", 0.2, 0.4), ("nq", 0.6, None)):
        for seed in (1, 2):
            study = [{"k": 1, "mrr@10": first * seed, "cost/bytes": 4}, {"k": 2, "mrr@10": second}]
            folder = tmp_path / f"runs/{name}{seed}"
            write_study_run(folder, "XTR", seed, study, name, collection=name)
    comparison = compare_runs([tmp_path / "runs"])
    curves = [Curves("k", hue="collection")]
    table, _ = write_sweep_study(comparison, tmp_path, ["collection"], curves)
    rows = read_rows(tmp_path / "study.csv")
    assert {row.get("setting") for row in rows} == {"arguana", "nq", None}
    averages = [row for row in rows if row["collection"] == "average"]
    found = [[row.get(c) for c in ("seed", "collections", "k", "mrr@10")] for row in averages]
    assert found == [[1, 2, 1, 0.4], [1, 2, 2, None], [2, 2, 1, 0.8], [2, 2, 2, None]]
    # In the table the average has its deviation over seeds: 0.4 and 0.8.
    assert "| average | 1 | 2 | 0.600 ± 0.283 |" in table.read_text()
