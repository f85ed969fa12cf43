"""What a run without training may take from a trained one (`weights=RUN`)."""

from pathlib import Path

import pytest

from models.finished_run import FinishedRun
from models.weights import RunWeights, find_weights
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
