"""What reaches wandb, read from the files of offline runs."""

import sys

import pytest

from conf.command import run_command
from tests.offline_run import read_offline_runs
from tests.runs import TINY, undrawn

wandb = pytest.importorskip("wandb")
# Two steps of training, a few alignments and one drawn case.
KEYS = (
    *("data.n_documents=50", "data.max_test_queries=10", "data.max_rerank_queries=4"),
    *("trainer.max_epochs=1", "trainer.max_steps=2", "trainer.log_every_n_steps=1", *TINY),
    *("analysis.pairs=4", "analysis.curve_pairs=4", "analysis.sample_pairs=0"),
    *("analysis.queries=0", "analysis.search_queries=0"),
)

MODULES = {"train": "train", "compare": "analysis.compare.comparison"}


def run(monkeypatch, command, *arguments):
    """A command, in this process."""
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with undrawn():
        run_command(command, MODULES[command] + ":main")
    wandb.teardown()  # its service writes the files, and may still be at the last one


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep over two systems, then a comparison of its runs by hand, all logged to wandb."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        keys = [f"output={folder}", "+logger.tags=[a,b]", *KEYS]
        run(patch, "train", "-m", "model=bm25,t5_colbert", *keys)
        keys = [f"output={folder}/own", "logger=wandb", "logger.group=mine"]
        run(patch, "compare", f"runs=[{folder}]", *keys)
    return folder


def test_a_sweeps_runs_and_its_comparison_share_a_group_unless_the_user_names_one(sweep):
    runs = read_offline_runs(sweep)
    assert [run.group for run in runs] == [*[sweep.name] * 3, "mine"]
    assert [run.tags for run in runs[:2]] == [["a", "b"]] * 2
    assert [run.name.partition("-")[0] for run in runs] == [
        "bm25",
        "t5_colbert",
        *["comparison"] * 2,
    ]


def test_a_run_holds_curves_tables_figures_and_files(sweep):
    run = read_offline_runs(sweep)[1]
    assert [step for step, _ in run.values("train/loss")] == [0, 1]
    assert len(run.values("alignment/hard")) == 1
    assert run.values("retrieve/mrr@10") and run.config["config"]["trainer.max_steps"] == 2
    columns, rows = run.table("tables/exact_match")
    assert columns and rows
    assert run.picture("figures/exact_match_document_to_query").stat().st_size
    kept = {name.removeprefix(f"{run.name}-"): kind for name, kind in run.artefacts.items()}
    expected = {"retrieve.trec": "ranking", "alignments": "alignments", "report.html": "report"}
    assert expected.items() <= kept.items()


def test_a_comparison_holds_tables_figures_and_its_page(sweep):
    ended, own = read_offline_runs(sweep)[2:]
    for run in (ended, own):
        columns, rows = run.table("tables/comparison")
        assert {row[columns.index("system")] for row in rows} == {"BM25", "T5-ColBERT"}
        assert "corrected" in run.table("tables/comparison_tests")[0]
        assert run.picture("figures/mrr").is_file()
        assert run.artefacts[f"{run.name}-comparison.html"] == "comparison"
        assert len(run.config["runs"]) == 2 and run.config["systems"] == ["BM25", "T5-ColBERT"]
    assert (sweep / "comparison.html").is_file() and (sweep / "own/wandb").is_dir()


def test_resuming_a_run_whose_upload_failed_uploads_it_into_the_same_run(
    tmp_path, monkeypatch, capfd
):
    keys = ["model=t5_colbert", f"output={tmp_path}", "name=run", "analysis=none", *KEYS[:-5]]

    finish = wandb.Run.finish

    def hang(self, *_, **__):
        assert (tmp_path / "run/metrics.json").is_file()
        finish(self)
        raise TimeoutError("Timed out\nfinishing run.")

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "finish", hang)
        run(patch, "train", *keys)
    printed = capfd.readouterr()
    assert "is not in wandb (TimeoutError: Timed out finishing run.); the same" in printed.out
    assert "anonymous" not in printed.out + printed.err
    for _ in range(2):  # what has arrived is not uploaded again
        run(monkeypatch, "train", *keys, "resume=true")
    first, second = read_offline_runs(tmp_path)
    assert first.id == second.id and first.name == second.name == "run"
    for name in ("train/loss", "train/learning_rate", "retrieve/mrr@10"):
        assert first.values(name) and first.values(name) == second.values(name)


def test_nothing_is_logged_where_wandb_is_disabled(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run(monkeypatch, "train", "model=bm25", f"output={tmp_path}", "name=off", *KEYS)
    assert (tmp_path / "off/metrics.json").is_file() and not (tmp_path / "off/wandb").exists()
