"""Every system that is trained can learn fifty documents by heart."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.runs import compose_config, write_beir
from train import train

ROOT = Path(__file__).parents[1]
# doc2query retrieves by BM25: it has nothing to memorise; pipelines and fusions are made of runs;
# quantised docids are learned as those of a tree.
SYSTEMS = sorted(
    {p.stem for p in (ROOT / "conf/model").glob("*.yaml")}
    - {"bm25", "dsi_pq", "dsi_rq", "query_generator", "rerank_pipeline", "fusion"}
)
# T5-SEAL has no indexing examples, so an epoch of half the steps, and must learn to copy.
EPOCHS = {"t5_seal": 200, "t5_seal_views": 200, "cross_encoder": 30, "dsi_naive": 100}
# Fifty documents of ten tokens have no thousand neighbours.
OPTIONS = {"xtr": ["model.search.proposer.neighbours=100"]}
PLACES = "harbour castle bridge market garden tower mill chapel library station".split()
RIVERS = "Arno Elbe Rhone Tagus Vistula".split()


def collection(folder: Path) -> Path:
    """Fifty places on five rivers, one question each, which is the training and the test set."""
    names = [(river, place) for river in RIVERS for place in PLACES]
    documents = [
        {"_id": f"d{n}", "title": f"{river} {place}", "text": f"A {place} by the {river}, no. {n}."}
        for n, (river, place) in enumerate(names)
    ]
    queries = [
        {"_id": f"q{n}", "text": f"which {place} stands on the {river}"}
        for n, (river, place) in enumerate(names)
    ]
    pairs = [(f"q{n}", f"d{n}") for n in range(len(names))]
    return write_beir(folder, documents, queries, {"train": pairs})


@pytest.mark.slow
@pytest.mark.parametrize("model", SYSTEMS)
def test_fifty_documents_are_memorised(model, tmp_path, cache):
    overrides = [
        f"model={model}",
        "data=beir",
        f"data.path={collection(tmp_path / 'places')}",
        "data.test_split=train",
        "data.batch_size=25",
        "data.max_rerank_queries=2",
        f"trainer.max_epochs={EPOCHS.get(model, 50)}",
        "logger=none",
        "analysis=none",
        f"output={tmp_path}",
        *OPTIONS.get(model, []),
    ]
    config = compose_config("train", *overrides, "name=run")
    for callback in config.trainer.callbacks:
        if callback._target_.endswith("ModelCheckpoint"):  # of the last of many small epochs
            OmegaConf.update(callback, "every_n_epochs", config.trainer.max_epochs, force_add=True)
    assert train(config).metrics["retrieve/recall@1"] == 1.0
