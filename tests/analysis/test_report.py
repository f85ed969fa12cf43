import base64
import re
from html.parser import HTMLParser
from math import nan

import pytest
from pandas import DataFrame

from analysis.figures import (
    Gallery,
    GalleryEntry,
    draw_boxes,
    draw_lines,
    forest_figure,
    read_gallery,
)
from analysis.questions.alignment_store import StoreDescription
from analysis.runs.report import write_report
from gr_mvdr.files import UnfinishedRun
from tests.analysis.test_compare import write_run
from tests.runs import write_store

POINTS = DataFrame([{"x": 1, "y": 2.0, "line": "a", "panel": "", "place": "", "name": "a"}])
POINTS = POINTS.assign(value=2.0, low=1.0, high=3.0)


class References(HTMLParser):
    """Collects everything a browser would fetch, where links lead, and the text that is shown."""

    def __init__(self, page):
        super().__init__()
        self.fetched, self.links, self.shown = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        found = [v for k, v in attributes if k in ("src", "href", "srcset", "data")]
        (self.links if tag == "a" else self.fetched).extend(found)

    def handle_data(self, data):
        self.shown += f" {data} "


def assert_self_contained(page):
    references = References(page)
    assert all(value.startswith("data:image/png;base64,") for value in references.fetched)
    assert "http://" not in page and "https://" not in page
    assert all(value.startswith(("#", "./")) for value in references.links)
    assert not re.search(r"<(script [^>]*src|link|iframe)|@import|url\(", page)
    return references


@pytest.fixture
def run(tmp_path):
    metrics = {"retrieve/recall@1": 0.25, "retrieve/dev2/recall@1": 0.125}
    about = {"collection": "a <b> & c", "splits": ["dev", "dev2"]}
    return write_run(tmp_path / "run", "t5_colbert", 3, metrics, **about)


@pytest.mark.parametrize("table", [DataFrame(), POINTS.assign(y=nan, value=nan), POINTS])
def test_a_figure_without_points_is_left_out(tmp_path, table):
    gallery = Gallery(tmp_path)
    drawn = {
        "lines": draw_lines(table, "", "", ""),
        "boxes": draw_boxes(table, "", "", ""),
        "forest": forest_figure(table, ""),
    }
    for name, figure in drawn.items():
        gallery.add(figure, GalleryEntry(name, name, ""))
    names = [path.stem for path in tmp_path.glob("*.png")]
    assert sorted(names) == sorted(drawn if table is POINTS else [])
    assert [entry.name for entry in read_gallery(tmp_path)] == ([*drawn] if table is POINTS else [])


def test_the_report_holds_everything_in_one_file(run):
    figure, entry = draw_boxes(POINTS, "", "", ""), "How to read boxes."
    Gallery(run / "figures").add(figure, GalleryEntry("boxes", "Boxes & more", entry))
    path = write_report(run)
    references = assert_self_contained(path.read_text())
    picture = (run / "figures/boxes.png").read_bytes()
    assert references.fetched[0].endswith(base64.b64encode(picture).decode())
    assert len(references.fetched) == 1
    shown = " ".join(references.shown.split())
    for text in (
        "t5_colbert on a <b> & c (dev, dev2)",
        "retrieve dev2 0.125",
        "How to read boxes.",
    ):
        assert text in shown, text


def test_a_damaged_store_costs_the_cases_alone(run, make_explanation):
    description = StoreDescription("t5_colbert", "multi_vector", "fruit")
    write_store(run / "alignments", description, make_explanation(2, paradigm="multi_vector"))
    table = run / "alignments/pairs.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    page = write_report(run).read_text()
    assert "its alignments cannot be shown" in page and "is damaged" in page


def test_an_unfinished_or_broken_run_is_named(run):
    (run / "metrics.parquet").unlink()
    with pytest.raises(ValueError, match=r"older version \(no metrics.parquet\); run python train"):
        write_report(run)
    (run / "metrics.json").unlink()
    with pytest.raises(UnfinishedRun, match=r"must be a finished run, it has no metrics\.json"):
        write_report(run)
    assert not (run / "report.html").exists()
