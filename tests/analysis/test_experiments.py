"""Every experiment's sweep composes, its study is built, its curves and its paper can be read."""

from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import OmegaConf

from analysis.comparison.paper import read_paper
from analysis.recipes.recipe import read_recipe
from analysis.studies.curves import Curves, draw_curves
from analysis.studies.study import check_study
from analysis.sweep import CompareRuns, find_swept_values
from conf.resolvers import register_resolvers
from gr_mvdr.parts import build

CONFIGURATIONS = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONFIGURATIONS / "experiment").glob("*.yaml"))
# The sweep's jobs, and what the table of a sweep says that one of them chose.
SWEEPS = {
    "aligner_pruning": (4, {"salience": "relu"}),
    "mva_multipass": (6, {"multipass.reranker": "dpr", "multipass.depth": 10}),
    "mva_multipass_stages": (4, {}),
    "mva_pooling": (10, {"model.pooling.document": "FirstTokens(k=56)"}),
    "mva_projection": (12, {"model.dimension": 128,
        "model.pooling.document": "LearnedTokens(k=24)"}),
    "mva_query_pooling": (5, {"model.pooling.query": "LearnedTokens(k=1)"}),
    "table5": (2, {}),
    "table6": (6, {}),
    "table8": (10, {}),
    "xtr_k": (5, {"model.training_alignment": "InBatchTopK(k=32)"}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def resolvers():
    register_resolvers()


def composed(experiment, *overrides, hydra=False):
    with initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
        arguments = [f"experiment={experiment}", "name=x", "logger=none", *overrides]
        return compose("train", arguments, return_hydra_config=hydra)


def jobs(config):
    """The command lines of a sweep's jobs, in order."""
    found = config.hydra.sweeper.params
    params = OmegaConf.to_container(found, resolve=True) if found else {}
    parsed = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in params.items()])
    lines = [[f"{o.input_line.split('=')[0]}={value}" for value in o.sweep_string_iterator()]
             if o.is_sweep_override() else [o.input_line] for o in parsed]  # fmt: skip
    return list(product(*lines)) if lines else []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_parts_of_an_experiment_can_be_built(experiment):
    config = composed(experiment, hydra=True)
    if config.get("study"):
        build("study", OmegaConf.to_container(config.study, resolve=True))
    callback = OmegaConf.to_container(config.hydra.callbacks.compare)
    drawn = CompareRuns(**{k: v for k, v in callback.items() if k != "_target_"})
    for curves in drawn.curves:
        Curves(**curves)
    if drawn.paper:
        assert read_paper(drawn.paper).rows


def test_every_sweep_is_expected():
    """The papers' recipes, which name their collection, are composed in tests/test_recipes.py."""
    own = [name for name in EXPERIMENTS if read_recipe(name) is None]
    sweeping = [name for name in own if jobs(composed(name, hydra=True))]
    assert sweeping == sorted(SWEEPS)


@pytest.mark.parametrize("experiment", SWEEPS)
def test_every_job_of_a_sweep_composes(experiment):
    number, second = SWEEPS[experiment]
    lines = jobs(composed(experiment, hydra=True))
    assert len(lines) == number
    configs = [composed(experiment, *line) for line in lines]
    texts = [OmegaConf.to_yaml(config) for config in configs]
    assert len(set(texts)) == number, "two jobs of the sweep are the same"
    # What the sweep's table will say of the second job.
    pairs = dict(override.lstrip("+").split("=", 1) for override in lines[1])
    config = OmegaConf.create({key: configs[1][key] for key in configs[1] if key in
                               ("model", "multipass")})  # fmt: skip
    run = type("Run", (), {"config": OmegaConf.to_container(config)})
    assert find_swept_values(run, list(pairs), pairs) == second


@pytest.mark.parametrize(
    ("experiment", "lines"),
    [
        # Lines of each figure: all panels', one for each k_train (null: T5-ColBERT), batch or set.
        ("xtr_k", [5, 5, 5]),
        ("xtr_table5", [5, 5, 5]),
        ("xtr_figure7", [3]),
        ("aligner_figure7", [7]),
    ],
)
def test_the_figures_of_a_sweep_are_drawn_from_its_table(experiment, lines):
    config = composed(experiment, hydra=True)
    study = config.study and OmegaConf.to_container(config.study, resolve=True)
    settings = build("study", study).settings if study else [{}]
    chosen = [dict(word.split("=", 1) for word in line) for line in jobs(config)]
    measures = dict.fromkeys(("recall@100", "mrr@10", "ndcg@10"), 0.5)
    rows = [job | setting | measures for job, setting in product(chosen, settings)]
    drawn = instantiate(config.hydra.callbacks.compare).curves
    figures = [draw_curves(Curves(**curves), rows, "sweep") for curves in drawn]
    assert [len(figure.legends[0].get_texts()) for figure in figures] == lines


def test_a_study_asks_before_training():
    study = composed("aligner_pruning").study
    with pytest.raises(ValueError, match="BM25 has no token index"):
        check_study(study, type("BM25", (), {})())
