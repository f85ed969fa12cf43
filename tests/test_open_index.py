"""A finished generative run's index is opened, not made again, and finds what the run found."""

import pytest
from hydra.utils import instantiate

from gr_mvdr.evaluation.ranking import Ranking
from models.finished_run import FinishedRun
from tests.runs import NO_ANALYSIS, TINY, small
from train import train

SYSTEMS = {
    "genre_np_base": ("model=genre_np_base",),
    "t5_seal": ("model=t5_seal",),
    "dsi_semantic": ("model=dsi_semantic",),
    "query_generator": ("model=query_generator", "model.n_queries=2"),
    "seal_full": ("experiment=[smoke,seal_full]",),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_finished_runs_index_finds_what_the_run_found(name, tmp_path, monkeypatch):
    config = small(tmp_path, *SYSTEMS[name], *NO_ANALYSIS, *TINY)
    train(config)
    run = FinishedRun.read("run", tmp_path / "run")
    data = instantiate(config.data)
    system = run.load_model(data.documents, data.known_documents)
    monkeypatch.setattr(type(system), "index", None)  # is not asked for
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/index").rglob("*")}
    system.open_index(data.documents, tmp_path / "run/index")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run/index").rglob("*")} == before
    written = Ranking.read(tmp_path / "run/retrieve.trec")
    found, shares = system.retrieve_with_shares(data.test_queries("test"), config.retrieval_depth)
    assert found.query_ids
    for query in found.query_ids:
        assert found.scores(query) == pytest.approx(written.scores(query), abs=1e-4)
        for document, score in found.scores(query).items():
            values = [share.value for share in shares[query][document]]
            assert sum(values) == pytest.approx(score, abs=1e-4)
