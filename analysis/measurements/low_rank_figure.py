"""Figure 4 of gr_as_mvdr: norms and bound (a), relative error (b); and the mean spectrum."""

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from analysis.figures import COLOURS, HATCHES, MARKERS, PAGE_WIDTH, PANEL_HEIGHT, STYLE, draw_boxes
from analysis.tables import Row

VALUES = 30  # singular values that are drawn

NORMS = (
    "One column of marks for each head, at the norm of its own projections ‖W‖₁; medians over "
    "pairs, ‖·‖ is the paper's √(‖·‖₁ ‖·‖_∞), darker marks are earlier layers. Circles: the "
    "distance of A from the best matrix of equal rows. Triangles: the bound 4γ²‖E‖₁ from the "
    "centred logits themselves; squares: the lemma's 4γ‖W‖₁. The dashed line is ‖W‖₁ alone, with "
    "which the paper compares. The further a head's marks lie apart, the less the lemma says "
    "about it."
)
RANKS = (
    "Left: ‖A − R‖ / ‖A‖ (Frobenius) over pairs and heads. Blue: with the best R of equal rows, as "
    "in the lemma; 0 is an alignment in which all document tokens look at the query alike. Orange "
    "(hatched): with the best R of rank one at all. Boxes span the quartiles, "
    "the line is the median, the diamond the mean. Right: the mean singular values, each "
    "matrix's divided by their sum: the faster a line falls, the lower the rank."
)
ERRORS = {"relative_error": "R of equal rows", "relative_error_rank_one": "best R of rank one"}
MARKS = {
    "residual": ("o", "‖A − R‖"),
    "bound_entries": ("^", "4γ²‖E‖₁, from the logits"),
    "bound": ("s", "4γ‖W‖₁, Lemma 5.1"),
}


@matplotlib.rc_context(STYLE)
def norm_figure(rows: Sequence[Row], title: str) -> Figure:
    """‖A − R‖ and its bounds against ‖W‖, one mark a head (Figure 4a).

    Args:
        rows: the table `low_rank` of a generative system.
        title: the line above.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT + 0.9), layout="constrained")
    axes = figure.subplots()
    layers = [row["layer"] for row in rows]
    norms = [row["projection_norm"] for row in rows]
    for name, (marker, _) in MARKS.items():
        # The end of the colour map is too pale for paper.
        image = axes.scatter(
            norms,
            [row[name] for row in rows],
            c=layers,
            cmap="viridis",
            vmin=1,
            vmax=1 + (max(layers) - 1) / 0.85 if max(layers) > 1 else 2,
            marker=marker,
            s=18,
        )
    ends = [min(norms), max(norms)]
    axes.plot(ends, ends, linestyle="--", color=COLOURS[7], linewidth=1)
    axes.set_yscale("log")
    axes.grid(axis="y")
    axes.set_xlabel("‖W‖₁ of the head's projections")
    axes.set_ylabel("norm (log scale)")
    bar = figure.colorbar(image, ax=axes, label="decoder layer")
    bar.ax.set_ylim(0.999, max(layers) if max(layers) > 1 else 2)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, fontsize=9, parse_math=False)
    marks = [
        Line2D([], [], linestyle="", marker=marker, color="#444444", label=label)
        for marker, label in MARKS.values()
    ]
    handles = [*marks, Line2D([], [], linestyle="--", color=COLOURS[7], label="‖W‖₁")]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


@matplotlib.rc_context(STYLE | {"hatch.linewidth": 0.4})
def rank_figure(
    errors: Mapping[str, Mapping[str, Tensor]],
    spectra: Mapping[str, Tensor],
    axis: str,
    title: str,
) -> Figure:
    """The distribution of the relative error (Figure 4b) and the mean spectrum.

    Args:
        errors: measure of `ERRORS` → label → (n,) relative errors, NaN of alignments of zeros.
        spectra: label → (K,) mean normalised singular values, the same labels.
        axis: what the labels count; "" where they speak for themselves.
        title: the line above both panels.
    """
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT + 0.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, boxes in enumerate(errors.values()):
        draw_boxes(left, [box[box.isfinite()] for box in boxes.values()], number)
    _finish_errors(left, list(spectra))
    left.set_xlabel(axis)
    _spectra(right, spectra)
    if len(spectra) > 1:
        right.legend(title=axis or None, frameon=False, ncols=1 + (len(spectra) - 1) // 6)
    figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def _spectra(axes: Axes, spectra: Mapping[str, Tensor]) -> None:
    for number, (label, values) in enumerate(spectra.items()):
        shown = values[:VALUES].numpy()
        axes.plot(
            range(1, len(shown) + 1),
            shown,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=("-", "--", ":")[number // len(COLOURS) % 3],
            markevery=max(1, len(shown) // 8),
            label=label,
        )
    axes.set_ylim(bottom=0)
    longest = min(VALUES, max(map(len, spectra.values())))
    axes.set_xticks([1, *range(5, longest + 1, 5)])
    axes.grid(axis="y")
    axes.set_title("mean spectrum")
    axes.set_xlabel("number of the singular value")
    axes.set_ylabel("share of their sum")


def _finish_errors(axes: Axes, labels: list[str]) -> None:
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_ylim(0, 1.05)
    axes.grid(axis="y")
    axes.set_title("relative error")
    axes.set_ylabel("‖A − R‖ / ‖A‖")
    looks = zip(ERRORS.values(), COLOURS, HATCHES, strict=False)
    handles = [
        Patch(facecolor=colour, edgecolor="black", hatch=hatch, label=label)
        for label, colour, hatch in looks
    ]
    axes.figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False)
