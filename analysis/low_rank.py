"""How close is an alignment to rank one? (gr_as_mvdr §5.2.4 and §7.4, Lemma 5.1, Figure 4)

Lemma 5.1 promises a rank-one matrix R near A, and its proof one with equal rows, R = 1rᵀ: every
document token spreads its attention over the query in the same way. Both are measured here, as is
the paper's norm ‖X‖_{1,∞}.

Lemma 5.1's bound, from the attention matrix itself (Appendix B):
attention is A = softmax(L) over query tokens, with logits L = D W Qᵀ (tokens as rows). Take the
mean out of both sides, D = R_d + 1dᵀ and Q = R_q + 1qᵀ. What then is constant along a row of L
vanishes in the softmax, and what remains is A = softmax(E + 1rᵀ) with E = R_d W R_qᵀ: L without
the means of its rows and columns, and r the column means that were taken out. Since
log A = L − (a constant for each row), E and r can be read from log A.

Let R = 1 softmax(r)ᵀ, a rank-one matrix with equal rows. Then

    A_ij / R_ij = exp(E_ij) / Σ_k softmax(r)_k exp(E_ik),

whose denominator, a mean, lies between the least and the largest exp(E_ik) of the row. With
s_i = max_j E_ij − min_j E_ij the quotient is within [exp(−s_i), exp(s_i)], hence

    |A_ij − R_ij| ≤ R_ij (exp(s_i) − 1).

Rows of R sum to 1 and its columns are constant, so summing this over rows and columns gives

    ‖A − R‖_∞ ≤ max_i (exp(s_i) − 1),    ‖A − R‖₁ ≤ max_j softmax(r)_j · Σ_i (exp(s_i) − 1),

and the root of the product of both bounds ‖A − R‖_{1,∞}. In the lemma's form it is 4γ²‖E‖₁, which
defines γ² by these entries. Because ‖E‖₁ ≤ ‖R_d‖₁ ‖W‖₁ ‖R_qᵀ‖₁, the lemma's right-hand side is
4γ‖W‖₁ with γ = γ² ‖R_d‖₁ ‖R_qᵀ‖₁ "depending on the matrix entries".

Dong et al. (ICML 2021, Lemma A.3) replace exp(s) − 1 by 2s, which holds for s ≤ 1.256 only; the
exponential needs no condition, but makes the bound say nothing where attention is sharp.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn.functional import pad

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import (
    COLOURS,
    MARKERS,
    PANEL_HEIGHT,
    GalleryEntry,
    box_handles,
    draw_boxes,
    legend_below,
    page_figure,
    styled,
)
from analysis.statistics import HeadSample, select
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from gr_mvdr.alignment import pair_mask
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment

SMALL_SPREAD = 1.256  # Dong et al.'s condition on s_i


def composite_norm(matrix: Tensor) -> Tensor:
    """‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞), the norm of Lemma 5.1 (Dong et al., ICML 2021).

    ‖X‖₁ is the largest sum of absolute values of a column, ‖X‖_∞ of a row.

    Args:
        matrix: (..., M, N), zero at padding.

    Returns:
        (...) of its type.
    """
    sizes = matrix.abs()
    return (sizes.sum(-2).amax(-1) * sizes.sum(-1).amax(-1)).sqrt()


@dataclass(frozen=True)
class LemmaTerms:
    """The terms of Lemma 5.1 for B attention matrices; float64.

    Attributes:
        residual: (B,) ‖A − R‖_{1,∞} of the lemma's own R.
        logits_norm: (B,) ‖E‖₁.
        bound: (B,) 4γ²‖E‖₁; never below `residual`.
        trivial: (B,) √(2M), what ‖A − R‖_{1,∞} cannot pass whatever A and R: a larger bound is
            vacuous.
        small_spread: (B,) the share of document tokens with s_i ≤ 1.256.
    """

    residual: Tensor
    logits_norm: Tensor
    bound: Tensor
    trivial: Tensor
    small_spread: Tensor

    @property
    def gamma_squared(self) -> Tensor:
        """(B,) γ² = bound / (4 ‖E‖₁); NaN where E = 0, where any would do."""
        return self.bound / (4 * self.logits_norm)


def lemma_terms(
    attention: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    smallest: float = torch.finfo(torch.float32).tiny,
) -> LemmaTerms:
    """The terms of Lemma 5.1, derived above.

    Args:
        attention: (B, M, N), real rows sum to 1 over the query; heads may be flattened into B.
        document_mask: (B, M) bool. query_mask: (B, N) bool.
        smallest: weights are clamped to this before their logarithm, the smallest normal number
            of the type they were stored in. So s_i ≤ 2 ln(1 / smallest) = 175, and its
            exponential cannot overflow.
    """
    real = pair_mask(document_mask, query_mask)
    rows, columns = document_mask.unsqueeze(-1), query_mask.unsqueeze(-2)
    logs = attention.double().clamp_min(smallest).log() * real
    logs = (logs - logs.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True).clamp(min=1)) * real
    means = logs.sum(-2, keepdim=True) / rows.sum(-2, keepdim=True).clamp(min=1)
    logits = (logs - means) * real
    shared = means.masked_fill(~columns, -torch.inf).softmax(-1)
    # Zeros at padding are no extreme: centred rows have values on both sides of it.
    spread = logits.amax(-1) - logits.amin(-1)
    growth = spread.expm1()
    bound = (growth.amax(-1) * shared.amax((-2, -1)) * growth.sum(-1)).sqrt()
    tokens = document_mask.sum(-1)
    small = ((spread <= SMALL_SPREAD) & document_mask).sum(-1)
    return LemmaTerms(
        residual=composite_norm((attention.double() - shared) * real),
        logits_norm=logits.abs().sum(-2).amax(-1),
        bound=bound,
        trivial=(2.0 * tokens).sqrt(),
        small_spread=small / tokens.clamp(min=1),
    )


OWN, PAIRWISE = "own", "without_salience"
MEANS = ("relative_error", "relative_error_rank_one", "effective_rank")
AVERAGED = (
    *("frobenius", "equal_rows", "best_rank_one", *MEANS),
    *("small_spread", "vacuous_entries", "vacuous"),
)
# The smallest weight that a store's precision can tell from zero.
SMALLEST = {"float32": torch.finfo(torch.float32).tiny, "float16": 2.0**-24}
# What a box is called, by whether the system has salience.
LABELS = {
    (OWN, False): "alignment",
    (OWN, True): "with salience",
    (PAIRWISE, True): "without salience",
}
ERRORS = {"relative_error": "R of equal rows", "relative_error_rank_one": "best R of rank one"}
MARKS = {
    "residual": ("o", "‖A − R‖"),
    "bound_entries": ("^", "4γ²‖E‖₁, from the logits"),
    "bound": ("s", "4γ‖W‖₁, Lemma 5.1"),
}
VALUES = 30  # singular values that are drawn
NORMS = (
    "One column of marks for each head, at the norm of its own projections ‖W‖₁; medians over "
    "pairs, ‖·‖ is the paper's √(‖·‖₁ ‖·‖_∞), darker marks are earlier layers. Circles: the "
    "distance of A from the best matrix of equal rows. Triangles: the bound 4γ²‖E‖₁ from the "
    "centred logits themselves; squares: the lemma's 4γ‖W‖₁. The dashed line is ‖W‖₁ alone, with "
    "which the paper compares. The further a head's marks are apart, the less the lemma says "
    "about it."
)
RANKS = (
    "Left: ‖A − R‖ / ‖A‖ (Frobenius) over pairs and heads. Blue: with the best R of equal rows, as "
    "in the lemma; 0 is an alignment in which all document tokens look at the query alike. Orange "
    "(hatched): with the best R of rank one at all. Boxes span the quartiles, "
    "the line is the median, the diamond the mean. Right: the mean singular values, each "
    "matrix's divided by their sum: the faster a line falls, the lower the rank."
)
# Eigenvalues of a Gram matrix below this share of the largest are rounding.
ROUNDING = 1e-15


def low_rank(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> dict[str, Tensor]:
    """Size and rank of alignments, and how far they are from rank one (gr_as_mvdr Lemma 5.1).

    Args:
        alignment: (B, M, N), any float type; heads and layers may be flattened into B.
        document_mask: (B, M) bool. query_mask: (B, N) bool.

    Returns:
        (B,) float64 each: `frobenius` ‖A‖_F; `equal_rows` ‖A − 1rᵀ‖_F with the best r, the mean
        of the real rows; `best_rank_one` ‖A − R‖_F with the best R of rank one (Eckart and
        Young); `effective_rank` exp of the entropy of the normalised singular values (Roy and
        Vetterli, 2007), 0 of a matrix of zeros.
    """
    masks = document_mask, query_mask
    return rank_measures(singular_values(alignment, *masks), equal_rows_residual(alignment, *masks))


def rank_measures(values: Tensor, residual: Tensor) -> dict[str, Tensor]:
    """`low_rank` from singular values (..., K) and the residual of equal rows (..., M, N)."""
    squares = values.square()
    return {
        "frobenius": squares.sum(-1).sqrt(),
        "equal_rows": residual.square().sum((-2, -1)).sqrt(),
        "best_rank_one": squares[..., 1:].sum(-1).sqrt(),
        "effective_rank": effective_rank(values),
    }


def singular_values(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, min(M, N)) float64 singular values, falling.

    They are the roots of the smaller Gram matrix's eigenvalues: accurate to 1e-8 of the largest,
    and far faster than a decomposition of the tall matrix.
    """
    matrix = real_entries(alignment, document_mask, query_mask)
    if matrix.shape[-2] >= matrix.shape[-1]:
        matrix = matrix.transpose(-1, -2)
    squares = torch.linalg.eigvalsh(matrix @ matrix.transpose(-1, -2)).flip(-1)
    smallest = ROUNDING * squares.shape[-1] * squares[..., :1]
    return squares.where(squares > smallest, 0).sqrt()


def effective_rank(values: Tensor) -> Tensor:
    """(...) exp of the entropy of (..., K) singular values; 0 where all are zero."""
    shares = normalised_values(values)
    return torch.special.entr(shares).sum(-1).exp() * (values > 0).any(-1)


def equal_rows_residual(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, M, N) float64 A − 1rᵀ with r the mean of the real rows, zero at padding."""
    matrix = real_entries(alignment, document_mask, query_mask)
    tokens = document_mask.sum(-1).clamp(min=1)[..., None, None]
    mean = matrix.sum(-2, keepdim=True) / tokens
    return (matrix - mean) * document_mask.unsqueeze(-1)


def real_entries(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, M, N) float64, A with zeros at padding."""
    return alignment.double().masked_fill(~pair_mask(document_mask, query_mask), 0)


def normalised_values(values: Tensor) -> Tensor:
    """(..., K) values divided by their sum; zeros stay zeros."""
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total, 0.0)


@part("analysis")
class LowRank(Analysis):
    """How close are alignments to rank one, and what does Lemma 5.1 promise?

    The system's own A is measured, and of a system with salience also Ã, the alignment before it.
    Of stores with many layers and heads an even sample of the pairs (`HeadSample`). A matrix of
    zeros has neither relative errors nor a rank nor a spectrum, and is left out of their means.
    """

    name, title = "low_rank", "Low rank"
    reading = (
        "How far the last layer's alignment is from a matrix of rank one, relative to its norm: 0 "
        "is rank one. “relative error” is that of a matrix with equal rows, as in Lemma 5.1, "
        "“rank one” that of the best matrix of rank one; “without salience” measures the alignment "
        "before tokens are weighted."
    )
    metrics = (
        Metric(
            "relative_error",
            "The distance from a matrix of equal rows (Lemma 5.1), relative to the alignment's "
            "norm: 0 is equal rows.",
            headline=True,
        ),
        Metric(
            "relative_error_rank_one",
            "The distance from the nearest matrix of rank one, relative to the alignment's norm: "
            "0 is rank one.",
            headline=True,
        ),
        Metric("effective_rank", "How many independent patterns the alignment is made of."),
    )
    words: ClassVar[dict[str, str]] = {
        "without salience": "The alignment before tokens are weighted by their salience."
    }

    def __init__(self, subject: Subject):
        store = subject.store
        self.description = store.description
        self.generative = store.description.paradigm == "generative"
        self.bounded = bool(store.path_names)  # a softmax over the query's tokens, with its norms
        self.sample = HeadSample(len(store), store.layers * store.heads)
        self.parts: dict[str, list[dict[str, Tensor]]] = {OWN: [], PAIRWISE: []}  # (n, L, H)
        self.spectra: dict[str, Tensor] = {}  # (L, K) sums over pairs and heads
        self.projections: Tensor | None = None  # (L, H) ‖W‖₁

    def update(self, batch: Explanation, first: int) -> None:
        rows = self.sample.rows(first, len(batch))
        if not len(rows):
            return
        layers = [select(pairs, rows) for pairs in batch.layers]
        alignments = {OWN: [(pairs, pairs.alignment) for pairs in layers]}
        if batch.pairwise is not None:
            alignments[PAIRWISE] = [(layers[-1], batch.pairwise[rows])]
        for name, each in alignments.items():
            found, spectra = zip(*(self._measured(*one) for one in each), strict=True)
            measures = {key: torch.stack([one[key] for one in found], 1) for key in found[0]}
            if self.bounded:
                measures |= self._bounds(measures, batch, rows)
            self.parts[name].append(measures)  # in float32 a bound could be infinite
            self.spectra[name] = _added(self.spectra.get(name), torch.stack(spectra))

    def _measured(self, pairs: PairAlignment, alignment: Tensor) -> tuple[dict, Tensor]:
        """Measures (n, H) of one layer, and the sum of its normalised spectra (K,)."""
        heads = alignment.shape[1]
        masks = [m.repeat_interleave(heads, 0) for m in (pairs.document_mask, pairs.query_mask)]
        matrices = alignment.flatten(0, 1)
        values = singular_values(matrices, *masks)
        residual = equal_rows_residual(matrices, *masks)
        found = rank_measures(values, residual) | {"residual": composite_norm(residual)}
        found["relative_error"] = found["equal_rows"] / found["frobenius"]
        found["relative_error_rank_one"] = found["best_rank_one"] / found["frobenius"]
        found["effective_rank"] = found["effective_rank"].where(found["frobenius"] > 0, torch.nan)
        if self.bounded:
            terms = lemma_terms(matrices, *masks, SMALLEST[self.description.precision])
            found |= {"residual_lemma": terms.residual, "logits_norm": terms.logits_norm}
            found |= {"gamma_squared": terms.gamma_squared, "bound_entries": terms.bound}
            found |= {"trivial": terms.trivial, "small_spread": terms.small_spread}
        found = {key: value.unflatten(0, (-1, heads)) for key, value in found.items()}
        return found, normalised_values(values).sum(0)

    def _bounds(self, measures: dict, batch: Explanation, rows: Tensor) -> dict[str, Tensor]:
        """γ and the lemma's 4γ‖W‖, (n, L, H)."""
        decoder = batch.decoder
        self.projections = decoder.projection_norms.double()
        residuals = decoder.document_norms[rows].double() * decoder.query_norms[rows, None].double()
        gamma = measures["gamma_squared"] * residuals[..., None]
        trivial, bound = measures.pop("trivial"), 4 * gamma * self.projections
        found = {"gamma": gamma, "bound": bound}
        found["vacuous_entries"] = (measures["bound_entries"] >= trivial).double()
        return found | {"vacuous": (bound >= trivial).double()}

    def finish(self) -> Findings:
        """Metrics of the last layer, the tables `low_rank` and `spectrum`, and Figure 4."""
        if not self.parts[OWN]:
            return Findings()
        values = {
            name: {key: torch.cat([one[key] for one in parts]) for key in parts[0]}
            for name, parts in self.parts.items()
            if parts
        }
        metrics, rows, spectra = {}, [], {}
        for name, found in values.items():
            place = "" if name == OWN else f"{name}/"
            metrics |= {place + key: float(found[key][:, -1].nanmean()) for key in MEANS}
            rows += self._rows(name, found)
            measured = (found["frobenius"] > 0).sum((0, 2))  # of each layer
            # (L, K) mean normalised singular values; NaN where all matrices are zeros
            spectra[name] = self.spectra[name] / measured[:, None]
        shares = [
            {"alignment": name, "layer": layer, "number": number, "share": share}
            for name, found in spectra.items()
            for layer, values_of_layer in enumerate(found.tolist(), start=1)
            for number, share in enumerate(values_of_layer, start=1)
        ]
        tables = {"low_rank": rows, "spectrum": shares}
        return Findings(named(self.name, metrics), tables, self._figures(values, spectra, rows))

    def _rows(self, name: str, values: dict[str, Tensor]) -> Iterator[Row]:
        """For each layer and head means over pairs; of the norms, which span orders, medians."""
        pairs, layers, heads = values["frobenius"].shape
        columns = {key: value.nanmean(0) for key, value in values.items() if key in AVERAGED}
        medians = [key for key in values if key not in AVERAGED]
        columns |= {key: values[key].nanmedian(0).values for key in medians}
        if self.projections is not None:
            columns["projection_norm"] = self.projections
        for layer, head in product(range(layers), range(heads)):
            row: Row = {"alignment": name, "layer": layer + 1, "head": head + 1}
            row |= {key: float(value[layer, head]) for key, value in columns.items()}
            yield row | {"pairs": pairs}

    def _figures(
        self, values: dict[str, dict[str, Tensor]], spectra: dict[str, Tensor], rows: list[Row]
    ) -> list[tuple[Figure, GalleryEntry]]:
        errors, shown = {measure: {} for measure in ERRORS}, {}
        for name, found in values.items():
            for layer, spectrum in enumerate(spectra[name]):
                label = str(layer + 1) if self.generative else LABELS[name, PAIRWISE in values]
                for measure, boxes in errors.items():
                    boxes[label] = found[measure][:, layer].flatten()
                shown[label] = spectrum
        title = self.description.title
        entry = GalleryEntry("low_rank", "Distance from rank one (the paper's Figure 4b)", RANKS)
        axis = "decoder layer" if self.generative else ""
        figures = [(rank_figure(errors, shown, axis, title), entry)]
        if self.bounded:
            entry = GalleryEntry("low_rank_bound", "Lemma 5.1 (the paper's Figure 4a)", NORMS)
            figures.insert(0, (norm_figure(rows, title), entry))
        return figures


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Adds spectra of different lengths; the shorter one ends in zeros."""
    if total is None:
        return part
    shorter, longer = sorted((total, part), key=lambda spectra: spectra.shape[-1])
    return longer + pad(shorter, (0, longer.shape[-1] - shorter.shape[-1]))


@styled
def norm_figure(rows: Sequence[Row], title: str) -> Figure:
    """‖A − R‖ and its bounds against ‖W‖, one mark a head (Figure 4a), of the table `low_rank`."""
    figure = page_figure(title, PANEL_HEIGHT + 0.9)
    axes = figure.subplots()
    layers = [row["layer"] for row in rows]
    norms = [row["projection_norm"] for row in rows]
    # The end of the colour map is too pale for paper.
    last = 1 + (max(layers) - 1) / 0.85 if max(layers) > 1 else 2
    look = {"c": layers, "cmap": "viridis", "vmin": 1, "vmax": last, "s": 18}
    for name, (marker, _) in MARKS.items():
        image = axes.scatter(norms, [row[name] for row in rows], marker=marker, **look)
    ends = [min(norms), max(norms)]
    axes.plot(ends, ends, linestyle="--", color=COLOURS[7], linewidth=1)
    axes.set_yscale("log")
    axes.grid(axis="y")
    axes.set(xlabel="‖W‖₁ of the head's projections", ylabel="norm (log scale)")
    bar = figure.colorbar(image, ax=axes, label="decoder layer")
    bar.ax.set_ylim(0.999, max(layers) if max(layers) > 1 else 2)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    marks = [
        Line2D([], [], linestyle="", marker=marker, color="#444444", label=label)
        for marker, label in MARKS.values()
    ]
    dashed = Line2D([], [], linestyle="--", color=COLOURS[7], label="‖W‖₁")
    legend_below(figure, 4, [*marks, dashed])
    return figure


@styled
def rank_figure(
    errors: Mapping[str, Mapping[str, Tensor]], spectra: Mapping[str, Tensor], axis: str, title: str
) -> Figure:
    """The distribution of the relative error (Figure 4b) and the mean spectrum.

    Args:
        errors: measure of `ERRORS` → label → (n,) relative errors, NaN of alignments of zeros.
        spectra: label → (K,) mean normalised singular values, the same labels.
        axis: what the labels count; "" where they speak for themselves.
        title: the line above both panels.
    """
    figure = page_figure(title, PANEL_HEIGHT + 0.6)
    left, right = figure.subplots(1, 2)
    for number, boxes in enumerate(errors.values()):
        draw_boxes(left, [box[box.isfinite()] for box in boxes.values()], number)
    left.set_xticks(range(len(spectra)), list(spectra))
    left.set(xlim=(-0.6, len(spectra) - 0.4), ylim=(0, 1.05))
    left.grid(axis="y")
    left.set(title="relative error", xlabel=axis, ylabel="‖A − R‖ / ‖A‖")
    handles = box_handles(ERRORS.values())
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False)
    _draw_spectra(right, spectra)
    if len(spectra) > 1:
        right.legend(title=axis or None, frameon=False, ncols=1 + (len(spectra) - 1) // 6)
    return figure


def _draw_spectra(axes: Axes, spectra: Mapping[str, Tensor]) -> None:
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
    axes.set(
        title="mean spectrum", xlabel="number of the singular value", ylabel="share of their sum"
    )
