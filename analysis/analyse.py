"""The analysis of one run: its alignments (Wu et al. §7.2) and, if generative, its search."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.alignment_store import AlignmentStore
from analysis.directed_alignment import directed_alignment, own_direction
from analysis.exact_match import DIRECTIONS
from analysis.exact_match_report import ExactMatchReport, measure_exact_match
from analysis.extract import extract_alignments
from analysis.figures import alignment_heatmap, exact_match_boxes, readable_rows
from analysis.gallery import Gallery, GalleryEntry
from analysis.inverse_document_frequency import document_frequencies, inverse_document_frequency
from analysis.search_diagnostics import diagnose_search

DIRECTION_TITLES = {
    "query_to_document": "query to document (the paper's Figure 2)",
    "document_to_query": "document to query (the paper's Figure 3)",
}
NORMALISED = {
    "query_to_document": "Each column sums to one over the document",
    "document_to_query": "Each row sums to one over the query",
}


def analyse_run(
    model: Any,
    data: Any,
    run: Path,
    system: str,
    pairs: int,
    cases: int,
    search_queries: int = 0,
) -> dict[str, float]:
    """Measures the alignments of test pairs, and diagnoses a generative system's search.

    Args:
        model: a `models.base.System` whose index is built; data: a `RetrievalDataModule`.
        run: the run's folder; `alignments/`, `exact_match.csv`, `search_diagnostics.csv` and
            `figures/` appear in it.
        system: the model's name.
        pairs: (test query, relevant document) pairs at most; 0 = no alignments, as for a
            system that has none (a cross-encoder).
        cases: pairs to draw.
        search_queries: test queries whose search is diagnosed; 0 = none.

    Returns:
        Flat metrics, "analysis/exact_match/…" and "analysis/search/…".
    """
    aligned = pairs and model.alignable
    metrics = _analyse_test_pairs(model, data, run, system, pairs, cases) if aligned else {}
    return metrics | diagnose_search(model, data, run, search_queries)


def _analyse_test_pairs(
    model: Any, data: Any, run: Path, system: str, pairs: int, cases: int
) -> dict[str, float]:
    names, batches = data.test_pairs(data.test_splits[0], pairs, covers=model.covers)
    if not names:
        return {}
    store = extract_alignments(
        model,
        batches,
        run / "alignments",
        names,
        system=system,
        collection=data.collection.name,
        overwrite=True,
    )
    tokenizer = data.tokenizer
    # Docid tokens lie beyond the tokeniser's: no document's text holds them.
    size = max(len(tokenizer), model.vocabulary_size)
    frequencies = document_frequencies(data.documents["tokens"], size)
    idf = inverse_document_frequency(frequencies, len(data.documents))
    special = tokenizer.all_special_ids
    strings = partial(token_strings, tokenizer)
    return analyse_alignments(store, run, idf, special, strings, cases)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as they are drawn; a docid token as its number among these, "#17"."""
    size = len(tokenizer)
    return [tokenizer.convert_ids_to_tokens(i) if i < size else f"#{i - size}" for i in ids]


def analyse_alignments(
    store: AlignmentStore,
    run: Path,
    idf: Tensor,
    special_ids: Collection[int],
    token_strings: Callable[[list[int]], Sequence[str]],
    cases: int = 4,
) -> dict[str, float]:
    """Measures a store and leaves `exact_match.csv` and `figures/` in the run's folder.

    Args:
        store: the run's alignments.
        run: the run's folder.
        idf: (V,) of every token id, from `inverse_document_frequency`.
        special_ids: ids that never count as aligning tokens (end, padding, sentinels).
        token_strings: token ids to strings, such as `tokenizer.convert_ids_to_tokens`.
        cases: how many pairs to draw; they are spread evenly over the store, so that runs over
            the same pairs show the same ones.

    Returns:
        Flat metrics, "analysis/exact_match/…".
    """
    report = measure_exact_match(store, idf, special_ids)
    report.write_csv(Path(run) / "exact_match.csv")
    gallery = Gallery(Path(run) / "figures")
    for direction in DIRECTIONS:
        _add_boxes(gallery, report, store, direction)
    numbers = torch.linspace(0, len(store) - 1, min(cases, len(store))).round().int().tolist()
    for case, number in enumerate(numbers, start=1):
        _add_case(gallery, store, number, case, token_strings)
    return report.metrics()


def _add_boxes(
    gallery: Gallery, report: ExactMatchReport, store: AlignmentStore, direction: str
) -> None:
    description = store.description
    heading = f"Exact match, {DIRECTION_TITLES[direction]}"
    title = f"{description.system} on {description.collection}: {direction.replace('_', ' ')}"
    caption = (
        "One value for each token type of the aligning side: how often its strongest partner is "
        "the same token (hard), and how much of its alignment falls on equal tokens (soft). Boxes "
        "span the quartiles, the line is the median, the diamond the mean; rarer tokens stand to "
        "the right. Blue counts every occurrence, orange only those that have an equal token "
        "to match."
    )
    if description.paradigm == "generative":
        caption += (
            " The paper shows only the soft rate of generative retrieval, since cross-attention "
            "is not trained to choose one token; the hard rate here is that of its largest weight."
        )
    figure = exact_match_boxes(report, direction, title)
    gallery.add(figure, GalleryEntry(f"exact_match_{direction}", heading, caption))


def _add_case(
    gallery: Gallery,
    store: AlignmentStore,
    number: int,
    case: int,
    token_strings: Callable[[list[int]], Sequence[str]],
) -> None:
    pair = store[number]
    query, document = store.pairs[number]
    direction = own_direction(store.description.paradigm)
    rows = readable_rows((pair.similarity * pair.alignment)[0].sum((0, 2)))
    document_ids, query_ids = pair.document_ids[0][rows], pair.query_ids[0]
    figure = alignment_heatmap(
        directed_alignment(pair, store.description.paradigm, direction)[0, rows],
        document_ids[:, None] == query_ids,
        token_strings(document_ids.tolist()),
        token_strings(query_ids.tolist()),
        f"{store.description.system}: query {query}, document {document}",
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
    if store.description.paradigm == "generative":
        caption += " A row is where the decoder looks while it predicts that token."
    title = f"Case {case}: query {query}, document {document}"
    gallery.add(figure, GalleryEntry(f"alignment_case_{case}", title, caption, case=True))
