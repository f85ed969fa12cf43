"""A finished run is analysed again: `python -m analysis.run run=…`."""

import csv
import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pandas import concat

from analysis.questions.alignment_store import AlignmentStore
from analysis.run import analyse_again
from analysis.runs.numbers import read_numbers, write_numbers
from tests.runs import TINY, compose_config, undrawn

SETTINGS = (
    "analysis.pairs=6",
    "analysis.sample_pairs=4",
    "analysis.queries=2",
)


def settings(*overrides):
    config = compose_config("analyse", "run=x", *SETTINGS, "analysis.search_queries=2", *overrides)
    return OmegaConf.to_container(config.analysis, resolve=True)


@pytest.fixture(scope="session")
def runs(finished_run):
    """Runs that were trained without an analysis."""
    return lambda model: finished_run(model, *TINY)


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run in another place."""
    return lambda model: Path(shutil.copytree(runs(model), tmp_path / model))


@pytest.fixture(scope="module")
def analysed(runs, tmp_path_factory):
    """A copy of a run that was analysed once, and its metrics."""

    @cache
    def make(model):
        folder = shutil.copytree(runs(model), tmp_path_factory.mktemp("analysed") / model)
        assert not (folder / "alignments").exists()
        with undrawn():  # tests/test_empty_documents.py draws
            return folder, analyse_again(folder, settings())

    return make


@pytest.mark.parametrize("model", ["t5_colbert", "t5_seal"])
def test_an_old_run_is_analysed_without_training(runs, analysed, model):
    folder, found = analysed(model)
    before = json.loads((runs(model) / "metrics.json").read_text())
    assert json.loads((folder / "metrics.json").read_text()) == found
    kept = {key: value for key, value in before.items() if not key.startswith("analysis/")}
    assert {key: found[key] for key in kept} == kept
    assert "analysis/exact_match/query_to_document/hard" in found
    store = AlignmentStore(folder / "alignments")
    assert len(store) == 6 and (folder / "report.html").stat().st_size > 10_000
    with (folder / "exact_match.csv").open() as file:
        assert list(csv.DictReader(file))
    if model == "t5_seal":
        assert found["analysis/framework/sum_error"] < 1e-4
    # The record's relevance is the model's score, but for generative systems (§8).
    if model == "t5_colbert":
        for number in range(len(store)):
            pair = store[number]
            assert float(pair.relevance) == pytest.approx(float(pair.score), abs=1e-4)


def test_analysing_twice_gives_the_same_and_aligns_once(analysed, tmp_path):
    whole, first = analysed("t5_seal")
    folder = Path(shutil.copytree(whole, tmp_path / "t5_seal"))
    written = (folder / "alignments/pairs.parquet").stat().st_mtime_ns
    with undrawn():
        second = analyse_again(folder, settings())
    assert (folder / "alignments/pairs.parquet").stat().st_mtime_ns == written
    for key, value in first.items():
        if not any(word in key for word in ("_ms", "seconds")):
            assert second[key] == pytest.approx(value, abs=1e-6), key
    only = {"exact_match": {"_target_": "analysis.questions.exact_match.ExactMatch"}}
    part = analyse_again(folder, settings() | {"questions": only})
    assert part.keys() == first.keys(), "what is not asked for stays"
    name, numbers = "analysis/exact_match/query_to_document/hard", read_numbers(folder)
    rows = numbers[numbers["key"] == name]
    write_numbers(folder, concat([numbers, rows.assign(part="idf_99", value=1.0)]))
    part = analyse_again(folder, settings() | {"questions": only})
    assert name in part and f"{name}/idf_99" not in part, "an earlier analysis had other parts"


def test_what_cannot_be_analysed_is_named(run):
    folder = run("t5_colbert")
    config = OmegaConf.load(folder / "config.yaml")
    config.data.fruit = 1
    OmegaConf.save(config, folder / "config.yaml")
    provenance = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps(provenance | {"version": "0.1.7"}))
    with pytest.raises(
        ValueError, match=r"cannot be restored by .*, it was made by 0\.1\.7.*fruit"
    ):
        analyse_again(folder, settings())
