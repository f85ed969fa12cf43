"""What tells runs apart, told in few words: from the configurations that commands compose."""

from pathlib import Path

import pytest
from analysis.tables.comparison import SHOWN_VALUE, label_groups
from omegaconf import OmegaConf

from analysis.runs.run_folder import Run
from tests.runs import compose_config


def choices_of(line):
    config = compose_config("train", "logger=none", "name=run", *line.split())
    plain = OmegaConf.to_container(config, resolve=True)
    return Run(Path("run"), plain, {"system": plain["system"], "collection": "c"}, {}).choices


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (
            ["alignment=max_sim", "alignment=top_k", "alignment=top_k model.alignment.k=4"],
            ["alignment=max_sim", "k=1", "k=4"],
        ),
        # A value that most of them share is not named.
        (
            ["seed=1", "data.batch_size=16", "model.dimension=64", "trainer.max_epochs=3"],
            ["", "batch_size=16", "dimension=64", "max_epochs=3"],
        ),
    ],
)
def test_labels_are_a_few_words(commands, expected):
    labels = label_groups(["S"] * len(commands), list(map(choices_of, commands)))
    assert labels == [f"S ({words})" if words else "S" for words in expected]


def test_what_changes_no_result_is_no_choice():
    same = ["data.num_workers=1", "+trainer.enable_progress_bar=false", "analysis=none", "seed=1"]
    assert all(choices_of(line) == choices_of("") for line in same)


def test_a_long_value_is_cut_and_labels_stay_distinct():
    runs = [{"x": value * 100, "y": value} for value in "vw"]
    labels = label_groups(["S", "S"], runs)
    assert labels == [f"S (x={value * (SHOWN_VALUE - 1)}…, y={value})" for value in "vw"]
    assert label_groups(["S", "S", "S #2"], [{}] * 3) == ["S", "S #2", "S #2 #2"]


def test_files_that_name_the_seed_are_one_choice_of_all_seeds():
    first, second = choices_of("initial=a-seed1"), choices_of("seed=2 initial=a-seed2")
    assert first == second != choices_of("initial=b-seed1")
