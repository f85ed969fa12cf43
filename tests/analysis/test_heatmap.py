import warnings
from itertools import pairwise

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from analysis.figures import save_figure
from analysis.viewer.heatmap import alignment_heatmap, readable_rows


def test_documents_are_rows_and_labels_are_no_formulas(tmp_path):
    """Nothing is cut off, no labels overlap, and letters that the font lacks warn nobody."""
    words = [f"▁internationalisation{n}" for n in range(38)] + ["$", "5_{x}$"]
    weights, same = torch.rand(40, 12), torch.zeros(40, 12, dtype=torch.bool)
    same[0, 0] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = alignment_heatmap(weights, same, words, words[-12:], "北京 $x_{1}$")
        save_figure(figure, tmp_path, "case")
    assert not caught and {path.name for path in tmp_path.iterdir()} == {"case.png", "case.pdf"}
    axes = figure.axes[0]
    assert torch.equal(torch.tensor(axes.images[0].get_array().tolist()), weights)
    assert len(axes.patches) == 1 and axes.patches[0].get_xy() == (-0.46, -0.46)
    figure.suptitle("")
    FigureCanvasAgg(figure).draw()
    for axis, names in ((axes.yaxis, words), (axes.xaxis, words[-12:])):
        assert [label.get_text() for label in axis.get_ticklabels()] == names
        assert not any(label.get_parse_math() for label in axis.get_ticklabels())
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert all(figure.bbox.x0 <= box.x0 and figure.bbox.y0 <= box.y0 for box in boxes)
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_readable_rows_are_the_heaviest_stretch():
    contributions = torch.zeros(100)
    contributions[70:75] = 1
    rows = readable_rows(contributions, limit=10)
    assert rows.start <= 70 and rows.stop >= 75 and rows.stop - rows.start == 10
    assert readable_rows(torch.ones(8), limit=10) == slice(0, 8)
