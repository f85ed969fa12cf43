"""Exact term match in an alignment (Wu et al. §7.2, Figures 2 and 3).

An alignment that is normalised over the other side says, for every token of the aligning side,
how its attention is spread. The hard rate asks whether the strongest partner is the same token,
the soft rate how much of the whole spread falls on partners that are the same token.
"""

from collections.abc import Mapping
from itertools import product

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, Texts, named
from analysis.directed_alignment import (
    DIRECTIONS,
    aligning_side,
    directed_alignment,
    own_direction,
    softmax_of_alignment,
)
from analysis.figures import (
    ALIGNING,
    PANEL_HEIGHT,
    GalleryEntry,
    box_handles,
    draw_boxes,
    legend_below,
    page_figure,
    page_panels,
    styled,
)
from analysis.match_rates import DEFINITIONS, MEASURES, ExactMatchRates, HeadRates, exact_match
from analysis.statistics import HeadSample, select, spread
from analysis.store.alignment_store import StoreDescription
from analysis.tables import Row
from analysis.tokens import BIN_NAMES
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment

# Of a sparse alignment the paper takes the softmax of A, which weighs all tokens but the chosen one
# alike; "soft" is of the similarity behind it.
OF_A = "soft_of_a"
PANELS = {"hard": "hard exact match", "soft": "soft exact match", OF_A: "soft, of A itself"}

PAPERS_FIGURE = {"query_to_document": "Figure 2", "document_to_query": "Figure 3"}
OF_A_CAPTION = (
    " The third panel is the paper's soft rate, of the softmax of A itself (MaxSim's ones and "
    "zeros); the second takes the softmax of the similarity."
)
BOXES = (
    "One value for each token type of the aligning side: how often its strongest partner is "
    "the same token (hard), and how much of its alignment falls on equal tokens (soft). Boxes "
    "span the quartiles, the line is the median, the diamond the mean; rarer tokens are to "
    "the right. Blue counts every occurrence, orange (hatched) only those that have an equal "
    "token to match."
)
GENERATIVE = (
    " The paper shows only the soft rate of generative retrieval, since cross-attention "
    "is not trained to choose one token; the hard rate here is that of its largest weight."
)
HEADS = (
    "Each cell is one head of the decoder's cross-attention: how much of its alignment falls on "
    "equal tokens, averaged over the tokens of the aligning side. A dark cell is a head that "
    "copies; the two panels read the same attention in both directions."
)


class DirectedRates:
    """Exact match in both directions over the same pairs (§7.2).

    Args:
        description: of whose alignments they are.
        over: what the pairs are, where they are not relevant ones; in the names of what is found.
    """

    def __init__(self, description: StoreDescription, texts: Texts, over: str = ""):
        self.title, self.paradigm, self.over = description.title, description.paradigm, over
        sparse = own_direction(self.paradigm) == "query_to_document"
        self.measures = (*MEASURES, OF_A) if sparse else MEASURES
        self.rates = {d: ExactMatchRates(texts, self.measures) for d in DIRECTIONS}

    def update(self, pairs: PairAlignment, units: Tensor | None = None) -> None:
        """Takes in B pairs; units: see `ExactMatchRates.update`."""
        sides = pairs.document_ids, pairs.query_ids, pairs.document_mask, pairs.query_mask
        for direction, rates in self.rates.items():
            alignment = directed_alignment(pairs, self.paradigm, direction)
            match = exact_match(alignment, *sides, direction)
            if OF_A in self.measures:
                match += exact_match(softmax_of_alignment(pairs, direction), *sides, direction)[1:]
            rates.update(*aligning_side(pairs, direction), *match, units=units)

    def findings(self) -> Findings:
        """The table `exact_match`, its metrics and boxes; nothing without pairs."""
        if not self.rates[DIRECTIONS[0]].pairs:
            return Findings()
        rows = [{"direction": d} | row for d, rates in self.rates.items() for row in rates.rows()]
        values = {"/".join(filter(None, (self.over, k))): v for k, v in self._metrics(rows).items()}
        name = "_".join(filter(None, ("exact_match", self.over)))
        figures = [self._boxes(name, direction) for direction in DIRECTIONS]
        return Findings(named("exact_match", values), {name: rows}, figures)

    def _metrics(self, rows: list[Row]) -> dict[str, float]:
        """As "query_to_document/hard" over all occurrences, with its interval hard_low, hard_high.

        hard_matched is over those with a match, hard_content over those of content tokens,
        hard/idf_2_4 over a bin's token types; hard_idf_correlation is the trend.
        """
        suffixes = {
            ("all", "all"): "",
            ("matched", "all"): "_matched",
            ("all", "content"): "_content",
        }
        flat = {}
        for row in rows:
            suffix = suffixes.get((row["definition"], row["tokens"]))
            whole = row["idf_bin"] == "all"
            if suffix is None or (suffix == "_content" and not whole):
                continue
            place = "" if whole else "/idf_" + row["idf_bin"].replace("-", "_")
            for measure in self.measures:
                key = f"{row['direction']}/{measure}{suffix}"
                flat[key + place] = row[measure]
                if whole and not suffix:
                    flat |= {f"{key}_{end}": row[f"{measure}_{end}"] for end in ("low", "high")}
        for direction, measure in product(DIRECTIONS, self.measures):
            flat[f"{direction}/{measure}_idf_correlation"] = self.rates[direction].trend(measure)
        return flat

    def _boxes(self, name: str, direction: str) -> tuple[Figure, GalleryEntry]:
        words, over = direction.replace("_", " "), f", {self.over}" if self.over else ""
        heading = f"Exact match, {words}{over} (the paper's {PAPERS_FIGURE[direction]})"
        caption = BOXES + (OF_A_CAPTION if OF_A in self.measures else GENERATIVE)
        entry = GalleryEntry(f"{name}_{direction}", heading, caption)
        title = f"{self.title}: {words}{over}"
        return exact_match_boxes(self.rates[direction], direction, title), entry


@part("analysis")
class ExactMatch(Analysis):
    """How often do tokens align to themselves? (gr_as_mvdr §7.2)"""

    name, title = "exact_match", "Exact match"
    reading = (
        "How often a token aligns to the same token on the other side (hard: its strongest partner "
        "is the same token; soft: the share of its alignment on equal tokens). “hard” and “soft” "
        "average over all occurrences of the aligning tokens, “matched” only over those with an "
        "equal token to match. Under an IDF range is the average over the token types in it."
    )

    def __init__(self, subject: Subject):
        store, texts = subject.store, subject.texts
        self.description = store.description
        self.rates = DirectedRates(store.description, texts)
        self.sample = HeadSample(len(store), store.layers * store.heads)
        shape, heads = (store.layers, store.heads, texts), self.description.paradigm == "generative"
        self.heads = {d: HeadRates(d, *shape) for d in DIRECTIONS} if heads else {}

    def update(self, batch: Explanation, first: int) -> None:
        self.rates.update(batch.layers[-1])
        if self.heads:
            rows = self.sample.rows(first, len(batch))
            layers = [select(layer, rows) for layer in batch.layers]
            for heads in self.heads.values():
                heads.update(layers)

    def finish(self) -> Findings:
        """Tables `exact_match` and, of a generative system, `exact_match_heads`; their figures."""
        found = self.rates.findings()
        if self.heads and found.tables:
            found.tables["exact_match_heads"] = [
                r for heads in self.heads.values() for r in heads.rows()
            ]
            entry = GalleryEntry("exact_match_heads", "Exact match by layer and head", HEADS)
            means = {
                d: heads.means()[..., MEASURES.index("soft")] for d, heads in self.heads.items()
            }
            found.figures.append((head_map(means, self.description.title), entry))
        return found


@part("analysis")
class CandidateMatch(Analysis):
    """`ExactMatch` over the candidates of queries, relevant or not: the paper's average (§7.2).

    Args:
        queries: how many rerank queries of the first test split, evenly spread.
    """

    name = "exact_match"

    def __init__(self, subject: Subject, queries: int):
        self.model, self.data, self.split = subject.model, subject.data, subject.data.test_splits[0]
        self.queries = spread(self.data.rerank_queries(self.split), queries)
        self.rates = DirectedRates(subject.store.description, subject.texts, "candidates")

    @torch.inference_mode()
    def finish(self) -> Findings:
        # With the module of the data, which comparisons can do without.
        from analysis.framework_ranking import candidate_batches, candidate_pairs

        if not len(self.queries):
            return Findings()
        pairs = candidate_pairs(self.model.eval(), self.data, self.split, self.queries)
        for group, batch in candidate_batches(self.data, self.queries, pairs):
            found = self.model.align(batch.to(self.model.device))
            found = PairAlignment(**{name: one.cpu() for name, one in vars(found).items()})
            self.rates.update(found, units=torch.tensor([query for query, _ in group]))
        return self.rates.findings()


@styled
def exact_match_boxes(rates: ExactMatchRates, direction: str, title: str) -> Figure:
    """Hard and soft exact match of token types by IDF bin, as boxes (Figures 2 and 3)."""
    number = len(rates.measures)
    figure, panels = page_panels(title, number, PANEL_HEIGHT + 0.6, across=2)
    for axes, measure in zip(panels, rates.measures, strict=True):
        for number, definition in enumerate(DEFINITIONS):
            draw_boxes(axes, rates.by_bin(measure, definition), number)
        counts = [len(box) for box in rates.by_bin(measure, "all")]
        labels = [f"{name}\nn={n:,}" for name, n in zip(BIN_NAMES, counts, strict=True)]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        if measure == "hard":
            axes.set_ylim(-0.03, 1.03)
        else:  # a softmax over a long text spreads thin: its own scale, from zero
            axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        axes.grid(axis="y")
        axes.set(
            title=PANELS[measure],
            xlabel=f"IDF of the {ALIGNING[direction]} token (n = token types)",
        )
    figure.axes[0].set_ylabel("rate of a token type")
    legend_below(figure, 2, box_handles(DEFINITIONS.values()))
    return figure


@styled
def head_map(rates: Mapping[str, Tensor], title: str) -> Figure:
    """Soft exact match of every head as a map, one panel a direction of (L, H) rates."""
    layers = max(map(len, rates.values()))
    figure = page_figure(title, max(1.2 + 0.22 * layers, PANEL_HEIGHT))
    for axes, (direction, values) in zip(figure.subplots(1, 2), rates.items(), strict=True):
        axes.spines[:].set_visible(True)
        edges = 0.5, values.shape[1] + 0.5, values.shape[0] + 0.5, 0.5
        # White is zero, so that a map of heads alike does not look like a map of contrasts.
        image = axes.imshow(values.numpy(), cmap="Blues", vmin=0, aspect="auto", extent=edges)
        figure.colorbar(image, ax=axes, label="soft exact match")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
        axes.set(title=direction.replace("_", " "), xlabel="head")
    figure.axes[0].set_ylabel("decoder layer")
    return figure
