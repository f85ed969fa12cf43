"""How sharp is an alignment, and do two agree? (gr_as_mvdr §5.2.2 sparsity, §5.2.3 direction)

The functions read alignments (..., M, N) that are normalised over the other side and zero at
padding (`analysis.viewer.directed_alignment`), and return one value for each token of the
aligning side, (..., N) of "query_to_document" and (..., M) of "document_to_query".
"""

from collections.abc import Iterator, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import (
    COLOURS,
    MARKERS,
    PANEL_HEIGHT,
    GalleryEntry,
    legend_below,
    page_figure,
    styled,
)
from analysis.statistics import HeadSample, select
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.viewer.directed_alignment import (
    DIRECTIONS,
    aligning_side,
    directed_alignment,
    directed_heads,
    own_direction,
)
from gr_mvdr.alignment import other_side, pair_mask
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment

SUPPORT = 1e-6  # weights above this count as support
DEPTHS = (1, 2, 5)
MEASURES = ("entropy", "relative_entropy", *(f"top_{k}" for k in DEPTHS), "support")
HEADLINES = ("entropy", "top_1", "support")
DIRECTED, OWN = "directed", "own"
CAPTION = (
    "Left: the share of a token's alignment that its strongest partners hold, last layer; a high "
    "line is a sparse alignment. Right: entropy as a share of its largest value, 0 is one "
    "partner, 1 an even spread; one mark a head, slightly apart where systems or directions meet. "
    '"Directed" is the alignment as all systems are compared: the softmax of the similarity over '
    "the other side, or the mean of the attention's heads; \"own\" is the system's A itself."
)

Key = tuple[str, int, str]  # "directed" or "own", layer, direction


def entropy(alignment: Tensor, direction: str) -> Tensor:
    """The entropy of each token's weights in nats: 0 of one partner, ln n of n equal ones."""
    return torch.special.entr(alignment).sum(other_side(direction))


def largest_entropy(document_mask: Tensor, query_mask: Tensor, direction: str) -> Tensor:
    """(..., 1) fp32, the entropy of weights spread evenly: ln of the other side's real length."""
    other = (document_mask, query_mask)[other_side(direction) + 2]
    return other.sum(-1, keepdim=True).float().clamp(min=1).log()


def top_mass(alignment: Tensor, depths: Sequence[int], direction: str) -> Tensor:
    """The share of each token's weight that its k strongest partners hold.

    Args:
        alignment: (..., M, N). depths: D values of k ≥ 1. direction: which side aligns.

    Returns:
        (..., T, D); 1 where the other side has at most k tokens.
    """
    rows = alignment.movedim(other_side(direction), -1)
    strongest = rows.topk(min(max(depths), rows.shape[-1]), -1).values.cumsum(-1)
    return torch.stack([strongest[..., min(k, strongest.shape[-1]) - 1] for k in depths], -1)


def support(alignment: Tensor, direction: str, threshold: float = SUPPORT) -> Tensor:
    """How many partners of each token weigh more than `threshold`, int64."""
    return (alignment > threshold).sum(other_side(direction))


def links_returned(
    query_to_document: Tensor, document_to_query: Tensor, document_mask: Tensor, query_mask: Tensor
) -> Tensor:
    """Do both directions agree? Is query token j the strongest of j's own strongest partner?

    Args:
        query_to_document, document_to_query: (..., M, N) the same pair in both directions.
        document_mask: (..., M) bool. query_mask: (..., N) bool.

    Returns:
        (..., N) bool, False at padding and where a token on the way is aligned to nothing.
    """
    masks = document_mask, query_mask
    partner, linked = _strongest(query_to_document, *masks, "query_to_document")
    back, returned = _strongest(document_to_query, *masks, "document_to_query")
    own = torch.arange(query_mask.shape[-1], device=back.device)
    found = (back.gather(-1, partner) == own) & returned.gather(-1, partner)
    return found & linked


def agreement(
    first: Tensor, second: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> tuple[Tensor, Tensor]:
    """How alike do two systems align the same tokens?

    Args:
        first, second: (..., M, N) the systems' alignments of the same pair.
        document_mask: (..., M) bool. query_mask: (..., N) bool. direction: which side aligns.

    Returns:
        equal: (..., T) bool, both choose the same strongest partner.
        overlap: (..., T) Σ min(first, second), 1 of equal weights, 0 of disjoint ones.
        Both are False / 0 at padding.
    """
    masks = document_mask, query_mask
    one, first_linked = _strongest(first, *masks, direction)
    other, second_linked = _strongest(second, *masks, direction)
    real = pair_mask(*masks)
    overlap = torch.minimum(first, second).masked_fill(~real, 0).sum(other_side(direction))
    return (one == other) & first_linked & second_linked, overlap


def _strongest(
    alignment: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> tuple[Tensor, Tensor]:
    """Each token's strongest partner (..., T) int64, and whether it has one at all."""
    hidden = alignment.masked_fill(~pair_mask(document_mask, query_mask), -torch.inf)
    strength, partner = hidden.max(other_side(direction))
    return partner, strength > 0


@part("analysis")
class Shape(Analysis):
    """How sharp are alignments, and do both directions agree?

    "directed" is the alignment as all systems are compared, `directed_alignment`; "own" the
    system's A itself: the attention of every head in both directions, or of other systems the
    sparse A, each query token's weights divided by their sum. Special tokens do not align; a token
    that is aligned to nothing has no shape, and only the share `aligned` tells of it.
    """

    name, title = "shape", "Sparsity and shape"
    reading = (
        "How an alignment is spread over its partners, in both directions and, as “own”, as the "
        "system itself uses it; and how often both directions agree on a partner."
    )
    metrics = (
        Metric("entropy", "How widely a token spreads its alignment: 0 is one partner."),
        Metric("relative_entropy", "Entropy as a share of its largest value: 1 is an even spread."),
        Metric("support", "The number of partners with any weight."),
        Metric("top_#", "The share of a token's alignment that its strongest partners hold."),
        Metric("directions_agree", "How often two tokens are each other's strongest partner."),
    )

    def __init__(self, subject: Subject):
        store = subject.store
        self.description, self.special = store.description, subject.texts.kinds.special
        self.sample = HeadSample(len(store), store.layers * store.heads)
        self.sums: dict[Key, Tensor] = {}  # (heads, measures)
        self.aligned: dict[Key, Tensor] = {}  # (heads,) tokens with a partner
        self.tokens: dict[Key, int] = {}
        self.returned = torch.zeros(2, dtype=torch.float64)  # links returned, links

    def update(self, batch: Explanation, first: int) -> None:
        paradigm = self.description.paradigm
        rows = self.sample.rows(first, len(batch))
        own = DIRECTIONS if paradigm == "generative" else (own_direction(paradigm),)
        for number, pairs in enumerate(batch.layers, start=1):
            both = {d: directed_alignment(pairs, paradigm, d) for d in DIRECTIONS}
            for direction, alignment in both.items():
                self._add((DIRECTED, number, direction), pairs, alignment[:, None])
            sampled = select(pairs, rows)
            for direction in own if len(rows) else ():
                alignment = directed_heads(sampled, direction)
                self._add((OWN, number, direction), sampled, alignment)
        last = batch.layers[-1]
        returned = links_returned(*both.values(), last.document_mask, last.query_mask)
        counted = self._counted(last, "query_to_document")
        self.returned += torch.stack([(returned & counted).sum(), counted.sum()])

    def _counted(self, pairs: PairAlignment, direction: str) -> Tensor:
        tokens, mask = aligning_side(pairs, direction)
        return mask & ~self.special[tokens]

    def _add(self, key: Key, pairs: PairAlignment, alignment: Tensor) -> None:
        direction = key[-1]
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        counted = self._counted(pairs, direction)[:, None]
        found, largest = entropy(alignment, direction), largest_entropy(*masks, direction)
        # Against a text of one token there is no choice: 0 of 0.
        relative = torch.where(largest > 0, found / largest, 0.0)
        columns = [found, relative, *top_mass(alignment, DEPTHS, direction).unbind(-1)]
        values = torch.stack([*columns, support(alignment, direction)], -1)  # (B, H, T, measures)
        aligned = counted & (values[..., MEASURES.index("top_1")] > 0)
        sums = (values * aligned[..., None]).sum((0, 2), dtype=torch.float64)
        self.sums[key] = self.sums.get(key, 0) + sums
        self.aligned[key] = self.aligned.get(key, 0) + aligned.sum((0, 2))
        self.tokens[key] = self.tokens.get(key, 0) + int(counted.sum())

    def finish(self) -> Findings:
        """Metrics of the last layer, the table `shape` and its figure."""
        if not self.sums:
            return Findings()
        rows = list(self._rows())
        entry = GalleryEntry("shape", "Sparsity of the alignment", CAPTION)
        figures = [(shape_figure(rows, self.description.title), entry)]
        return Findings(named(self.name, self._metrics()), {"shape": rows}, figures)

    def _means(self, key: Key) -> Tensor:
        """(heads, measures) over the tokens that are aligned."""
        return self.sums[key] / self.aligned[key][:, None]

    def _metrics(self) -> dict[str, float]:
        last = max(layer for _, layer, _ in self.sums)
        keys = {direction: (DIRECTED, last, direction) for direction in DIRECTIONS}
        keys[OWN] = OWN, last, own_direction(self.description.paradigm)
        flat = {"directions_agree": float(self.returned[0] / self.returned[1])}
        for name, key in keys.items():
            means = dict(zip(MEASURES, self._means(key).mean(0).tolist(), strict=True))
            flat |= {f"{name}/{measure}": means[measure] for measure in HEADLINES}
        return flat

    def _rows(self) -> Iterator[Row]:
        """For each alignment, layer, direction and head a row of means over tokens."""
        for key in sorted(self.sums):
            alignment, layer, direction = key
            shares = self.aligned[key] / max(1, self.tokens[key])
            for number, means in enumerate(self._means(key).tolist()):
                head = number + 1 if alignment == OWN else "mean"
                row: Row = {"alignment": alignment, "layer": layer, "head": head}
                row |= {"direction": direction} | dict(zip(MEASURES, means, strict=True))
                yield row | {"aligned": float(shares[number]), "tokens": self.tokens[key]}


@styled
def shape_figure(rows: Sequence[Row], title: str) -> Figure:
    """Mass in the top k and relative entropy, of the table `shape`."""
    figure = page_figure(title, PANEL_HEIGHT + 0.6)
    left, right = figure.subplots(1, 2)
    series = list(dict.fromkeys((row["alignment"], row["direction"]) for row in rows))
    for number, (alignment, direction) in enumerate(series):
        label = f"{alignment}, {direction.replace('_', ' ')}"
        look = {"color": COLOURS[number], "marker": MARKERS[number], "label": label}
        chosen = [r for r in rows if (r["alignment"], r["direction"]) == (alignment, direction)]
        _draw_top(left, chosen, look)
        offset = (number - (len(series) - 1) / 2) * 0.15
        layers = [row["layer"] + offset for row in chosen]
        values = [row["relative_entropy"] for row in chosen]
        right.plot(layers, values, linestyle="", alpha=0.8, **look)
    left.set(ylim=(0, 1.03), xlabel="strongest partners", ylabel="share of the weight")
    last = max(row["layer"] for row in rows)
    right.set(xlim=(0.4, last + 0.6), ylim=(-0.03, 1.03))
    right.set_xticks(range(1, last + 1))
    right.set(xlabel="layer", ylabel="entropy / largest entropy")
    for axes in (left, right):
        axes.grid(axis="y")
    legend_below(figure, 2)
    return figure


def _draw_top(axes: Axes, rows: Sequence[Row], look: dict) -> None:
    """The mean over the last layer's heads."""
    last = [row for row in rows if row["layer"] == max(row["layer"] for row in rows)]
    means = [sum(row[f"top_{k}"] for row in last) / len(last) for k in DEPTHS]
    axes.plot(DEPTHS, means, **look)
    axes.set_xticks(DEPTHS)
