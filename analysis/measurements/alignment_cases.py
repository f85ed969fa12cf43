"""Single pairs as heatmaps: what an alignment looks like (gr_as_mvdr §7.5, Figure 5)."""

from matplotlib.figure import Figure

from analysis.analysis import Findings, Texts
from analysis.directed_alignment import directed_alignment, own_direction
from analysis.figures import GalleryEntry
from analysis.measurements.alignment_heatmap import alignment_heatmap, readable_rows
from analysis.statistics import spread_numbers
from analysis.store.alignment_store import AlignmentStore

NORMALISED = {
    "query_to_document": "Each column sums to one over the document",
    "document_to_query": "Each row sums to one over the query",
}


def draw_cases(store: AlignmentStore, texts: Texts, cases: int) -> Findings:
    """Heatmaps of so many pairs.

    They are spread evenly over the store, so that runs over the same pairs show the same ones.
    """
    numbers = spread_numbers(len(store), cases)
    drawn = [_case(store, number, case, texts) for case, number in enumerate(numbers, start=1)]
    return Findings(figures=drawn)


def _case(
    store: AlignmentStore, number: int, case: int, texts: Texts
) -> tuple[Figure, GalleryEntry]:
    pair, description = store[number], store.description
    query, document = store.pairs[number]
    direction = own_direction(description.paradigm)
    rows = readable_rows((pair.similarity * pair.alignment)[0].sum((0, 2)))
    document_ids, query_ids = pair.document_ids[0][rows], pair.query_ids[0]
    figure = alignment_heatmap(
        directed_alignment(pair, description.paradigm, direction)[0, rows],
        document_ids[:, None] == query_ids,
        texts.strings(document_ids.tolist()),
        texts.strings(query_ids.tolist()),
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
