"""What tells runs apart: choices in their configuration, and what was typed for them."""

from pathlib import Path

from omegaconf import OmegaConf

from analysis.compare.groups import SHOWN_VALUE, list_typed
from analysis.runs.numbers import make_frame
from analysis.runs.run_folder import Run
from tests.runs import compose_config


def run_of(config=None, overrides=()):
    record = {"system": "S", "collection": "c", "overrides": [*overrides]}
    return Run(Path("run"), config or {}, record, make_frame([]))


def choices_of(line):
    config = compose_config("train", "logger=none", "name=run", *line.split())
    return run_of(OmegaConf.to_container(config, resolve=True)).choices


def test_what_changes_no_result_is_no_choice():
    same = ["data.num_workers=1", "+trainer.enable_progress_bar=false", "analysis=none", "seed=1"]
    assert all(choices_of(line) == choices_of("") for line in same)


def test_files_that_name_the_seed_are_one_choice_of_all_seeds():
    first, second = choices_of("initial=a-seed1"), choices_of("seed=2 initial=a-seed2")
    assert first == second != choices_of("initial=b-seed1")


def test_a_label_says_what_was_typed_in_few_words():
    typed = ["model=s", "data=beir", "data.path=x", "seed=2", "name=y", "analysis=none"]
    typed += ["alignment=top_k", "+model.alignment.k=4", "backbone.name=" + "v" * 100, "~study"]
    name = "v" * (SHOWN_VALUE - 1)
    expected = ["alignment=top_k", "k=4", f"backbone.name={name}…", "study"]
    assert list_typed(run_of(overrides=typed)) == expected
