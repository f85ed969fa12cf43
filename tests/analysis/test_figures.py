import json
import warnings
from itertools import pairwise

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from analysis.alignment_store import AlignmentStore, StoreDescription
from analysis.alignment_writer import AlignmentWriter
from analysis.analyse import analyse_alignments
from analysis.exact_match_report import ExactMatchReport
from analysis.figures import alignment_heatmap, exact_match_boxes, readable_rows
from analysis.gallery import read_gallery, save_figure
from analysis.token_types import TokenTypeRates


def test_heatmap_has_documents_as_rows_and_labels_that_are_not_formulas(tmp_path):
    weights = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    same = torch.tensor([[True, False], [False, False], [False, False]])
    tokens = ["▁costs", "$", "5_{x}$"]
    figure = alignment_heatmap(weights, same, tokens, ["▁price", "$"], "cost of $x_{1}$")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == tokens
    assert [label.get_text() for label in axes.get_xticklabels()] == ["▁price", "$"]
    labels = [*axes.get_yticklabels(), *axes.get_xticklabels()]
    assert not any(label.get_parse_math() for label in labels)
    assert axes.images[0].get_array().tolist() == weights.tolist()
    assert len(axes.patches) == 1 and axes.patches[0].get_xy() == (-0.46, -0.46)
    save_figure(figure, tmp_path, "case")
    assert (tmp_path / "case.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "case.pdf").read_bytes().startswith(b"%PDF")
    assert {path.name for path in tmp_path.iterdir()} == {"case.png", "case.pdf"}


def test_nothing_is_cut_off_and_labels_do_not_overlap():
    words = [f"▁internationalisation{n}" for n in range(40)]
    figure = alignment_heatmap(
        torch.rand(40, 12), torch.zeros(40, 12, dtype=torch.bool), words, words[:12], "t"
    )
    FigureCanvasAgg(figure).draw()
    inside = figure.bbox
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert all(inside.x0 <= box.x0 and inside.y0 <= box.y0 for box in boxes)
        for one, other in pairwise(boxes):
            assert not one.overlaps(other)


def test_scripts_that_the_font_lacks_warn_nobody(tmp_path):
    ones = torch.ones(1, 1)
    figure = alignment_heatmap(ones, ones.bool(), ["北京"], ["北京"], "北京")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_figure(figure, tmp_path, "case")
    assert not caught


@pytest.mark.parametrize("seen", [[], [3], [2, 3, 4]])
def test_boxes_stand_at_the_bins_that_have_tokens(seen):
    rates = TokenTypeRates(5)
    ids = torch.tensor(seen, dtype=torch.int64)
    rates.update(ids, torch.ones(len(seen)), torch.full((len(seen),), 0.5), ids > 0)
    idf = torch.tensor([0.0, 0.0, 1.0, 3.0, 9.0])
    report = ExactMatchReport(dict.fromkeys(("query_to_document", "document_to_query"), rates), idf)
    figure = exact_match_boxes(report, "query_to_document", "title")
    expected = {2: "0-2", 3: "2-4", 4: "8-15"}
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    for token, name in expected.items():
        assert f"{name}\nn={int(token in seen)}" in labels
    assert len(figure.axes[1].patches) == 2 * len(seen)  # both definitions


def test_readable_rows_are_the_heaviest_stretch():
    contributions = torch.zeros(100)
    contributions[70:75] = 1
    rows = readable_rows(contributions, limit=10)
    assert rows.start <= 70 and rows.stop >= 75 and rows.stop - rows.start == 10
    assert readable_rows(torch.ones(8), limit=10) == slice(0, 8)


@pytest.mark.parametrize("paradigm", ["multi_vector", "generative"])
def test_the_analysis_of_a_run(tmp_path, make_pairs, paradigm):
    pairs = make_pairs(4, heads=2 if paradigm == "generative" else 1, paradigm=paradigm)
    description = StoreDescription("system", paradigm, "almanac")
    with AlignmentWriter(tmp_path / "alignments", description) as writer:
        writer.add(pairs, list("abcd"), list("wxyz"))
    store = AlignmentStore(tmp_path / "alignments")
    metrics = analyse_alignments(
        store, tmp_path, torch.linspace(0, 10, 30), [0, 1], lambda ids: list(map(str, ids)), cases=3
    )
    assert all(0 <= value <= 1 for value in metrics.values())
    assert "analysis/exact_match/document_to_query/soft" in metrics
    assert (tmp_path / "exact_match.csv").stat().st_size > 0
    gallery = read_gallery(tmp_path / "figures")
    assert [entry.case for entry in gallery] == [False, False, True, True, True]
    for entry in gallery:
        for kind in ("png", "pdf"):
            assert (tmp_path / "figures" / f"{entry.name}.{kind}").stat().st_size > 1000
    captions = json.dumps([entry.caption for entry in gallery])
    assert ("only the soft rate" in captions) == (paradigm == "generative")
    assert "query a, document w" in gallery[2].title and "query d, document z" in gallery[4].title
