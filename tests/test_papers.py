"""The papers' experiments: they compose, hold the papers' values, are documented, run in small."""

from functools import cache
from itertools import product
from statistics import fmean

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from analysis import reproduce
from analysis.reproduce import compose_experiment, makers, read_experiments, run_small
from analysis.runs.run_folder import find_runs
from analysis.studies.study import read_curves
from analysis.studies.sweep import CompareRuns
from analysis.tables.paper import PAPERS, read_paper
from conf.checks import check_values
from conf.composition import read_experiments as read_files
from gr_mvdr.options import build
from models.finished_run import restore_run
from tests.runs import NO_ANALYSIS, TINY, small
from train import train

NAMES = [
    n for paper, groups in read_files().items() if paper != "ours" for n in groups["experiment"]
]


@cache
def experiments():
    return {one.name: one for one in read_experiments()}


@pytest.fixture(autouse=True)
def _folders_of_the_user(monkeypatch):
    """The papers' data and earlier runs are not here; values are checked all the same."""
    monkeypatch.setattr("conf.checks._check_there", lambda *_: None)


def composed(name, *overrides):
    """The values of a job, with what the user has to give."""
    config = compose_experiment(name, *overrides)
    with open_dict(config):
        del config["hydra"]
    for key in OmegaConf.missing_keys(config):
        OmegaConf.update(config, key, "GIVEN")
    return OmegaConf.to_container(config, resolve=True)


def jobs(config):
    """The command lines of a sweep's jobs, in order."""
    params = config.hydra.sweeper.params
    params = OmegaConf.to_container(params, resolve=True) if params else {}
    parsed = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in params.items()])
    lines = [[f"{o.input_line.split('=')[0]}={value}" for value in o.sweep_string_iterator()]
             if o.is_sweep_override() else [o.input_line] for o in parsed]  # fmt: skip
    return list(product(*lines)) if lines else []


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_composes_and_its_values_and_parts_fit(name):
    one = experiments().get(name)
    config = one.config if one else compose_experiment(name)
    # A job of each model, and of each of its kinds.
    lines = {
        tuple(w for w in line if w.startswith(("model=", "specific="))): line
        for line in jobs(config)
    }
    for line in lines.values() or [()]:
        values = composed(name, *line)
        check_values(OmegaConf.create(values))
        if one:
            assert values["backbone"]["name"] or "bm25" in str(line)
            assert values["output"].startswith("outputs/") and values["resume"]
    if config.study:
        build("study", OmegaConf.to_container(config.study, resolve=True))
    callback = OmegaConf.to_container(config.hydra.callbacks.compare)
    drawn = CompareRuns(**{k: v for k, v in callback.items() if k != "_target_"})
    read_curves(drawn.curves)
    if drawn.paper:
        assert read_paper(drawn.paper).rows


def test_every_paper_has_experiments_and_those_that_train_come_first():
    names = list(experiments())
    assert {one.paper for one in experiments().values()} == {"gr_as_mvdr", "aligner", "xtr", "mva"}
    assert len(names) == 46 and len(NAMES) == 57
    for one in experiments().values():
        first = makers(one, list(experiments().values()))
        assert bool(first) == bool(one.reads), one.name
        assert all(names.index(name) < names.index(one.name) for name in first), one.name
        assert one.about, one.name


def test_the_papers_hyper_parameters_reach_the_systems():
    seal = composed("table5_nq320k", "model=t5_seal")
    assert seal["data"]["batch_size"] == 256 and seal["data"]["examples"]["n_spans"] == 5
    assert seal["data"]["examples"]["separate"], "of spans, not pairs"
    assert (seal["model"]["beam_size"], seal["trainer"]["max_epochs"]) == (5, 3)
    seal = composed("table5_msmarco", "model=t5_seal")
    assert seal["model"]["optimizer"]["learning_rate"] == 1e-4
    assert seal["data"]["examples"]["n_spans"] == 10
    aligner = composed("aligner_table6")
    assert aligner["trainer"]["max_steps"] == 25_000
    assert aligner["model"]["search"]["neighbours"] == 4000
    xtr = composed("xtr_table2_msmarco", "model=xtr")
    assert (xtr["trainer"]["max_steps"], xtr["model"]["search"]["neighbours"]) == (50_000, 40_000)
    colbert = composed("xtr_table2_msmarco", "model=t5_colbert")
    assert colbert["model"]["search"]["neighbours"] == 4000  # of Qian et al.
    mva = composed("mva_table6_stages", "model=mva")
    assert (mva["query_length"], mva["document_length"]) == (32, 112)
    assert mva["model"]["optimizer"]["learning_rate"] == 3e-5
    assert mva["data"]["candidates"] == 1000 and not mva["data"]["add_relevant"]


def test_dsi_and_dsi_pawa_differ_in_the_head_alone():
    dsi, pawa = (composed("table6_nq320k", f"model={m}") for m in ("dsi_semantic", "dsi_pawa"))
    heads = [one["model"].pop("head")["_target_"] for one in (dsi, pawa)]
    assert heads[0] != heads[1] and pawa.pop("system") != dsi.pop("system") and dsi == pawa
    nci = composed("table6_nq320k_nci", "model=dsi_pawa")["model"]
    assert (nci["identifiers"]["k"], nci["head"]["form"], nci["beam_size"]) == (30, "nci", 100)


def test_all_of_the_papers_numbers_are_read_by_an_experiment():
    lines = [line for file in PAPERS.glob("*.csv") for line in file.read_text().splitlines()]
    tables = {line.partition(",")[0] for line in lines if line[0] != "#"} - {"table"}
    assert tables == {one.numbers for one in experiments().values()} - {None}


@pytest.mark.parametrize(
    ("number", "averages"),
    [
        # As the paper prints them below its columns.
        (7, [47.3, 46.3, 38.4, 31.9, 27.0, 47.1, 44.2, 40.9, 35.9]),
        (8, [49.5, 49.1, 43.0, 37.3, 33.0, 49.0, 45.4, 42.3, 37.9]),
        (9, [50.3, 49.8, 44.4, 38.9, 34.7, 49.9, 46.8, 43.9, 39.8]),
        (10, [51.3, 50.9, 46.2, 41.4, 37.7, 50.8, 45.1, 40.9, 36.4, 52.6]),
        (11, [42.0, 45.4, 46.9, 45.5, 43.1, 41.1, 36.3, 33.4, 30.5]),
        # There the paper divides the sum of 14 by 15.
        (13, [v * 15 / 14 for v in (43.6, 42.4, 34.6, 28.6, 24.7, 43.6, 43.4, 43.4, 41.2)]),
        (2, [47.1, 49.2]),
    ],
)
def test_aligners_grids_have_the_papers_averages(number, averages):
    columns = {}
    for row in read_paper(f"aligner_table{number}").rows:
        (strategy,) = row.study.values()
        columns.setdefault(strategy, []).append(row.values["ndcg@10"])
    means = [fmean(v for v in values if v is not None) for values in columns.values()]
    assert means == pytest.approx(averages, abs=0.07)


def test_smoke_tests_run_what_an_experiment_reads_before_it(tmp_path, monkeypatch):
    asked = []

    def run(one, folder):
        asked.append(one.name)
        return "broken" if one.name == "xtr_table3" else None

    monkeypatch.setattr(reproduce, "read_experiments", lambda: list(experiments().values()))
    monkeypatch.setattr(reproduce, "run_small", run)
    assert reproduce.smoke_test(["xtr_table3", "table5_nq320k"], tmp_path) == ["xtr_table3"]
    assert asked == ["table5_nq320k", "xtr_table2_msmarco", "xtr_table3"]


# One experiment of each paper, the smallest; what narrows its sweep.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "narrower"),
    [
        ("figure2_nq320k", []),
        ("aligner_table6", ["trained=top_k"]),
        ("xtr_table4_training", []),
        ("mva_table2", ["model.dimension=16"]),
    ],
)
def test_an_experiment_of_each_paper_runs_in_small(name, narrower, tmp_path):
    one = experiments()[name]
    assert run_small(one, tmp_path, *narrower) is None
    (made,) = find_runs(tmp_path / one.folder)
    config = OmegaConf.load(made / "config.yaml")
    assert config.data.n_documents == 60 and config.backbone.name is None
    if one.numbers:
        table = (tmp_path / one.tables / "paper_table.md").read_text()
        assert "difference" in table and "paper" in table


def test_weights_of_another_size_and_a_run_of_taken_weights_are_named(tmp_path, finished_run):
    trained = finished_run("t5_colbert", *TINY)
    keys = ["model=t5_colbert", *TINY, *NO_ANALYSIS, f"weights={trained}"]
    with pytest.raises(ValueError, match=r"weights=.*size mismatch"):
        train(small(tmp_path, *keys, "model.dimension=64", name="size"))
    taken = train(small(tmp_path, *keys, name="taken")).path
    with pytest.raises(FileNotFoundError, match=rf"weights={trained}, name that run"):
        restore_run(taken)
