"""What `weights=RUN` refuses."""

import json

import pytest

from models.saved_model import MODEL, WEIGHTS, find_weights
from tests.models.conftest import make_docid


def test_an_older_run_one_without_weights_and_an_np_table_are_refused(tmp_path):
    """The rows of an NP table are made of documents that the new collection does not have."""
    (tmp_path / "config.yaml").write_text("{}")
    record = {"system": "S", "collection": "C", "overrides": ["a=1", "b=[2,3]"]}
    (tmp_path / "provenance.json").write_text(json.dumps(record))
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no model/, .*: python train.py a=1 'b=\[2,3\]'$"):
        find_weights("weights", str(tmp_path))
    (tmp_path / MODEL).mkdir()
    with pytest.raises(ValueError, match="must be a trained system, it has no model.safetensors"):
        find_weights("weights", str(tmp_path))
    (tmp_path / MODEL / WEIGHTS).touch()
    with pytest.raises(ValueError, match="weights=.*: must not be a run of NP decoding"):
        find_weights("weights", str(tmp_path)).give(make_docid("titles-np"), None)
