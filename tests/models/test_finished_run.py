"""A finished run opened again, earlier formats among them, and what `weights=RUN` refuses."""

import json
from pathlib import Path

import pytest

from gr_mvdr.files import CHECKPOINT
from models.beyond.ranking_losses import MarginRanking
from models.finished_run import FinishedRun
from models.training import CheckpointFile
from models.weights import find_weights
from tests.models.conftest import make_docid


def save(system, folder, **config):
    """Writes the files of a run that trained a system; returns the run."""
    checkpoint = {"state_dict": system.state_dict(), "hyper_parameters": dict(system.hparams)}
    system.on_save_checkpoint(checkpoint)
    CheckpointFile().save_checkpoint(checkpoint, folder / CHECKPOINT)
    (folder / "config.yaml").write_text(json.dumps({"data": {}, **config}))
    (folder / "provenance.json").write_text('{"system": "S", "collection": "C"}')
    (folder / "metrics.json").write_text("{}")
    return FinishedRun.read("run", folder)


def earlier(system, folder, target=None, documents=None, **options):
    """The system of a run whose checkpoint holds the options of an earlier version."""
    system.hparams.update(options)
    target = target or f"{type(system).__module__}.{type(system).__name__}"
    run = save(system, folder, model={"_target_": target})
    return run.load_model(documents, range(len(documents or ())))


def test_a_run_without_weights_and_an_np_table_are_refused(tmp_path):
    """The rows of an NP table are made of documents that the new collection does not have."""
    system = make_docid("titles-np")
    save(system, tmp_path, model={})
    weights = find_weights("weights", str(tmp_path))
    with pytest.raises(ValueError, match="weights=.*: must not be a run of NP decoding"):
        weights.give(system, None)
    Path(tmp_path / CHECKPOINT).unlink()
    with pytest.raises(ValueError, match="must be a trained run, it has no checkpoints"):
        find_weights("weights", str(tmp_path))


def test_an_earlier_search_by_one_vector_named_no_proposer(tools, tmp_path):
    system = tools.make_multi_vector()
    documents, queries = tools.named_documents(), tools.Texts([[5, 6], [7]], "q")
    old = earlier(system, tmp_path, search={"mode": "fde", "refine": 4, "fde_planes": 2})
    for model in (system, old):
        model.index(documents)
    same = system.retrieve(queries, 3, mode="fde", refine=4, fde_planes=2)
    assert old.retrieve(queries, 3) == same


@pytest.mark.parametrize("kind", ["semantic", "quantised"])
def test_an_earlier_plan_named_no_part_and_others_have_moved(tools, tmp_path, kind):
    documents = tools.named_documents()
    system = tools.make_docid(kind, documents, directory=tmp_path / "identifiers")
    scheme, options = type(system.scheme), system.hparams.identifiers
    module = {"semantic": "docids", "quantised": "quantised"}[kind]
    old = earlier(
        system,
        tmp_path,
        documents=documents,
        identifiers={**options, "_target_": f"gr_mvdr.identifiers.{module}.{scheme.__name__}"},
        ranking={"_target_": "gr_mvdr.ranking_losses.MarginRanking", "weight": 1.0},
        search={"normalise": "vocabulary", "plan": {"scores": "first_step", "terms": 3}},
    )
    assert type(old.scheme) is scheme and isinstance(old.ranking_loss, MarginRanking)
    assert old.plan.terms == 3 and old.identifiers == system.identifiers
