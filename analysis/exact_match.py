"""Exact term match in an alignment (Wu et al. §7.2, Figures 2 and 3).

An alignment that is normalised over the other side says, for every token of the aligning side,
how its attention is spread. The hard rate asks whether the strongest partner is the same token,
the soft rate how much of the whole spread falls on partners that are the same token.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import ClassVar

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, Texts, named
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
from analysis.statistics import HeadSample, interval, select, spearman, spread
from analysis.store.alignment_store import StoreDescription
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.tokens import BIN_NAMES, idf_bin
from analysis.viewer.directed_alignment import (
    DIRECTIONS,
    aligning_side,
    directed_alignment,
    directed_heads,
    own_direction,
    softmax_of_alignment,
)
from gr_mvdr.alignment import other_side, pair_mask
from gr_mvdr.options import Count, check_choice, part
from gr_mvdr.relevance import Explanation, PairAlignment

MEASURES = ("hard", "soft")
# Two public definitions exist: over every occurrence of a token, and only over those that have an
# equal token to match, which is where the soft value is above HAS_MATCH.
DEFINITIONS = {"all": "all occurrences", "matched": "only where an equal token exists"}
HAS_MATCH = 1e-6
TOKENS = ("all", "content")  # of the aligning tokens; special ones are in neither


def exact_match(
    alignment: Tensor,
    document_ids: Tensor,
    query_ids: Tensor,
    document_mask: Tensor,
    query_mask: Tensor,
    direction: str,
) -> tuple[Tensor, Tensor]:
    """Hard and soft exact match of every token of the aligning side (Wu et al. §7.2).

    Leading axes broadcast, so that one set of ids may serve many heads: give ids and masks an
    axis of size 1 there. A token that is aligned to nothing (a row of zeros) matches nothing.

    Args:
        alignment: (..., M, N), any float type, already normalised over the other side.
        document_ids: (..., M) int64.
        query_ids: (..., N) int64.
        document_mask: (..., M) bool, True = real token.
        query_mask: (..., N) bool, True = real token.
        direction: "query_to_document" gives one value for each query token,
            "document_to_query" one for each document token.

    Returns:
        hard: (..., N) or (..., M) bool, the aligned token (argmax) has the same id.
        soft: the same shape, fp32, the sum of the alignment at equal ids, between 0 and 1.
        Both are False / 0 at padding.

    Raises:
        ValueError: an unknown direction.
    """
    check_choice("direction", direction, DIRECTIONS)
    axis = other_side(direction)
    real = pair_mask(document_mask, query_mask)
    same = (document_ids[..., :, None] == query_ids[..., None, :]) & real
    alignment, same, real = torch.broadcast_tensors(alignment.float(), same, real)
    soft = alignment.masked_fill(~same, 0).sum(axis)
    strength, partner = alignment.masked_fill(~real, -torch.inf).max(axis)
    hard = same.gather(axis, partner.unsqueeze(axis)).squeeze(axis) & (strength > 0)
    return hard, soft


class ExactMatchRates:
    """Exact match of one direction over a whole store, by token type and by pair (§7.2).

    Special tokens never align, but stay on the other side as something to align to.
    """

    def __init__(self, texts: Texts, measures: Sequence[str] = MEASURES):
        self.idf, self.kinds, self.bins = texts.idf, texts.kinds, idf_bin(texts.idf)
        size, self.measures = len(texts.idf), list(measures)
        self.occurrences = torch.zeros(len(DEFINITIONS), size, dtype=torch.float64)
        self.sums = torch.zeros(len(DEFINITIONS), len(measures), size, dtype=torch.float64)
        # Of each batch its units, what they add to the sums, and their counts.
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(
        self, tokens: Tensor, mask: Tensor, *match: Tensor, units: Tensor | None = None
    ) -> None:
        """Takes in (B, T) ids of the aligning side, their mask, and their match.

        Args:
            match: (B, T) of each measure. units: (B,) int64, the unit of each pair that intervals
                resample, such as its query; None = each is one.

        Raises:
            ValueError: a real token's id is outside the vocabulary.
        """
        size = len(self.idf)
        if mask.any() and int(tokens[mask].max()) >= size:
            raise ValueError(
                f"token id {int(tokens[mask].max())} is outside the vocabulary of the "
                f"document frequencies ({size} ids)"
            )
        counted = mask & ~self.kinds.special[tokens]
        values = torch.stack([one.double() for one in match], -1)  # (B, T, measures)
        definitions = counted, counted & (match[1] > HAS_MATCH)
        for number, chosen in enumerate(definitions):
            ids = tokens[chosen]
            self.occurrences[number] += torch.bincount(ids, minlength=size)
            for measure, weights in enumerate(values[chosen].unbind(-1)):
                self.sums[number, measure] += torch.bincount(ids, weights, minlength=size)
        content = self.kinds.content[tokens]
        chosen = torch.stack([torch.stack([one, one & content], 1) for one in definitions], 1)
        # (B, definitions, tokens, measures), and (B, definitions, tokens) that are counted
        sums = torch.einsum("bdkt,btm->bdkm", chosen.double(), values)
        if units is None:
            units = torch.arange(len(tokens)) + sum(len(batch[0]) for batch in self.pairs)
        self.pairs.append((units, sums, chosen.sum(-1).double()))

    def rates(self, measure: str, definition: str, tokens: str = "all") -> Tensor:
        """(V,) fp64: the mean over a type's occurrences; NaN of types that never occurred."""
        number = list(DEFINITIONS).index(definition)
        rates = self.sums[number, self.measures.index(measure)] / self.occurrences[number]
        return rates if tokens == "all" else rates.where(self.kinds.content, torch.nan)

    def by_bin(self, measure: str, definition: str, tokens: str = "all") -> list[Tensor]:
        """For each IDF bin the rates of its token types: the boxes of Figures 2 and 3."""
        rates = self.rates(measure, definition, tokens)
        seen = rates.isfinite()
        return [rates[seen & (self.bins == number)] for number in range(len(BIN_NAMES))]

    def trend(self, measure: str) -> float:
        """Spearman's correlation of the token types' rates with their IDF."""
        rates = self.rates(measure, "all")
        seen = rates.isfinite()
        return spearman(rates[seen], self.idf[seen])

    def rows(self) -> Iterator[Row]:
        """For each definition and kind of tokens a row for all, and one a bin.

        In a bin, `hard` and `soft` average over token types (a type's mean counts once, as in the
        paper's boxplots), and intervals resample these; in the row "all" they average over
        occurrences, and intervals resample units. NaN where nothing is.
        """
        named, *parts = (torch.cat(one) for one in zip(*self.pairs, strict=True))
        found, units = named.unique(return_inverse=True)
        sums, counts = (
            part.new_zeros(len(found), *part.shape[1:]).index_add_(0, units, part) for part in parts
        )
        for (d, definition), (k, tokens) in product(enumerate(DEFINITIONS), enumerate(TOKENS)):
            names = {"definition": definition, "tokens": tokens}
            seen = self.occurrences[d] * (self.kinds.content if tokens == "content" else 1)
            both = sums[:, d, k], counts[:, d, k, None].expand(-1, len(self.measures))
            means = both[0].sum(0) / both[1].sum(0)
            yield names | self._row("all", means, interval(*both), seen)
            boxes = [self.by_bin(measure, definition, tokens) for measure in self.measures]
            for number, name in enumerate(BIN_NAMES):
                values = torch.stack([box[number] for box in boxes], 1)  # (types, measures)
                ends = interval(values, torch.ones_like(values))
                yield names | self._row(name, values.mean(0), ends, seen[self.bins == number])

    def _row(self, name: str, means: Tensor, ends: tuple[Tensor, Tensor], seen: Tensor) -> Row:
        row = {"idf_bin": name} | dict(zip(self.measures, means.tolist(), strict=True))
        for measure, low, high in zip(self.measures, *ends, strict=True):
            row |= {f"{measure}_low": float(low), f"{measure}_high": float(high)}
        return row | {"token_types": int((seen > 0).sum()), "occurrences": int(seen.sum())}


class HeadRates:
    """Exact match of one direction by decoder layer and head (§7.2, head by head).

    Of document_to_query a head's alignment is its attention itself, of query_to_document the
    attention's columns divided by their sums.
    """

    def __init__(self, direction: str, layers: int, heads: int, texts: Texts):
        self.direction, self.special, self.bins = direction, texts.kinds.special, idf_bin(texts.idf)
        # By token type; float32 counts to 16 million without error, in half the memory.
        self.sums = torch.zeros(len(texts.idf), layers, heads, len(MEASURES))
        self.occurrences = torch.zeros(len(texts.idf))
        self.pairs: list[tuple[Tensor, Tensor]] = []  # (B, L, H, measures) and (B,) tokens

    def update(self, layers: Sequence[PairAlignment]) -> None:
        """Takes in every layer of B pairs."""
        tokens, mask = aligning_side(layers[0], self.direction)
        counted = mask & ~self.special[tokens]
        found = torch.stack([self._matches(pairs) for pairs in layers], 2)  # (B, T, L, H, measures)
        self.occurrences.index_add_(0, tokens[counted], torch.ones(int(counted.sum())))
        self.sums.index_add_(0, tokens[counted], found[counted])
        self.pairs.append(((found * counted[..., None, None, None]).sum(1), counted.sum(1)))

    def _matches(self, pairs: PairAlignment) -> Tensor:
        """(B, T, H, measures)"""
        ids = pairs.document_ids[:, None], pairs.query_ids[:, None]
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        heads = directed_heads(pairs, self.direction)
        found = exact_match(heads, *ids, *masks, self.direction)
        return torch.stack([values.float() for values in found], -1).transpose(1, 2)

    def means(self) -> Tensor:
        """(L, H, measures) the means over all occurrences."""
        return self.sums.double().sum(0) / self.occurrences.double().sum()

    def rows(self) -> Iterator[Row]:
        """For each layer and head a row for all tokens, and one an IDF bin.

        As in `ExactMatchRates.rows`. Layers and heads count from 1.
        """
        parts = [("all", *self._all())]
        for number, name in enumerate(BIN_NAMES):
            seen = (self.bins == number) & (self.occurrences > 0)
            counts = self.occurrences[seen]
            means = (self.sums[seen] / counts[:, None, None, None]).mean(0)
            parts.append(
                (name, int(counts.sum()), dict(zip(MEASURES, means.unbind(-1), strict=True)))
            )
        for layer, head in product(*map(range, self.sums.shape[1:3])):
            place = {"layer": layer + 1, "head": head + 1, "direction": self.direction}
            for name, occurrences, values in parts:
                cell = {key: float(value[layer, head]) for key, value in values.items()}
                yield place | {"idf_bin": name} | cell | {"occurrences": occurrences}

    def _all(self) -> tuple[int, dict[str, Tensor]]:
        sums, counts = (torch.cat(one) for one in zip(*self.pairs, strict=True))
        flat = sums.flatten(1)
        ends = interval(flat, counts[:, None].expand_as(flat))
        low, high = (end.view(sums.shape[1:]) for end in ends)
        values = dict(zip(MEASURES, self.means().unbind(-1), strict=True))
        for number, measure in enumerate(MEASURES):
            values |= {f"{measure}_low": low[..., number], f"{measure}_high": high[..., number]}
        return int(counts.sum()), values


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
    metrics = (
        Metric(
            "hard",
            "Hard exact match: the share of tokens whose strongest partner is the same token.",
            headline=True,
        ),
        Metric(
            "soft",
            "Soft exact match: the share of a token's alignment that falls on equal tokens.",
            headline=True,
        ),
        Metric(
            "soft_of_a",
            "The soft rate as the paper has it for a sparse alignment: of the softmax of A itself, "
            "not of the similarity.",
        ),
    )
    words: ClassVar[dict[str, str]] = {
        "content": "Over content tokens alone: neither special, nor punctuation, nor stopwords.",
        "matched": "Only tokens that have an equal token on the other side count.",
        "idf correlation": "Does it rise with the rarity of the token? A correlation, −1 to 1.",
        "IDF range | IDF #-# | IDF #": "Over the tokens whose IDF lies in this range; larger is "
        "rarer.",
    }

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

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data, self.split = subject.model, subject.data, subject.data.test_splits[0]
        self.queries = spread(self.data.rerank_queries(self.split), queries)
        self.rates = DirectedRates(subject.store.description, subject.texts, "candidates")

    @torch.inference_mode()
    def finish(self) -> Findings:
        # With the module of the data, which comparisons can do without.
        from analysis.framework import candidate_batches, candidate_pairs

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
