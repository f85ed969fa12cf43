"""How sharp is an alignment, and do its two directions agree? (gr_as_mvdr §5.2.2, §5.2.3)

The functions take alignments (..., M, N) that are normalised over the other side and zero at
padding (`analysis.viewer.directed_alignment`). They return one value for each token of the aligning
side: (..., N) for "query_to_document" and (..., M) for "document_to_query". T stands for either.
"""

from collections.abc import Iterator, Sequence

import torch
from pandas import DataFrame
from torch import Tensor

from analysis.questions.analysis import Findings, PairAnalysis
from analysis.statistics import long_frame, mean_table
from analysis.viewer.directed_alignment import (
    DIRECTIONS,
    aligning_words,
    directed_alignment,
    directed_heads,
    own_direction,
)
from gr_mvdr.alignment import other_side, pair_mask
from gr_mvdr.measures import Metric
from gr_mvdr.options import part
from gr_mvdr.relevance import Explanation, PairAlignment, divide

SUPPORT = 1e-6  # weights above this count as support
DEPTHS = (1, 2, 5)
MEASURES = ("entropy", "relative_entropy", *(f"top_{k}" for k in DEPTHS), "support")
HEADLINES = ("entropy", "top_1", "support")


def top_mass(alignment: Tensor, depths: Sequence[int], direction: str) -> Tensor:
    """Computes the weight that each token gives to its k strongest partners.

    Args:
        alignment: (..., M, N).
        depths: D values of k ≥ 1.
        direction: which side aligns.

    Returns:
        (..., T, D); for an aligned token, 1 if the other side has at most k tokens.
    """
    rows = alignment.movedim(other_side(direction), -1)
    strongest = rows.topk(min(max(depths), rows.shape[-1]), -1).values.cumsum(-1)
    return torch.stack([strongest[..., min(k, strongest.shape[-1]) - 1] for k in depths], -1)


def measure_shape(
    alignment: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> dict[str, Tensor]:
    """Measures how each token of the aligning side spreads its weights.

    Args:
        alignment: (..., M, N).
        document_mask: (..., M) bool.
        query_mask: (..., N) bool.
        direction: which side aligns.

    Returns:
        (..., T) each of `MEASURES`: entropy in nats, 0 for one partner and ln n for n equal ones;
        relative_entropy, entropy divided by its maximum, ln of the other side's length (0 if the
        other side has one token); top_k; support, the number of partners above `SUPPORT`.
    """
    axis = other_side(direction)
    entropy = torch.special.entr(alignment).sum(axis)
    lengths = (document_mask, query_mask)[axis + 2].sum(-1, keepdim=True)
    largest = lengths.float().clamp(min=1).log()
    return {
        "entropy": entropy,
        "relative_entropy": divide(entropy, largest),
        **dict(zip(MEASURES[2:], top_mass(alignment, DEPTHS, direction).unbind(-1), strict=False)),
        "support": (alignment > SUPPORT).sum(axis),
    }


def links_returned(
    query_to_document: Tensor, document_to_query: Tensor, document_mask: Tensor, query_mask: Tensor
) -> Tensor:
    """Tests whether each query token is the strongest partner of its own strongest partner.

    Args:
        query_to_document, document_to_query: (..., M, N) the same pair in both directions.
        document_mask: (..., M) bool.
        query_mask: (..., N) bool.

    Returns:
        (..., N) bool, False at padding and if either token is aligned to nothing.
    """
    masks = document_mask, query_mask
    partner, linked = _strongest(query_to_document, *masks, "query_to_document")
    back, returned = _strongest(document_to_query, *masks, "document_to_query")
    own = torch.arange(query_mask.shape[-1], device=back.device)
    return (back.gather(-1, partner) == own) & returned.gather(-1, partner) & linked


def _strongest(
    alignment: Tensor, document_mask: Tensor, query_mask: Tensor, direction: str
) -> tuple[Tensor, Tensor]:
    """Returns each token's strongest partner (..., T) int64, and whether it is aligned at all."""
    hidden = alignment.masked_fill(~pair_mask(document_mask, query_mask), -torch.inf)
    strength, partner = hidden.max(other_side(direction))
    return partner, strength > 0


@part("analysis")
class Shape(PairAnalysis):
    """How sharp are alignments, and do both directions agree?

    "directed" is `directed_alignment`, the form in which all systems are compared; "own" is the
    system's A itself: for generative systems, the attention of every head in both directions; for
    other systems, the sparse A with weights divided by their sum for each aligning token. Special
    tokens do not align. A token that is aligned to nothing has no shape and only lowers the share
    `aligned`.
    """

    name, title = "shape", "Sparsity and shape"
    reading = "How tokens spread their alignment over partners, and how far both directions agree."
    metrics = (
        Metric(
            "entropy",
            "The entropy of a token's weights over its partners, in nats: 0 for a single partner, "
            "ln n for n partners with equal weights.",
        ),
        Metric("relative_entropy", "Entropy divided by its maximum: 1 if all weights are equal."),
        Metric("support", f"The number of a token's partners with a weight above {SUPPORT:g}."),
        Metric("top_1", "The share of a token's weight that its strongest partner holds."),
        Metric(
            "directions_agree",
            "The share of query tokens that are the strongest partner of their own strongest "
            "partner.",
        ),
    )

    def measure(self, batch: Explanation, first: int) -> Iterator[DataFrame]:
        paradigm = self.description.paradigm
        own = DIRECTIONS if paradigm == "generative" else (own_direction(paradigm),)
        for layer, pairs in enumerate(batch.layers, start=1):
            both = {d: directed_alignment(pairs, paradigm, d) for d in DIRECTIONS}
            found = [("directed", d, alignment[:, None]) for d, alignment in both.items()]
            found += [("own", d, directed_heads(pairs, d)) for d in own]
            for name, direction, alignment in found:
                place = {"alignment": name, "layer": layer, "direction": direction}
                yield long_frame(first, self._sums(pairs, alignment, direction), "head", **place)
        returned = links_returned(*both.values(), pairs.document_mask, pairs.query_mask)
        links = aligning_words(pairs, DIRECTIONS[0], self.texts.kinds.special)
        place = {"alignment": "directed", "layer": layer, "direction": DIRECTIONS[0], "head": 1}
        sums = {"returned": (returned & links).sum(1), "links": links.sum(1)}
        yield long_frame(first, sums, **place)

    def _sums(self, pairs: PairAlignment, alignment: Tensor, direction: str) -> dict[str, Tensor]:
        """(B, H) sums of the measures over aligned tokens, and the numbers of tokens."""
        masks = pairs.document_mask[:, None], pairs.query_mask[:, None]
        measures = measure_shape(alignment, *masks, direction)
        counted = aligning_words(pairs, direction, self.texts.kinds.special)
        counted = counted[:, None].expand_as(measures["top_1"])
        aligned = counted & (measures["top_1"] > 0)
        sums = {name: (value.double() * aligned).sum(2) for name, value in measures.items()}
        return sums | {"aligned": aligned.sum(2), "tokens": counted.sum(2)}

    def summarise(self, frame: DataFrame) -> Findings:
        """Returns metrics of the last layer, and the table `shape`."""
        by = ["alignment", "layer", "direction", "head"]
        table = mean_table(frame, by, MEASURES, "aligned")
        table = table.merge(frame.groupby(by, as_index=False)["tokens"].sum())
        table["aligned"] /= table["tokens"]
        last = table[table["layer"] == table["layer"].max()].set_index(["alignment", "direction"])
        places = {direction: ("directed", direction) for direction in DIRECTIONS}
        places["own"] = "own", own_direction(self.description.paradigm)
        rows = self.rows({"directions_agree": frame["returned"].sum() / frame["links"].sum()})
        for name, place in places.items():
            rows += self.rows({key: last.loc[[place], key].mean() for key in HEADLINES}, name)
        return self.findings(rows, {"shape": table.to_dict("records")})
