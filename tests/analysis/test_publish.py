from types import SimpleNamespace

from analysis.runs.publish import publish_run
from analysis.runs.run_folder import read_run
from analysis.tables.rows import write_rows
from tests.analysis.test_compare import write_run


def test_a_logger_of_numbers_alone_gets_numbers_alone(tmp_path):
    """What wandb gets of a run is in tests/test_wandb.py."""
    run = write_run(tmp_path / "run", "T5-SEAL", 3, {"retrieve/mrr@10": 0.5})
    write_rows([{"layer": 1, "rate": 0.5}], run / "t.csv")
    (run / "report.html").write_text("<p>")
    found = []
    logger = SimpleNamespace(
        log_hyperparams=lambda values: None,
        log_metrics=found.append,
        finalize=lambda status: None,
        experiment=SimpleNamespace(),
    )
    publish_run(logger, read_run(run))
    assert found == [{"retrieve/mrr@10": 0.5}]
