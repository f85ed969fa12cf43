"""What `weights=RUN` refuses."""

import pytest

from gr_mvdr.files import CHECKPOINT
from models.weights import find_weights
from tests.models.conftest import make_docid


def test_a_run_without_weights_and_an_np_table_are_refused(tmp_path):
    """The rows of an NP table are made of documents that the new collection does not have."""
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "provenance.json").write_text('{"system": "S", "collection": "C"}')
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a trained run, it has no checkpoints"):
        find_weights("weights", str(tmp_path))
    (tmp_path / CHECKPOINT).parent.mkdir()
    (tmp_path / CHECKPOINT).touch()
    with pytest.raises(ValueError, match="weights=.*: must not be a run of NP decoding"):
        find_weights("weights", str(tmp_path)).give(make_docid("titles-np"), None)
