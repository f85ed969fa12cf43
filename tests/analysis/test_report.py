import base64
import json
import re
from html.parser import HTMLParser

import pytest

from analysis.figures import alignment_heatmap
from analysis.gallery import Gallery, GalleryEntry
from analysis.report import write_report
from analysis.run_folder import UnfinishedRun


class References(HTMLParser):
    """Collects everything a browser would fetch, and the text it would show."""

    def __init__(self, page):
        super().__init__()
        self.fetched, self.shown = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.fetched += [v for k, v in attributes if k in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        self.shown += f" {data} "


def assert_self_contained(page):
    references = References(page)
    assert all(value.startswith("data:image/png;base64,") for value in references.fetched)
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"<(script|link|iframe)|@import|url\(", page)
    return references


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 3\nmodel:\n  dimension: 128\n")
    provenance = {"system": "t5_colbert", "collection": "a <b> & c", "paradigm": "multi_vector"}
    provenance |= {"seed": 3, "splits": ["dev"], "versions": {"torch": "2.13.0"}}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    metrics = {
        "retrieve/recall@1": 0.25,
        "retrieve/dev2/recall@1": 0.125,
        "analysis/exact_match/query_to_document/soft/idf_2_4": 0.5,
        "cost/index_bytes": 12_345_678,
        "cost/train_seconds": 61.3,
        "cost/peak_memory_bytes": None,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def test_the_report_holds_everything_in_one_file(run, make_pairs):
    pairs = make_pairs(1)
    weights = pairs.alignment[0, 0]
    gallery = Gallery(run / "figures")
    labels = [list(map(str, range(n))) for n in weights.shape]
    figure = alignment_heatmap(weights, weights > 0, *labels, "title")
    gallery.add(figure, GalleryEntry("boxes", "Boxes & more", "How to read boxes."))
    gallery.add(figure, GalleryEntry("case_1", "Case", "How to read a case.", case=True))
    path = write_report(run)
    references = assert_self_contained(path.read_text())
    picture = (run / "figures/boxes.png").read_bytes()
    assert references.fetched[0].endswith(base64.b64encode(picture).decode())
    assert len(references.fetched) == 2
    shown = " ".join(references.shown.split())
    for text in (
        "t5_colbert on a <b> & c (dev)",
        "multi vector retrieval, seed 3",
        "retrieve dev2 0.125",
        "exact match q→d soft 0.500",
        "12.3 MB",
        "61.3 s",
        "versions.torch 2.13.0",
        "model.dimension 128",
        "How to read boxes.",
        "How to read a case.",
    ):
        assert text in shown, text
    assert not list(run.glob("*.partial"))


def test_a_run_without_figures_has_a_report_too(run):
    assert_self_contained(write_report(run).read_text())


def test_an_unfinished_or_broken_run_is_named(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such run folder"):
        write_report(tmp_path / "nowhere")
    (run / "metrics.json").write_text('{\n"a": 1,\n')
    with pytest.raises(ValueError, match=r"metrics\.json:3: not valid JSON"):
        write_report(run)
    (run / "metrics.json").unlink()
    with pytest.raises(UnfinishedRun, match=r"unfinished: it has no metrics\.json"):
        write_report(run)
    assert not (run / "report.html").exists()
