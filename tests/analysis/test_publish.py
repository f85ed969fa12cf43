import json
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from analysis.figures import Gallery, GalleryEntry
from analysis.runs.publish import publish_run
from analysis.runs.run_folder import read_run
from analysis.tables.rows import write_rows


class Recorded:
    """A logger, and its experiment, that note what they are given."""

    def __init__(self):
        self.tables, self.images, self.artefacts, self.hyperparameters = {}, [], {}, {}
        self.finished = 0
        self.experiment = SimpleNamespace(log_artifact=self.keep, finish=self.finish)

    def log_hyperparams(self, values):
        self.hyperparameters |= values

    def log_metrics(self, values):
        self.metrics = values

    def log_table(self, key, columns, data):
        self.tables[key] = columns, data

    def log_image(self, key, images, caption):
        self.images += zip(images, caption, strict=True)

    def keep(self, path, name, type):
        self.artefacts[name] = path, type

    def finalize(self, status):
        self.status = status

    def finish(self):
        self.finished += 1


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a run=1"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 3\ndata: {path: x}\n")
    provenance = {"system": "T5-SEAL", "paradigm": "generative", "collection": "wtq", "seed": 3}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "metrics.json").write_text(json.dumps({"retrieve/mrr@10": 0.5}))
    (folder / "retrieve.trec").write_text("q Q0 d 1 1.0 x\n")
    (folder / "alignments").mkdir()
    (folder / "report.html").write_text("<p>")
    write_rows(
        [{"layer": 1, "rate": 0.5}, {"layer": "all", "rate": float("nan")}], folder / "t.csv"
    )

    Gallery(folder / "figures").add(Figure(figsize=(1, 1)), GalleryEntry("f", "A figure", "…"))
    return folder


def test_metrics_tables_figures_and_artefacts_of_a_run(run):
    logger = Recorded()
    publish_run(logger, read_run(run))
    assert logger.metrics == {"retrieve/mrr@10": 0.5}
    assert logger.hyperparameters["paradigm"] == "generative"
    assert logger.hyperparameters["config"]["data.path"] == "x"
    assert logger.tables == {"tables/t": (["layer", "rate"], [["1", 0.5], ["all", None]])}
    assert logger.images == [(str(run / "figures/f.png"), "A figure")]
    assert logger.artefacts == {
        "a-run-1-retrieve.trec": (str(run / "retrieve.trec"), "ranking"),
        "a-run-1-alignments": (str(run / "alignments"), "alignments"),
        "a-run-1-report.html": (str(run / "report.html"), "report"),
    }
    assert (logger.status, logger.finished) == ("success", 1)


def test_a_logger_of_numbers_alone_gets_numbers_alone(run):
    found = []
    logger = SimpleNamespace(
        log_hyperparams=lambda values: None,
        log_metrics=found.append,
        finalize=lambda status: None,
        experiment=SimpleNamespace(),
    )
    publish_run(logger, read_run(run))
    publish_run(None, read_run(run))
    assert found == [{"retrieve/mrr@10": 0.5}]
