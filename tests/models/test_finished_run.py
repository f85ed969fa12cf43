"""What `weights=RUN` refuses."""

import json
from pathlib import Path

import pytest

from gr_mvdr.files import CHECKPOINT
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
