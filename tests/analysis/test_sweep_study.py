import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from analysis.figures import read_gallery
from analysis.runs.run_folder import Run
from analysis.studies.study import write_study
from analysis.studies.sweep import (
    CompareRuns,
    find_swept_keys,
    find_swept_values,
    read_run_rows,
    write_sweep_study,
)
from analysis.tables.comparison import compare_runs
from analysis.tables.rows import describe_value

CURVES = {"x": "keep_document", "hue": "salience", "title": "Figure 6"}
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


def write_run(folder, system, seed, study=None, collection="almanac", **model):
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create({"seed": seed, "model": model}), folder / "config.yaml")
    provenance = {"system": system, "collection": collection, "seed": seed}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "metrics.json").write_text(json.dumps(METRICS))
    if study:
        write_study(study, folder / "study.csv")
    return folder


def gates(folder):
    """Two gates, the first with two seeds, each with a study of two settings."""
    for number, (gate, seed) in enumerate([("lp", 1), ("lp", 2), ("hard", 1)]):
        rows = [{"keep_document": keep, "mrr@10": keep / seed} for keep in (0.5, 1.0)]
        write_run(folder / str(number), "ALIGNER", seed, rows, salience={"query": {"gate": gate}})
    return {folder / "0": {"salience": "lp"}, folder / "1": {"salience": "lp"},
            folder / "2": {"salience": "hard"}}  # fmt: skip


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_studies_of_a_sweep_are_one_table_and_its_curves(tmp_path):
    choices = gates(tmp_path)
    files = write_sweep_study(
        compare_runs([tmp_path]), tmp_path, ["salience", "seed"], choices, [CURVES]
    )
    rows = read(tmp_path / "study.csv")
    assert list(rows[0]) == ["system", "salience", "seed", "keep_document", "mrr@10"]
    assert [list(row.values()) for row in rows] == [
        ["ALIGNER", "lp", "1", "0.5", "0.5"],
        ["ALIGNER", "lp", "1", "1.0", "1.0"],
        ["ALIGNER", "lp", "2", "0.5", "0.25"],
        ["ALIGNER", "lp", "2", "1.0", "0.5"],
        ["ALIGNER", "hard", "1", "0.5", "0.5"],
        ["ALIGNER", "hard", "1", "1.0", "1.0"],
    ]
    table = (tmp_path / "study.md").read_text()
    assert "| ALIGNER | lp | 0.5 | 0.375 ± 0.177 |" in table
    assert "| ALIGNER | hard | 1.0 | 1.000 |" in table
    assert [entry.title for entry in read_gallery(tmp_path / "figures")] == ["Figure 6"]
    assert files == [tmp_path / "study.md", tmp_path / "figures/study.png"]
    assert (tmp_path / "figures/study.pdf").is_file()


def test_several_drawings_have_names_of_their_own(tmp_path):
    choices, other = gates(tmp_path), CURVES | {"x": "salience", "hue": "keep_document"}
    write_sweep_study(compare_runs([tmp_path]), tmp_path, ["salience"], choices, [CURVES, other])
    assert [e.name for e in read_gallery(tmp_path / "figures")] == ["study_1", "study_2"]


def test_a_run_without_a_study_is_one_row_of_its_main_metrics(tmp_path):
    write_run(tmp_path / "a", "MVA", 1, dimension=64)
    write_run(tmp_path / "b", "MVA", 1, dimension=32)
    comparison = compare_runs([tmp_path])
    assert write_sweep_study(comparison, tmp_path, ["model.dimension"], {}) == []
    assert not (tmp_path / "study.csv").exists()
    curves = [{"x": "model.dimension", "y": "rerank/mrr@10"}]
    write_sweep_study(comparison, tmp_path, ["model.dimension"], {}, curves)
    rows = read(tmp_path / "study.csv")
    assert [row["model.dimension"] for row in rows] == ["64", "32"]
    expected = {"mrr@10": "0.5", "recall@1": "0.25", "rerank/mrr@10": "0.75",
                "cost/train_seconds": "3", "cost/joint_flops/mva": "7"}  # fmt: skip
    identity = {"system": "MVA", "model.dimension": "64", "seed": "1"}
    assert rows[0] == identity | expected


def test_collections_are_told_apart(tmp_path):
    study = [{"keep_document": 1.0, "mrr@10": 1.0}]
    write_run(tmp_path / "a", "XTR", 1, study)
    write_run(tmp_path / "b", "XTR", 1, study, collection="nq")
    write_sweep_study(compare_runs([tmp_path], mixed=True), tmp_path, [], {})
    assert [row["setting"] for row in read(tmp_path / "study.csv")] == ["almanac", "nq"]


def test_a_sweep_over_collections_ends_with_their_average(tmp_path):
    """Mean over the collections that have a setting, seed by seed; without studies, of metrics."""
    values = {"arguana": (0.2, 0.4), "nq": (0.6, None)}
    for name, (first, second) in values.items():
        study = [{"k": 1, "mrr@10": first, "cost/bytes": 4}, {"k": 2, "mrr@10": second}]
        for seed in (1, 2):
            study[0]["mrr@10"] = first * seed
            run = write_run(tmp_path / f"runs/{name}{seed}", "XTR", seed, study, name)
            config = OmegaConf.merge(OmegaConf.load(run / "config.yaml"), {"collection": name})
            OmegaConf.save(config, run / "config.yaml")
    comparison = compare_runs([tmp_path / "runs"], mixed=True)
    curves = {"x": "k", "hue": "collections", "where": {"collection": "average"}}
    (table, _) = write_sweep_study(comparison, tmp_path, ["collection"], {}, [curves])
    averages = [row for row in read(tmp_path / "study.csv") if row["collection"] == "average"]
    found = [[row[c] for c in ("seed", "collections", "k", "mrr@10")] for row in averages]
    assert found == [["1", "2", "1", "0.4"], ["1", "2", "2", ""], ["2", "2", "1", "0.8"],
                     ["2", "2", "2", ""]]  # fmt: skip
    assert averages[0]["cost/bytes"] == "4.0"  # fmean of whole numbers
    # In the table the average has its deviation over seeds: 0.4 and 0.8.
    assert "| average | 1 | 2 | 0.600 ± 0.283 |" in table.read_text()
    for run in (tmp_path / "runs").iterdir():
        (run / "study.csv").unlink()
    assert write_sweep_study(comparison, tmp_path, ["collection"], {}) == [tmp_path / "study.md"]
    assert read(tmp_path / "study.csv")[-1]["recall@1"] == "0.25"


def test_what_was_swept_is_shown_as_it_was_chosen():
    pooling = {"document": {"_target_": "gr_mvdr.pooling.FirstTokens", "k": 28}}
    model = {"dimension": 64, "training_alignment": None, "pooling": pooling, "sizes": [1, 2]}
    config = {"model": model | {"salience": {"query": {}}}, "seed": 3}
    run = Run(Path("x"), config, {"system": "MVA"}, {})
    keys = ["model", "seed", "model.dimension", "model.training_alignment", "salience",
            "model.pooling.document", "pooling@model.pooling.query", "model.sizes"]  # fmt: skip
    choices = {"salience": "lp", "pooling@model.pooling.query": "first_k"}
    assert find_swept_values(run, keys, choices) == {
        "model.dimension": 64,
        "model.training_alignment": None,
        "salience": "lp",
        "model.pooling.document": "FirstTokens(k=28)",
        "pooling@model.pooling.query": "first_k",
        "model.sizes": "[1, 2]",
    }
    assert describe_value({"_target_": "a.B", "c": {"_target_": "D"}}) == "B(c=D())"


def test_main_metrics_only():
    row = read_run_rows(SimpleNamespace(path=Path("none"), metrics=METRICS))[0]
    assert "test_unseen/mrr@10" not in row and "rerank/document_to_query/mrr@10" not in row


def test_the_swept_keys_are_those_of_the_configuration_and_of_the_command_line():
    hydra = {
        "sweeper": {"params": {"++model.pooling.document": "{k:1},{k:2}", "model": "a,b"}},
        "overrides": {
            "task": ["seed=1,2", "resume=true", "+x=range(3)", "model=a,c", "experiment=e"]
        },
    }
    assert find_swept_keys(OmegaConf.create({"hydra": hydra})) == [
        "model.pooling.document",
        "model",
        "seed",
        "x",
    ]
    assert find_swept_keys(OmegaConf.create({"hydra": {"sweep": {}}})) == []


def finish(sweep, choices, **callback):
    """What Hydra tells the callback of a sweep."""
    compare = CompareRuns(**callback)
    for folder, chosen in choices.items():
        task = [f"+{key}={value}" for key, value in chosen.items()]
        job = {"overrides": {"task": task}}
        compare.on_job_end(OmegaConf.create({"hydra": job, "run": str(folder)}), None)
    hydra = {"sweep": {"dir": str(sweep)}, "sweeper": {"params": {"salience": "lp,hard"}}}
    compare.on_multirun_end(OmegaConf.create({"hydra": hydra}))


def test_a_sweep_ends_with_its_studies(tmp_path, capsys):
    finish(tmp_path, gates(tmp_path), curves=OmegaConf.create([CURVES]))
    assert {row["salience"] for row in read(tmp_path / "study.csv")} == {"lp", "hard"}
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(tmp_path / "study.md"), str(tmp_path / "figures/study.png")]


def test_curves_that_cannot_be_drawn_fail_the_sweep(tmp_path):
    choices = gates(tmp_path)
    with pytest.raises(SystemExit, match="error: .*curves.y=ndcg@10: must be one of system"):
        finish(tmp_path, choices, curves=CURVES | {"y": "ndcg@10"})
