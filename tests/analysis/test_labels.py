"""What tells runs apart, told in few words: from the configurations that commands compose."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from analysis.runs.run_folder import Run
from analysis.tables.labels import SHOWN_VALUE, label_groups
from tests.runs import compose_config


def choices_of(line):
    config = compose_config("train", "logger=none", "name=run", *line.split())
    plain = OmegaConf.to_container(config, resolve=True)
    return Run(Path("run"), plain, {"system": plain["system"], "collection": "c"}, {}).choices


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["alignment=max_sim", "alignment=softmax"], ["alignment=max_sim", "alignment=softmax"]),
        (
            ["alignment=max_sim", "alignment=top_k", "alignment=top_k model.alignment.k=4"],
            ["alignment=max_sim", "alignment=top_k, k=1", "alignment=top_k, k=4"],
        ),
        (
            ["model=aligner salience=lp", "model=aligner salience=hard"],
            ["gate=lp", "gate=hard"],
        ),
        (["model=genre", "model=genre head=pawa"], ["head=plain", "head=pawa"]),
        # One choice that three keys repeat.
        (["query_length=40", "query_length=20"], ["query_length=40", "query_length=20"]),
        (["seed=1", "negatives=bm25"], ["", "negatives=bm25"]),
        (
            ["seed=1", "backbone=pretrained backbone.name=google/t5-v1_1-base"],
            ["backbone.name=null, ", "backbone.name=google/t5-v1_1-base, "],
        ),
        # More differences than a label holds: what most of them share is not told.
        (
            [
                "seed=1",
                "model.optimizer.learning_rate=0.01",
                "data.batch_size=16",
                "model.dimension=64",
                "trainer.max_epochs=3",
            ],
            ["", "learning_rate=0.01", "batch_size=16", "dimension=64", "max_epochs=3"],
        ),
    ],
)
def test_labels_are_a_few_words(commands, expected):
    choices = [choices_of(line) for line in commands]
    labels, notes = label_groups(["S"] * len(choices), choices)
    assert len({*labels}) == len(labels) and not notes
    for label, words in zip(labels, expected, strict=True):
        if words.endswith(", "):
            assert label.startswith(f"S ({words}")
        else:
            assert label == (f"S ({words})" if words else "S")


def test_what_changes_no_result_is_no_label_but_a_note():
    lines = ["data.metrics=[mrr@10]", "data.metrics=[recall@10]", "seed=2"]
    labels, notes = label_groups(["S", "S", "R"], list(map(choices_of, lines)))
    assert labels == ["S", "S #2", "R"]
    assert notes == ["S #2: differs from S in data.metrics"]
    same = ["data.num_workers=1", "+trainer.enable_progress_bar=false", "analysis=none", "seed=1"]
    assert all(choices_of(line) == choices_of("") for line in same)


def test_what_a_folder_brings_is_told_by_the_folder():
    brought = {"initial": "outputs/texts", "tokenizer.path": "outputs/texts/tokenizer.json"}
    labels, _ = label_groups(["S", "S"], [{"initial": "None", "tokenizer.path": "None"}, brought])
    assert labels == ["S (initial=null)", "S (initial=outputs/texts)"]
    other = brought | {"tokenizer.path": "vocabulary.json"}
    labels, _ = label_groups(["S", "S"], [{"initial": "None", "tokenizer.path": "None"}, other])
    assert labels[1] == "S (initial=outputs/texts, tokenizer.path=vocabulary.json)"


def test_keys_that_share_their_last_word_are_told_by_more_of_it():
    runs = [{"model.a.k": "1", "data.b.k": "1"}, {"model.a.k": "2", "data.b.k": "3"}]
    labels, _ = label_groups(["S", "S"], runs)
    assert labels == ["S (k=1, b.k=1)", "S (k=2, b.k=3)"]


def test_a_long_value_is_cut_and_labels_stay_distinct():
    runs = [{"x": "v" * 100}, {"x": "v" * 99 + "w"}]
    labels, notes = label_groups(["S", "S"], runs)
    assert labels[0] == f"S (x={'v' * (SHOWN_VALUE - 1)}…)" and labels[1] == f"{labels[0]} #2"
    assert notes == [f"{labels[1]}: differs from {labels[0]} in x"]
    assert label_groups(["S", "S", "S #2"], [{"study.n": n} for n in "123"])[0] == [
        *("S", "S #2", "S #2 #2")
    ]


def test_files_that_name_the_seed_are_one_choice_of_all_seeds():
    first, second = choices_of("initial=a-seed1"), choices_of("seed=2 initial=a-seed2")
    assert first == second != choices_of("initial=b-seed1")
