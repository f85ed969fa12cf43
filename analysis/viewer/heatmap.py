"""Single pairs as heatmaps: what an alignment looks like (gr_as_mvdr §7.5, Figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from analysis.figures import COLUMN_WIDTH, PAGE_WIDTH, GalleryEntry, styled
from analysis.questions.analysis import Analysis, Findings
from analysis.statistics import spread_numbers
from analysis.viewer.directed_alignment import directed_alignment, own_direction
from gr_mvdr.options import Count, part
from models.results import draw_alignment

NORMALISED = {
    "query_to_document": "Each column sums to one over the document",
    "document_to_query": "Each row sums to one over the query",
}
CELL, LETTER = 0.13, 0.055  # inches for a token's row or column, and for a letter of its label
MAXIMUM_ROWS = 40  # document tokens in a heatmap: more cannot be read on a page


@part("analysis")
@dataclass
class Heatmaps(Analysis):
    """What do alignments of single pairs look like?

    Args:
        cases: how many pairs to draw, spread evenly over the store; runs with the same pairs draw
            the same ones.
    """

    cases: Count

    name = "alignment_case"

    def finish(self) -> Findings:
        numbers = spread_numbers(len(self.subject.store), self.cases)
        return Findings(figures=[self._draw(*case) for case in enumerate(numbers, start=1)])

    def _draw(self, case: int, number: int) -> tuple[Figure, GalleryEntry]:
        store, strings = self.subject.store, self.subject.texts.strings
        pair, description, (query, document) = store[number], store.description, store.pairs[number]
        direction = own_direction(description.paradigm)
        rows = readable_rows((pair.similarity * pair.alignment)[0].sum((0, 2)))
        document_ids, query_ids = pair.document_ids[0][rows], pair.query_ids[0]
        figure = alignment_heatmap(
            directed_alignment(pair, description.paradigm, direction)[0, rows],
            document_ids[:, None] == query_ids,
            strings(document_ids.tolist()),
            strings(query_ids.tolist()),
            f"{description.system}: query {query}, document {document}",
            f"alignment, {direction.replace('_', ' ')}",
        )
        length = pair.document_ids.shape[1]
        shown = f"Document tokens {rows.start + 1} to {rows.stop} of {length}"
        if len(document_ids) < length:
            shown += ", the stretch that carries most of the relevance"
        caption = (
            f"{shown}. Relevance {pair.relevance.item():.3f}, score {pair.score.item():.3f}. "
            f"{NORMALISED[direction]}; outlined cells join equal tokens."
        )
        if description.paradigm == "generative":
            caption += " A row is where the decoder looks while it predicts that token."
        title = f"Case {case}: query {query}, document {document}"
        return figure, GalleryEntry(f"alignment_case_{case}", title, caption, case=True)


@styled
def alignment_heatmap(
    weights: Tensor,
    same: Tensor,
    document_tokens: Sequence[str],
    query_tokens: Sequence[str],
    title: str,
    label: str = "alignment",
) -> Figure:
    """Draws an alignment matrix with its tokens; rows are document tokens (Figure 5).

    Args:
        weights: (M, N) the alignment to draw, from 0 to 1.
        same: (M, N) bool, True where both tokens are equal; these cells get an outline.
        document_tokens: M strings.
        query_tokens: N strings.
        title: the line above the matrix.
        label: what the colours mean.
    """
    rows, columns = weights.shape
    width = 1.2 + CELL * columns + LETTER * max(map(len, document_tokens))
    height = 0.9 + CELL * rows + LETTER * max(map(len, query_tokens))
    size = max(COLUMN_WIDTH, min(width, PAGE_WIDTH)), height
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    draw_alignment(axes, weights, same, document_tokens, query_tokens, label)
    figure.suptitle(title, parse_math=False)
    return figure


def readable_rows(contributions: Tensor, limit: int = MAXIMUM_ROWS) -> slice:
    """Finds the stretch of at most `limit` document tokens that has the largest relevance.

    Args:
        contributions: (M,) Σ_hj S A of each document token.
        limit: the most tokens to show.
    """
    if len(contributions) <= limit:
        return slice(0, len(contributions))
    start = int(contributions.double().unfold(0, limit, 1).sum(1).argmax())
    return slice(start, start + limit)
