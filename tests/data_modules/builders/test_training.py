"""From raw files to a finished run."""

from pathlib import Path

import datasets
import pytest
from hydra import compose, initialize_config_dir

from tests.data_modules.builders.conftest import MINIATURES
from train import train

ROOT = Path(__file__).parents[3]
SOURCES = {
    "nq320k": [f"data.path={MINIATURES}/natural_questions", "data.check_counts=false"],
    "msmarco_doc": [f"data.path={MINIATURES}/msmarco_doc"],
    "public": [f"data.path={MINIATURES}/miracl", "data.name=miracl/sw", "data.test_split=dev"],
}


@pytest.mark.parametrize("data", SOURCES)
def test_two_steps_of_training_on_raw_files(data, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    overrides = [
        "model=t5_colbert",
        f"data={data}",
        *SOURCES[data],
        "experiment=smoke",
        "analysis=none",
        "analysis.pairs=0",
        "analysis.curve_pairs=0",
        "logger=none",
        "data.batch_size=8",
        f"output={tmp_path}",
        "name=run",
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        metrics = train(compose("train", overrides))
    assert 0 <= metrics["retrieve/recall@100"] <= 1
    assert 0 <= metrics["rerank/mrr@10"] <= 1
    if data == "nq320k":
        assert "retrieve/dev_unseen/recall@1" in metrics
