"""The papers' experiments: they compose, hold the papers' values, are documented, run in small."""

from copy import deepcopy
from functools import cache
from unittest.mock import MagicMock

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from analysis.compare.paper import PAPERS, read_paper
from analysis.reproduce import compose_experiment, makers, read_experiments
from analysis.runs.run_folder import find_runs
from analysis.studies.study import read_curves
from analysis.studies.sweep import CompareRuns
from conf.checks import check_values
from conf.composition import read_experiments as read_files
from gr_mvdr.options import build
from tests.runs import command

NAMES = [name for groups in read_files().values() for name in groups["experiment"]]


@cache
def experiments():
    return {one.name: one for one in read_experiments()}


@pytest.fixture(autouse=True)
def _folders_of_the_user(monkeypatch):
    """The papers' data and earlier runs are not here; values are checked all the same."""
    monkeypatch.setattr("gr_mvdr.options.Path", MagicMock())


def composed(name, *overrides):
    """The values of a job, with what the user has to give."""
    known = experiments().get(name) if not overrides else None
    config = deepcopy(known.config) if known else compose_experiment(name, *overrides)
    with open_dict(config):
        del config["hydra"]
    for key in OmegaConf.missing_keys(config):
        OmegaConf.update(config, key, "GIVEN")
    return OmegaConf.to_container(config, resolve=True)


def jobs(config):
    """The command lines of a sweep's jobs, in order."""
    if not config.hydra.sweeper.params:
        return []
    params = OmegaConf.to_container(config.hydra.sweeper.params, resolve=True)
    typed = [f"{key}={value}" for key, value in params.items()]
    return BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(typed), None)[0]


def jobs_of_models(config):
    """A job of each model of a sweep, and of each of the model's kinds."""
    lines = {}
    for line in jobs(config):
        lines[tuple(w for w in line if w.startswith(("model=", "specific=")))] = line
    return list(lines.values()) or [()]


def check_job(name, line):
    values = composed(name, *line)
    check_values(OmegaConf.create(values))
    if name in experiments():
        assert values["backbone"]["name"] or "bm25" in str(line)
        assert values["output"].startswith("outputs/") and values["resume"]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_composes_and_its_values_and_parts_fit(name):
    one = experiments().get(name)
    config = one.config if one else compose_experiment(name)
    check_job(name, jobs_of_models(config)[0])
    if config.study:
        build("study", OmegaConf.to_container(config.study, resolve=True))
    callback = OmegaConf.to_container(config.hydra.callbacks.compare)
    drawn = CompareRuns(**{k: v for k, v in callback.items() if k != "_target_"})
    read_curves(drawn.curves)
    if drawn.paper:
        assert len(read_paper(drawn.paper).lines)


@pytest.mark.slow
def test_every_further_model_of_a_sweep_composes_and_its_values_fit():
    for name in NAMES:
        for line in jobs_of_models(compose_experiment(name))[1:]:
            check_job(name, line)


def test_every_paper_has_experiments_and_those_that_train_come_first():
    names = list(experiments())
    assert {one.paper for one in experiments().values()} == {"gr_as_mvdr", "aligner", "xtr", "mva"}
    for one in experiments().values():
        first = makers(one, list(experiments().values()))
        assert bool(first) == bool(one.reads), one.name
        assert all(names.index(name) < names.index(one.name) for name in first), one.name
        assert one.about, one.name


def test_all_of_the_papers_numbers_are_read_by_an_experiment():
    lines = [line for file in PAPERS.glob("*.csv") for line in file.read_text().splitlines()]
    tables = {line.partition(",")[0] for line in lines if line[0] != "#"} - {"table"}
    assert tables == {one.numbers for one in experiments().values()} - {None}


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
    asked = [f"experiment={name}", "smoke=true", f"experiments={tmp_path}", *narrower]
    assert command("train.py", *asked) == 0
    (made,) = find_runs(tmp_path / one.folder)
    assert (made / "report.html").is_file() and (tmp_path / one.tables / "comparison.csv").is_file()
    config = OmegaConf.load(made / "config.yaml")
    assert config.data.n_documents == 60 and config.backbone.name is None
    if one.numbers:
        table = (tmp_path / one.tables / "paper_table.md").read_text()
        assert "difference" in table and "paper" in table
