"""Studies as tables and curves: of one run, and of a sweep's runs together."""

import csv
import json
from itertools import product
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from analysis.analysis import Findings
from analysis.figures import Gallery, GalleryEntry, read_gallery
from analysis.runs.run_folder import Run
from analysis.studies.study import (
    Curves,
    check_study,
    draw_curves,
    find_swept_values,
    main_metrics,
    read_curves,
    run_study,
    tabulate_study,
    write_study,
    write_sweep_study,
)
from analysis.studies.sweep import CompareRuns, find_swept_keys
from analysis.tables.comparison import compare_runs
from analysis.tables.rows import describe_value, read_rows

MODEL = SimpleNamespace(paradigm="multi_vector")
DATA = SimpleNamespace(collection=SimpleNamespace(name="fruit"))


class CountingStudy:
    """A study that refuses other models and finds its own settings."""

    def __init__(self, settings: dict):
        assert type(settings) is dict and type(settings["keep"]) is list
        self.settings = settings

    def check(self, model):
        if model.paradigm != "multi_vector":
            raise ValueError("study: another model")

    def __call__(self, model, data, run):
        rows = [{"keep": keep, "mrr@10": keep} for keep in self.settings["keep"]]
        tables = {"study": rows, "study_more": [{"a": 1}]}
        figures = [(Figure(), GalleryEntry("study", "Title", "Caption"))]
        return Findings({"analysis/study/settings": len(rows)}, tables, figures)


@pytest.fixture
def settings(monkeypatch):
    """As Hydra gives them; the class is found under a name of the project's."""
    monkeypatch.setattr("analysis.studies.study.CountingStudy", CountingStudy, raising=False)
    target = "analysis.studies.study.CountingStudy"
    settings = {"_target_": target, "settings": {"keep": [0.5, 1.0]}}
    return OmegaConf.create({"study": settings}).study


def test_a_study_leaves_tables_and_figures_beside_those_of_the_run(settings, tmp_path):
    Gallery(tmp_path / "figures").add(Figure(), GalleryEntry("other", "t", "c"))
    assert run_study(settings, MODEL, DATA, tmp_path) == {"analysis/study/settings": 2}
    assert (tmp_path / "study.csv").read_text().split() == ["keep,mrr@10", "0.5,0.5", "1.0,1.0"]
    assert (tmp_path / "study_more.csv").read_text().split() == ["a", "1"]
    assert "| 0.5 | 0.500 |" in (tmp_path / "study.md").read_text()
    assert [entry.name for entry in read_gallery(tmp_path / "figures")] == ["other", "study"]
    assert (tmp_path / "figures/study.pdf").is_file()


def test_a_study_is_refused_before_training_and_absent_if_not_configured(settings, tmp_path):
    check_study(settings, MODEL)
    with pytest.raises(ValueError, match="study: another model"):
        check_study(settings, SimpleNamespace(paradigm="lexical"))
    check_study(None, MODEL)
    assert run_study(None, MODEL, DATA, tmp_path) == {} and not list(tmp_path.iterdir())


def test_a_table_averages_seeds_and_keeps_null_apart_from_a_missing_setting(tmp_path):
    rows = [{"p": p, "seed": seed, "mrr@10": seed * p} for seed in (1, 3) for p in (0.1, 0.2)]
    rows += [{"p": 0.1, "q": None, "seed": 1, "mrr@10": 7.0, "cost/scoring_flops": 2.5e6}]
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
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("keep", "MRR@10")
    assert legend(figure) == ["lp", "hard"]


def test_panels_labels_and_a_logarithmic_axis():
    labels = {"keep": "β_d", "gate": "gate", "hard": "top-$k", "1": "first"}
    curves = Curves(x="keep", y="recall@1", hue="run", column="gate", log=True, labels=labels)
    rows = [{"run" if key == "seed" else key: v for key, v in row.items()} for row in GATES]
    figure = draw_curves(curves, rows, "title")
    assert [axes.get_title() for axes in figure.axes] == ["lp", r"top-\$k"]
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    assert [figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()] == ["β_d", "R@1"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["0.1", "0.4", "1"]
    # A number is named, a label takes the place of both.
    assert legend(figure) == ["first", "run = 3"]


def test_the_x_axis_may_hold_words_or_a_measure():
    rows = [{"m": m, "mrr@10": 0.1, "seed": 1} for m in ("last", "none", 0.2)]
    figure = draw_curves(Curves(x="m"), rows, "t")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["last", "none", "0.2"]
    assert not legend(figure)
    sizes = ((1, 20, 0.2), (3, 22, 0.4), (1, 10, 0.1))
    rows = [{"pool": b > 15, "seed": s, "cost/index_bytes": b, "mrr@10": m} for s, b, m in sizes]
    line = draw_curves(Curves(x="cost/index_bytes"), rows, "t").axes[0].lines[0]
    assert line.get_xdata().tolist() == [10, 21]
    assert line.get_ydata().tolist() == pytest.approx([0.1, 0.3])


def test_where_chooses_rows_and_null_also_means_a_missing_setting():
    rows = [
        {"mode": "gather", "k": 1, "mrr@10": 0.9},
        {"mode": "impute", "k": 1, "m": "last", "mrr@10": 0.8},
        {"mode": "impute", "k": 1, "m": "zero", "mrr@10": 0.1},
    ]
    figure = draw_curves(Curves(x="k", hue=["mode", "m"], where={"m": ["last", None]}), rows, "t")
    assert legend(figure) == ["gather", "impute, last"]
    with pytest.raises(ValueError, match=r"curves.where=\{'m': 'mean'\}: no row"):
        draw_curves(Curves(x="k", where={"m": "mean"}), rows, "t")
    with pytest.raises(ValueError, match=r"settings share a point of k; they differ in mode, m:"):
        draw_curves(Curves(x="k"), rows, "t")


@pytest.mark.parametrize("key", ["x", "y", "hue", "column", "where"])
def test_an_unknown_column_is_named(key):
    changes = {key: {"depth": 1} if key == "where" else "depth"}
    with pytest.raises(ValueError, match=f"curves.{key}=depth: must be one of gate, keep, seed"):
        draw_curves(Curves(**({"x": "keep", "hue": "gate"} | changes)), GATES, "t")
    with pytest.raises(ValueError, match=r"curves.colour=red: must be one of caption"):
        read_curves({"x": "keep", "colour": "red"})


METRICS = {
    "retrieve/mrr@10": 0.5,
    "retrieve/recall@1": 0.25,
    "retrieve/test_unseen/mrr@10": 0.125,
    "rerank/mrr@10": 0.75,
    "rerank/document_to_query/mrr@10": 0.5,
    "analysis/exact_match/query_to_document/soft": 0.1,
    "cost/train_seconds": 3,
    "cost/joint_flops/mva": 7,
}


def write_run(folder, system, seed, study=None, place="almanac", typed=(), **config):
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create({"seed": seed} | config), folder / "config.yaml")
    provenance = {"system": system, "collection": place, "seed": seed, "overrides": [*typed]}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "metrics.json").write_text(json.dumps(METRICS))
    if study:
        write_study(study, "study", folder)
    return folder


@pytest.fixture
def gates(tmp_path):
    """Two gates, the first with two seeds, each with a study of two settings."""
    for number, (gate, seed) in enumerate([("lp", 1), ("lp", 2), ("hard", 1)]):
        rows = [{"keep_document": keep, "mrr@10": keep / seed} for keep in (0.5, 1.0)]
        config = {"model": {"salience": {"query": {"gate": gate}}}}
        typed = [f"+salience={gate}"]
        write_run(tmp_path / str(number), "ALIGNER", seed, rows, typed=typed, **config)
    return tmp_path


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


CURVES = {"x": "keep_document", "hue": "salience", "title": "Figure 6"}


def finish(sweep, **callback):
    """What Hydra tells the callback of a sweep."""
    compare = CompareRuns(**callback)
    for folder in sorted(sweep.iterdir()):
        compare.on_job_end(OmegaConf.create({"run": str(folder)}), None)
    hydra = {"sweep": {"dir": str(sweep)}, "sweeper": {"params": {"salience": "lp,hard"}}}
    compare.on_multirun_end(OmegaConf.create({"hydra": hydra}))


def test_a_sweep_ends_with_its_studies_as_one_table_and_its_curves(gates, capsys):
    finish(gates, curves=OmegaConf.create([CURVES, CURVES | {"title": "again"}]))
    rows = read(gates / "study.csv")
    assert list(rows[0]) == ["system", "salience", "seed", "keep_document", "mrr@10"]
    assert [list(row.values()) for row in rows][1:4] == [
        ["ALIGNER", "lp", "1", "1.0", "1.0"],
        ["ALIGNER", "lp", "2", "0.5", "0.25"],
        ["ALIGNER", "lp", "2", "1.0", "0.5"],
    ]
    table = (gates / "study.md").read_text()
    assert "| ALIGNER | lp | 0.5 | 0.375 ± 0.177 |" in table
    assert [entry.title for entry in read_gallery(gates / "figures")] == ["Figure 6", "again"]
    files = ["study.md", "figures/study.png", "figures/study_2.png"]
    assert capsys.readouterr().out.splitlines()[-3:] == [str(gates / file) for file in files]


def test_curves_that_cannot_be_drawn_fail_the_sweep(gates):
    with pytest.raises(SystemExit, match="error: .*curves.y=ndcg@10: must be one of system"):
        finish(gates, curves=CURVES | {"y": "ndcg@10"})


def test_a_run_without_a_study_is_one_row_of_its_main_metrics(tmp_path):
    for size in (64, 32):
        write_run(tmp_path / str(size), "MVA", 1, model={"dimension": size})
    comparison = compare_runs([tmp_path])
    assert write_sweep_study(comparison, tmp_path, ["model.dimension"]) == []
    curves = [Curves("model.dimension", "rerank/mrr@10")]
    assert write_sweep_study(comparison, tmp_path, ["model.dimension"], curves)
    assert [row["model.dimension"] for row in read(tmp_path / "study.csv")] == ["32", "64"]
    assert main_metrics(METRICS) == {
        **{"mrr@10": 0.5, "recall@1": 0.25, "rerank/mrr@10": 0.75},
        **{"cost/train_seconds": 3, "cost/joint_flops/mva": 7},
    }


def test_a_sweep_over_collections_ends_with_their_average(tmp_path):
    """Mean over the collections, seed by seed; a measure that one of them lacks has none."""
    for name, first, second in (("arguana", 0.2, 0.4), ("nq", 0.6, None)):
        for seed in (1, 2):
            study = [{"k": 1, "mrr@10": first * seed, "cost/bytes": 4}, {"k": 2, "mrr@10": second}]
            folder = tmp_path / f"runs/{name}{seed}"
            write_run(folder, "XTR", seed, study, name, collection=name)
    comparison = compare_runs([tmp_path / "runs"], mixed=True)
    curves = [Curves("k", hue="collections", where={"collection": "average"})]
    table, _ = write_sweep_study(comparison, tmp_path, ["collection"], curves)
    rows = read(tmp_path / "study.csv")
    assert {row["setting"] for row in rows} == {"arguana", "nq", ""}
    averages = [row for row in rows if row["collection"] == "average"]
    found = [[row[c] for c in ("seed", "collections", "k", "mrr@10")] for row in averages]
    assert found == [
        *(["1", "2", "1", "0.4"], ["1", "2", "2", ""]),
        *(["2", "2", "1", "0.8"], ["2", "2", "2", ""]),
    ]
    # In the table the average has its deviation over seeds: 0.4 and 0.8.
    assert "| average | 1 | 2 | 0.600 ± 0.283 |" in table.read_text()


def test_what_was_swept_is_shown_as_it_was_chosen():
    pooling = {"document": {"_target_": "gr_mvdr.pooling.FirstTokens", "k": 28}}
    model = {"dimension": 64, "training_alignment": None, "pooling": pooling, "sizes": [1, 2]}
    config = {"model": model | {"salience": {"query": {}}}, "seed": 3}
    typed = ["salience=lp", "++pooling@model.pooling.query=first_k"]
    run = Run(None, config, {"system": "MVA", "overrides": typed}, {})
    keys = ["model", "seed", "model.dimension", "model.training_alignment", "salience",
            "model.pooling.document", "pooling@model.pooling.query", "model.sizes"]  # fmt: skip
    assert find_swept_values(run, keys) == {
        "model.dimension": 64,
        "model.training_alignment": None,
        "salience": "lp",
        "model.pooling.document": "FirstTokens(k=28)",
        "pooling@model.pooling.query": "first_k",
        "model.sizes": "[1, 2]",
    }
    assert describe_value({"_target_": "a.B", "c": {"_target_": "D"}}) == "B(c=D())"
    params = {"++model.pooling.document": "{k:1},{k:2}", "model": "a,b"}
    task = ["seed=1,2", "resume=true", "+x=range(3)", "model=a,c", "experiment=e"]
    hydra = {"sweeper": {"params": params}, "overrides": {"task": task}}
    keys = ["model.pooling.document", "model", "seed", "x"]
    assert find_swept_keys(OmegaConf.create({"hydra": hydra})) == keys
