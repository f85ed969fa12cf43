"""How close is an alignment to rank one? (gr_as_mvdr §5.2.4 and §7.4, Lemma 5.1, Figure 4)

Lemma 5.1 promises a rank-one matrix R near A. Its proof constructs one with equal rows, R = 1rᵀ, in
which every document token spreads its attention over the query in the same way. Both are measured
here, as is the paper's norm ‖X‖_{1,∞}.

Lemma 5.1's bound can be computed from the attention matrix itself (Appendix B). Attention is
A = softmax(L) over query tokens, with logits L = D W Qᵀ (tokens as rows). Subtract the mean from
both sides, D = R_d + 1dᵀ and Q = R_q + 1qᵀ. Terms that are constant along a row of L cancel in the
softmax, and A = softmax(E + 1rᵀ) remains. Here E = R_d W R_qᵀ is L without its row and column
means, and r holds the column means that were removed. Since log A = L − (a constant for each row),
E and r can be computed from log A.

Let R = 1 softmax(r)ᵀ, a rank-one matrix with equal rows. Then

    A_ij / R_ij = exp(E_ij) / Σ_k softmax(r)_k exp(E_ik),

whose denominator is a weighted mean and lies between the smallest and the largest exp(E_ik) of the
row. With s_i = max_j E_ij − min_j E_ij, the quotient is within [exp(−s_i), exp(s_i)], hence

    |A_ij − R_ij| ≤ R_ij (exp(s_i) − 1).

Each row of R sums to 1 and its columns are constant, so summing over rows and columns gives

    ‖A − R‖_∞ ≤ max_i (exp(s_i) − 1),    ‖A − R‖₁ ≤ max_j softmax(r)_j · Σ_i (exp(s_i) − 1),

and the root of the product of the two right-hand sides bounds ‖A − R‖_{1,∞}. Written in the lemma's
form 4γ²‖E‖₁, this bound defines γ² by the matrix entries. Because ‖E‖₁ ≤ ‖R_d‖₁ ‖W‖₁ ‖R_qᵀ‖₁, the
lemma's right-hand side is 4γ‖W‖₁ with γ = γ² ‖R_d‖₁ ‖R_qᵀ‖₁ "depending on the matrix entries".

Dong et al. (ICML 2021, Lemma A.3) replace exp(s) − 1 by 2s, which is valid only for s ≤ 1.256. The
exponential needs no condition, but makes the bound vacuous if attention is sharp.
"""

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import BOXES, GalleryEntry, draw_boxes, draw_lines
from analysis.questions.analysis import Findings, PairAnalysis
from analysis.runs.queries import tabulate_queries
from analysis.statistics import long_frame
from gr_mvdr.alignment import pair_mask
from gr_mvdr.measures import Metric
from gr_mvdr.options import part
from gr_mvdr.relevance import DecoderPaths, Explanation, divide


def composite_norm(matrix: Tensor) -> Tensor:
    """‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞), the norm of Lemma 5.1 (Dong et al., ICML 2021).

    ‖X‖₁ is the largest sum of absolute values of a column, ‖X‖_∞ the largest of a row.

    Args:
        matrix: (..., M, N), zero at padding.

    Returns:
        (...) of the same dtype.
    """
    sizes = matrix.abs()
    return (sizes.sum(-2).amax(-1) * sizes.sum(-1).amax(-1)).sqrt()


def lemma_terms(
    attention: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    smallest: float = torch.finfo(torch.float32).tiny,
) -> dict[str, Tensor]:
    """Computes the terms of Lemma 5.1, derived above.

    Args:
        attention: (B, M, N), whose real rows are scaled to a sum of 1; heads may be flattened
            into B.
        document_mask: (B, M) bool.
        query_mask: (B, N) bool.
        smallest: weights are clamped to this value before the logarithm; use `SMALLEST` of the
            precision they were stored in. Then s_i ≤ 2 ln(1 / smallest), which is 175 for fp32, and
            exp(s_i) cannot overflow.

    Returns:
        (B,) float64 each: `residual_lemma` ‖A − R‖_{1,∞} of the lemma's own R; `logits_norm` ‖E‖₁;
        `bound_entries` 4γ²‖E‖₁, never below the residual; `gamma_squared` γ², NaN if E = 0, for
        which any γ satisfies the lemma.
    """
    real = pair_mask(document_mask, query_mask)
    rows, columns = document_mask.unsqueeze(-1), query_mask.unsqueeze(-2)
    # In a causal language model, rows sum to the query's part of a softmax.
    attention = divide(attention.double(), attention.double().sum(-1, keepdim=True))
    logs = attention.clamp_min(smallest).log() * real
    logs = (logs - logs.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True).clamp(min=1)) * real
    means = logs.sum(-2, keepdim=True) / rows.sum(-2, keepdim=True).clamp(min=1)
    logits = (logs - means) * real
    shared = means.masked_fill(~columns, -torch.inf).softmax(-1)
    # Zeros at padding are never the extremes, since centred rows have values of both signs.
    spread = logits.amax(-1) - logits.amin(-1)
    growth = spread.expm1()
    bound = (growth.amax(-1) * shared.amax((-2, -1)) * growth.sum(-1)).sqrt()
    logits_norm = logits.abs().sum(-2).amax(-1)
    return {
        "residual_lemma": composite_norm((attention - shared) * real),
        "logits_norm": logits_norm,
        "bound_entries": bound,
        "gamma_squared": bound / (4 * logits_norm),
    }


# Eigenvalues below this share of the Gram matrix's largest, times its size, are rounding errors.
ROUNDING = 1e-15


def low_rank(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> dict[str, Tensor]:
    """Measures norm, rank and distance from rank one of alignments (gr_as_mvdr Lemma 5.1).

    Args:
        alignment: (B, M, N), any float type; heads and layers may be flattened into B.
        document_mask: (B, M) bool.
        query_mask: (B, N) bool.

    Returns:
        (B,) float64 each: `frobenius` ‖A‖_F; `equal_rows` ‖A − 1rᵀ‖_F with the best r, the mean
        of the real rows; `best_rank_one` ‖A − R‖_F with the best R of rank one (Eckart and
        Young); `effective_rank`, exp of the entropy of the normalised singular values (Roy and
        Vetterli, 2007), 0 for a matrix of zeros.
    """
    masks = document_mask, query_mask
    return rank_measures(singular_values(alignment, *masks), equal_rows_residual(alignment, *masks))


def rank_measures(values: Tensor, residual: Tensor) -> dict[str, Tensor]:
    """Computes `low_rank` from singular values (..., K) and the equal-rows residual (..., M, N)."""
    squares, shares = values.square(), divide(values, values.sum(-1, keepdim=True))
    return {
        "frobenius": squares.sum(-1).sqrt(),
        "equal_rows": residual.square().sum((-2, -1)).sqrt(),
        "best_rank_one": squares[..., 1:].sum(-1).sqrt(),
        "effective_rank": torch.special.entr(shares).sum(-1).exp() * (values > 0).any(-1),
    }


def singular_values(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, min(M, N)) float64 singular values in descending order.

    They are the square roots of the smaller Gram matrix's eigenvalues, which is accurate to 1e-8 of
    the largest one and far faster than a decomposition of the tall matrix.
    """
    matrix = real_entries(alignment, document_mask, query_mask)
    if matrix.shape[-2] >= matrix.shape[-1]:
        matrix = matrix.transpose(-1, -2)
    squares = torch.linalg.eigvalsh(matrix @ matrix.transpose(-1, -2)).flip(-1)
    smallest = ROUNDING * squares.shape[-1] * squares[..., :1]
    return squares.where(squares > smallest, 0).sqrt()


def equal_rows_residual(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, M, N) float64 A − 1rᵀ with r the mean of the real rows, zero at padding."""
    matrix = real_entries(alignment, document_mask, query_mask)
    tokens = document_mask.sum(-1).clamp(min=1)[..., None, None]
    mean = matrix.sum(-2, keepdim=True) / tokens
    return (matrix - mean) * document_mask.unsqueeze(-1)


def real_entries(alignment: Tensor, document_mask: Tensor, query_mask: Tensor) -> Tensor:
    """(B, M, N) float64, A with zeros at padding."""
    return alignment.double().masked_fill(~pair_mask(document_mask, query_mask), 0)


OWN, PAIRWISE = "own", "without_salience"
ERRORS = {"relative_error": "R of equal rows", "relative_error_rank_one": "best R of rank one"}
MEANS = (*ERRORS, "effective_rank")
# The smallest weight that a store's precision can tell from zero.
SMALLEST = {"float32": torch.finfo(torch.float32).tiny, "float16": 2.0**-24}
MARKS = {
    "residual": "‖A − R‖",
    "bound_entries": "4γ²‖E‖₁, from the logits",
    "bound": "4γ‖W‖₁, Lemma 5.1",
    "projection_norm": "‖W‖₁",
}


@part("analysis")
class LowRank(PairAnalysis):
    """How close are alignments to rank one, and what does Lemma 5.1 promise?

    The system's own A is measured and, if the system has salience, also Ã, the alignment without
    it. Matrices of zeros have no relative error or rank and are left out.
    """

    name, title = "low_rank", "Low rank"
    reading = "How far the last layer's alignment is from rank one, relative to its norm."
    metrics = (
        Metric(
            "relative_error",
            "The distance from the best matrix of equal rows (Lemma 5.1): 0 is equal rows.",
            headline=True,
        ),
        Metric(
            "relative_error_rank_one",
            "The distance from the best matrix of rank one: 0 is rank one.",
            headline=True,
        ),
        Metric(
            "effective_rank",
            "The exponential of the entropy of the singular values, scaled to sum to one: 1 at "
            "rank one, n if n singular values are equal and the others are zero.",
        ),
    )

    def measure(self, batch: Explanation, first: int) -> Iterator[DataFrame]:
        layers = [(pairs, pairs.alignment) for pairs in batch.layers]
        alignments = [(OWN, layer, *both) for layer, both in enumerate(layers, start=1)]
        if batch.pairwise is not None:
            alignments.append((PAIRWISE, len(layers), batch.layers[-1], batch.pairwise))
        for name, layer, pairs, alignment in alignments:
            masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
            values = singular_values(alignment, *masks)
            residual = equal_rows_residual(alignment, *masks)
            found = rank_measures(values, residual) | {"residual": composite_norm(residual)}
            found["relative_error"] = found["equal_rows"] / found["frobenius"]
            found["relative_error_rank_one"] = found["best_rank_one"] / found["frobenius"]
            if batch.decoder is not None:  # A is a softmax over the query's tokens
                terms = lemma_terms(alignment, *masks, SMALLEST[self.description.precision])
                found |= _bound(terms, batch.decoder, layer)
            frame = long_frame(first, found, "head", alignment=name, layer=layer)
            yield frame[frame["frobenius"] > 0]

    def summarise(self, frame: DataFrame) -> Findings:
        """Returns metrics of the last layer, the tables of `low_rank` and Figure 4.

        A query's values are means over the heads of the last layer and its stored pairs, with the
        system's own A: what claims are tested on.
        """
        last = frame[frame["layer"] == frame["layer"].max()]
        numbers = []
        for name, rows in last.groupby("alignment"):
            numbers += self.rows(rows[[*MEANS]].mean().to_dict(), "" if name == OWN else name)
        matrices = frame.groupby(["alignment", "layer", "head"])
        measures = [n for n in frame if n not in ("pair", *matrices.keys)]
        # Norms span orders of magnitude.
        columns = {name: "mean" if name in MEANS else "median" for name in measures}
        table = matrices.agg(columns | {"pair": "size"}).rename(columns={"pair": "pairs"})
        title, table = self.description.title, table.reset_index()
        labels = {OWN: "alignment", PAIRWISE: "without salience"}
        if PAIRWISE in set(frame["alignment"]):
            labels[OWN] = "with salience"
        names = frame["alignment"].map(labels)
        if self.description.paradigm == "generative":
            names = "layer " + frame["layer"].astype(str)
        entry = GalleryEntry("low_rank", "Distance from rank one (the paper's Figure 4b)", RANKS)
        figures = [(rank_figure(frame.assign(label=names), title), entry)]
        if "bound" in table:
            entry = GalleryEntry("low_rank_bound", "Lemma 5.1 (the paper's Figure 4a)", NORMS)
            figures.insert(0, (norm_figure(table, title), entry))
        own = last[last["alignment"] == OWN]
        if "projection_norm" in own:
            own = own.assign(norm_ratio=own["residual"] / own["projection_norm"])
        queries = own["pair"].map(lambda pair: self.subject.store.pairs[pair][0]).rename("query")
        by_query = own[[n for n in (*MEANS, "norm_ratio") if n in own]].groupby(queries).mean()
        values = [tabulate_queries(self.name, by_query)]
        return self.findings(
            numbers, {"low_rank": table.to_dict("records")}, figures, queries=values
        )


def _bound(terms: dict[str, Tensor], decoder: DecoderPaths, layer: int) -> dict[str, Tensor]:
    """Adds γ and 4γ‖W‖₁, computed from a layer's norms, to the lemma's terms; (B, H) each."""
    norms = decoder.document_norms, decoder.query_norms
    documents, queries = (part[:, layer - 1, None] for part in norms)
    gamma = terms["gamma_squared"] * documents.double() * queries.double()
    norms = decoder.projection_norms[layer - 1].double().expand_as(gamma)
    return terms | {"gamma": gamma, "bound": 4 * gamma * norms, "projection_norm": norms}


NORMS = (
    "A point for each head, at the norm of its own projections ‖W‖₁; medians over pairs. ‖·‖ is "
    "the paper's √(‖·‖₁ ‖·‖_∞). Lines are the distance of A from the best matrix of equal rows, "
    "the bound 4γ²‖E‖₁ from the centred logits, the lemma's 4γ‖W‖₁, and ‖W‖₁ alone, with "
    "which the paper compares. The further the lines are apart, the less the lemma says about A."
)


def norm_figure(table: DataFrame, title: str) -> Figure:
    """Plots ‖A − R‖ and its bounds against ‖W‖, a point per head (Figure 4a)."""
    marks = table.assign(x=table["projection_norm"]).rename(columns=MARKS)
    points = marks.melt("x", [*MARKS.values()], "line", "y").assign(panel="")
    figure = draw_lines(points, title, "‖W‖₁ of the head's projections", "norm (log scale)")
    for axes in figure.axes:
        axes.set_yscale("log")
    return figure


RANKS = (
    "‖A − R‖ / ‖A‖ (Frobenius) over pairs and heads, with the best R of equal rows (blue; 0 where "
    "all document tokens look at the query alike) and the best R of rank one (orange). " + BOXES
)


def rank_figure(frame: DataFrame, title: str) -> Figure:
    """Plots the distribution of the relative error (Figure 4b).

    Args:
        frame: a row for each matrix: its `label` and the columns of `ERRORS`.
    """
    errors = frame.rename(columns=ERRORS | {"label": "x"}).melt(
        "x", [*ERRORS.values()], "line", "y"
    )
    return draw_boxes(errors.assign(panel=""), title, "", "‖A − R‖ / ‖A‖")
