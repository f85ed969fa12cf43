import base64
import json
import re
from html.parser import HTMLParser

import pytest

from analysis.alignment_store import AlignmentWriter, StoreDescription
from analysis.figures import Gallery, GalleryEntry
from analysis.tables.report import write_report
from analysis.viewer.heatmap import alignment_heatmap
from gr_mvdr.files import UnfinishedRun


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
        "multi-vector retrieval, seed 3",
        "retrieve dev2 0.125",
        "A further test split of the collection, “dev2”.",
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


def test_the_first_table_shows_every_value_that_its_columns_have(run):
    metrics = {"retrieve/recall@1": 0.25, "retrieve/mrr@10": 0.5, "retrieve/dev2/mrr@10": 0.125}
    metrics |= {"rerank/recall@1": 0.75, "rerank/mrr@10": 0.875, "rerank/ndcg@5": 0.625}
    metrics |= {"rerank/dev2/mrr@10": 0.375}
    (run / "metrics.json").write_text(json.dumps(metrics))
    first = re.search("<table>.*?</table>", write_report(run).read_text(), re.S)[0]
    rows = [re.findall(r"<td[^>]*>(?:<span[^>]*>)?([^<]*)", row) for row in first.split("<tr>")[2:]]
    assert rows == [
        ["retrieve", "0.250", "0.500", "–"],
        ["retrieve", "–", "0.125", "–"],
        ["rerank", "0.750", "0.875", "0.625"],
        ["rerank", "–", "0.375", "–"],
    ]


def headings(page):
    """Those of folds and of figures in them, in order, without the marks of their words."""
    found = re.findall(r"<(?:summary><h2|h4)>(.*?)</h[24]>", page)
    return [re.sub("<[^>]*>", "", heading) for heading in found]


def test_intervals_stand_with_their_metrics_and_measurements_apart(run):
    metrics = {"retrieve/mrr@10": 0.5}
    prefix = "analysis/exact_match/query_to_document"
    metrics |= {f"{prefix}/hard": 0.25, f"{prefix}/hard_low": 0.2, f"{prefix}/hard_high": 0.375}
    metrics |= {"analysis/framework/sum_error": 3.2e-6, "analysis/my_own_idea/x/odd": 1234.5}
    metrics |= {f"analysis/shape/entropy_{n}": n / 2 for n in range(9)}  # too wide for a page
    (run / "metrics.json").write_text(json.dumps(metrics))
    page = write_report(run).read_text()
    shown = " ".join(References(page).shown.split())
    assert "exact match q→d 0.250 [0.200, 0.375]" in shown and "hard low" not in shown
    assert "<dd>0.250<span>[0.200, 0.375]</span></dd>" in page
    assert headings(page)[:-2] == [
        "Retrieve",
        "Exact match",
        "Does the framework hold?",
        "Sparsity and shape",
        "My own idea",
    ]
    assert "3.2e-06" in shown and "my own idea x 1,23" in shown
    assert "entropy 8 4.000 " in shown


def test_figures_stand_under_the_headings_of_their_measurements(run, make_pairs):
    weights = make_pairs(1).alignment[0, 0]
    labels = [list(map(str, range(n))) for n in weights.shape]
    gallery = Gallery(run / "figures")
    names = ("kernel", "exact_match_heads", "unheard_of", "low_rank", "low_rank_bound")
    for name in names:
        figure = alignment_heatmap(weights, weights > 0, *labels, "title")
        gallery.add(figure, GalleryEntry(name, name.upper(), "How."))
    page = write_report(run).read_text()
    assert headings(page)[1:-2] == [  # after "Retrieve"
        "Exact match",
        "EXACT_MATCH_HEADS",
        "Low rank",
        "LOW_RANK",
        "LOW_RANK_BOUND",
        "Kernelised relevance",
        "KERNEL",
        "Cost",
        "Unheard of",
        "UNHEARD_OF",
    ]


def test_retrieved_tokens_are_shown_in_their_contexts(run):
    found = {"rank": 5, "similarity": 0.25, "document": "d<1>", "relevant": True}
    found |= {"before": "she is", "token": "<b>", "after": "& more"}
    token = {"token": "la", "gold": 0.5, "lexical": 0.77, "retrieved": [found, found]}
    record = {"q1": {"text": "lauren <i>", "tokens": [token]}}
    (run / "token_contexts.json").write_text(json.dumps(record))
    page = write_report(run).read_text()
    shown = " ".join(assert_self_contained(page).shown.split())
    assert "lauren <i> (q1)" in shown and page.count('<td class="best">&lt;b&gt;</td>') == 2
    one = "5 0.250 she is <b> & more d<1>"
    assert f"la 0.50 0.77 {one} {one}" in shown


def test_a_damaged_store_costs_the_cases_alone(run, make_explanation):
    description = StoreDescription("t5_colbert", "multi_vector", "fruit")
    with AlignmentWriter(run / "alignments", description) as writer:
        writer.add(make_explanation(2, paradigm="multi_vector"), ["a", "b"], ["c", "d"])
    page = write_report(run).read_text()
    assert "its alignments cannot be shown" in page and "vocabulary.json is missing" in page
    (shard,) = (run / "alignments").glob("shard*")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "is truncated" in write_report(run).read_text()
    (run / "alignments/manifest.json").unlink()
    assert "manifest.json is missing" in write_report(run).read_text()


def test_a_peer_was_measured_on_the_same_data(run, tmp_path):
    peer = tmp_path / "peer"
    peer.mkdir()
    for path in run.glob("*"):
        (peer / path.name).write_text(path.read_text())
    write_report(run, peers=[peer])
    record = json.loads((run / "provenance.json").read_text())
    (peer / "provenance.json").write_text(json.dumps(record | {"splits": ["test"]}))
    with pytest.raises(ValueError, match=r"peers=.*peer: measured on .*\(test\), data .* must be"):
        write_report(run, peers=[peer])


def test_an_unfinished_or_broken_run_is_named(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such run folder"):
        write_report(tmp_path / "nowhere")
    (run / "metrics.json").write_text('{\n"a": 1,\n')
    with pytest.raises(ValueError, match=r"metrics\.json:3: not valid JSON"):
        write_report(run)
    (run / "metrics.json").unlink()
    with pytest.raises(UnfinishedRun, match=r"must be a finished run, it has no metrics\.json"):
        write_report(run)
    assert not (run / "report.html").exists()
