"""Validation: what it searches is what the finished run finds, and which step a run keeps."""

import shutil
from types import SimpleNamespace

import pandas
import pytest

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
