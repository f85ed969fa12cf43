"""A finished run opened again, and what another run may take from it (`weights=RUN`)."""

from pathlib import Path

import pytest
import torch

from models.beyond.ranking_losses import MarginRanking
from models.finished_run import FinishedRun
from models.weights import RunWeights, find_weights, save_weights
from tests.models.conftest import make_docid


def test_a_table_of_documents_is_not_taken_to_others():
    """The rows of an NP table are made of documents that the new collection does not have."""
    run = FinishedRun("weights=outputs/np", Path("outputs/np"), {}, {})
    with pytest.raises(ValueError, match="weights=outputs/np: must not be a run of NP decoding"):
        RunWeights(run).give_all(make_docid("titles-np"), None)


def test_a_run_that_trained_nothing_has_no_weights_to_take(tmp_path):
    for part in ("config.yaml", "metrics.json"):
        (tmp_path / part).write_text("{}")
    (tmp_path / "provenance.json").write_text('{"system": "BM25", "collection": "beir"}')
    with pytest.raises(ValueError, match="must be a trained run, it has no checkpoints"):
        find_weights(str(tmp_path))
    assert find_weights(None) is None


def earlier(system, folder, target=None, documents=None, **options):
    """The system of a run whose checkpoint holds the options of an earlier version."""
    system.hparams.update(options)
    save_weights(system, folder)
    target = target or f"{type(system).__module__}.{type(system).__name__}"
    run = FinishedRun("run", folder, {"model": {"_target_": target}}, {})
    return run.load_model(documents, range(len(documents or ())))


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


def test_an_earlier_splade_has_moved(tools, tmp_path):
    system, batch = tools.make_splade(), tools.make_batch()
    old = earlier(system, tmp_path, "models.sparse.SPLADE")
    assert torch.equal(old.score(batch), system.score(batch))


def test_identifiers_of_an_earlier_run_are_taken_over():
    part = {"_target_": "gr_mvdr.identifiers.docids.SemanticDocids", "k": 2}
    run = FinishedRun("initial", Path(), {"model": {"identifiers": part}, "data": {}}, {})
    ours = {"_target_": "gr_mvdr.identifiers.cluster_tree.SemanticDocids", "k": 10}
    config = {"model": {"identifiers": ours}, "data": {}, "backbone": {"name": "t5-small"}}
    assert RunWeights(run).initial_settings(config) == {"model.identifiers.k": 2}
