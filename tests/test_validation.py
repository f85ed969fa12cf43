"""Validation: what it searches is what the finished run finds, and which step a run keeps."""

from types import SimpleNamespace

import pandas
import pytest

from analysis.runs.run_folder import read_run
from data_modules.validation import ValidationOptions
from gr_mvdr.evaluation.ranking import evaluate
from models.saved_model import restore_run
from models.training import CURVES
from models.validation import Validation

CASES = [("t5_colbert", "budget=1e9"), ("t5_colbert", "every=1.0"), ("dsi_semantic", "every=null")]
CASES += [("t5_seal", "budget=0.2"), ("cross_encoder", "every=null")]


@pytest.mark.parametrize(("model", "option"), CASES)
def test_a_validation_equals_a_search_of_the_finished_run(finished_run, model, option):
    run = finished_run(model, f"validation.{option}")
    system, data = restore_run(run)
    (row,) = pandas.read_csv(run / CURVES).dropna(subset="validation/loss").to_dict("records")
    validation = Validation(data, run)
    validation.on_fit_start(
        SimpleNamespace(strategy=SimpleNamespace(broadcast=lambda x: x)), system
    )
    chosen, split = validation.chosen, data.validation_split
    queries, qrels = chosen.queries, data.evaluation.judgements(split, chosen.queries)
    if chosen.candidates:
        ranking = system.rerank(queries, data.documents, chosen.candidates)
    else:
        system.index(data.documents.select(data.known_documents))
        ranking = system.retrieve(queries, 100, among=chosen.documents)
    found = evaluate(ranking, qrels, ["mrr@10", "ndcg@10", "recall@100"])
    pool = "pool_" * (chosen.documents is not None)
    for name, value in found.items():
        assert row[f"validation/{pool}{name}"] == pytest.approx(value, abs=1e-9)
    assert bool(pool) == ((model, option) == CASES[1])


@pytest.mark.parametrize("model", ["t5_colbert", "t5_seal"])
def test_validation_leaves_the_training_as_it_was(finished_run, model):
    options = "validation.keep=last", "data.validation_split=null"
    kept, without = (read_run(finished_run(model, option)).metrics for option in options)
    for name in without.keys() - {name for name in without if name.startswith("cost/")}:
        assert kept[name] == pytest.approx(without[name], abs=1e-6), name


def test_accumulated_batches_are_validated_after_their_step(tmp_path, monkeypatch):
    validation, steps = Validation(SimpleNamespace(validation=ValidationOptions()), tmp_path), []
    validation.chosen, validation.steps = SimpleNamespace(), 2
    monkeypatch.setattr(
        validation, "validate", lambda trainer, _: steps.append(trainer.global_step)
    )
    for batch in range(1, 9):  # two a step
        validation.on_train_batch_end(SimpleNamespace(global_step=batch // 2), None)
    assert sorted({*steps}) == [2, 4]


def test_the_best_step_is_kept_ties_go_to_the_earlier_and_patience_ends(tmp_path):
    def after(*values, keep="best", patience=2):
        options = ValidationOptions(keep=keep, patience=patience)
        validation = Validation(SimpleNamespace(validation=options), tmp_path)
        validation.chosen = SimpleNamespace(documents=None)
        trainer = SimpleNamespace(should_stop=False)
        for step, value in enumerate(values, start=1):
            validation.history.append((step, value))
            validation._lose_patience(trainer)
        return validation, trainer.should_stop

    validation, stopped = after(0.2, 0.5, 0.5)
    assert validation.kept == tmp_path / "step-2.ckpt" and not stopped
    assert (
        validation.verdict == "kept step 2 of 3: validation/mrr@10 0.500, the best of 3 validations"
    )
    assert after(0.2, 0.5, 0.5, 0.4)[1] and not after(0.2, 0.5, 0.5, 0.4, patience=None)[1]
    validation, _ = after(0.2, 0.5)
    assert validation.kept is None, "the model has these weights"
    assert validation.verdict.endswith("validations and the last: a longer training may find more")
    validation, _ = after(0.5, 0.2, keep="last")
    assert validation.kept is None
    assert validation.verdict == "kept step 2 of 2: validation/mrr@10 0.200, the best is 1"
