import warnings
from itertools import pairwise

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from analysis.figures import save_figure
from analysis.viewer.heatmap import alignment_heatmap, readable_rows


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


def test_readable_rows_are_the_heaviest_stretch():
    contributions = torch.zeros(100)
    contributions[70:75] = 1
    rows = readable_rows(contributions, limit=10)
    assert rows.start <= 70 and rows.stop >= 75 and rows.stop - rows.start == 10
    assert readable_rows(torch.ones(8), limit=10) == slice(0, 8)
