"""A finished generative run's index is opened, not made again, and finds what the run found."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from gr_mvdr.evaluation.ranking import Ranking
from models.finished_run import FinishedRun
from tests.runs import TINY

SYSTEMS = {
    "genre_np_base": ("genre_np_base",),
    "t5_seal": ("t5_seal",),
    "dsi_semantic": ("dsi_semantic",),
    "query_generator": ("query_generator", "model.n_queries=2"),
    "seal_full": ("t5_seal", "experiment=[smoke,seal_full]"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_finished_runs_index_finds_what_the_run_found(name, finished_run, monkeypatch):
    model, *further = SYSTEMS[name]
    folder = finished_run(model, *TINY, *further)
    config = OmegaConf.load(folder / "config.yaml")
    run = FinishedRun.read("run", folder)
    data = instantiate(config.data)
    system = run.load_model(data.documents, data.known_documents)
    monkeypatch.setattr(type(system), "index", None)  # is not asked for
    index = folder / "index"
    before = {p: p.stat().st_mtime_ns for p in index.rglob("*")}
    system.open_index(data.documents, index)
    assert {p: p.stat().st_mtime_ns for p in index.rglob("*")} == before
    written = Ranking.read(folder / "retrieve.trec")
    found, shares = system.retrieve_with_shares(data.test_queries("test"), config.retrieval_depth)
    assert found.query_ids
    for query in found.query_ids:
        assert found.scores(query) == pytest.approx(written.scores(query), abs=1e-4)
        for document, score in found.scores(query).items():
            values = [share.value for share in shares[query][document]]
            assert sum(values) == pytest.approx(score, abs=1e-4)
