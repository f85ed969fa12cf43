"""The analysis of one run: its alignments are extracted once, then measured, drawn and asked about.

What is measured stands in `conf/analysis/`: measurements read the stored alignments, experiments
ask the model itself. Either answers a `Findings`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis.alignment_curve import measure_curve
from analysis.analysis import Findings, GoldTokens, Texts
from analysis.figures import Gallery
from analysis.measurements.alignment_cases import draw_cases
from analysis.store.alignment_store import AlignmentStore, StoreDescription
from analysis.store.alignment_writer import extract_alignments
from analysis.store.vocabulary import write_vocabulary
from analysis.tables import write_rows
from analysis.tokens import TokenKinds, document_frequencies, inverse_document_frequency
from data_modules.gold import gold_tokens
from gr_mvdr.backbones import hash_weights
from gr_mvdr.parts import TARGET, admitting, build
from gr_mvdr.progress import track

# Pairs of the store at once, and their similarity values: only speed and memory depend on them.
BATCH, BATCH_VALUES = 64, 2**23


def analyse_run(
    model: Any, data: Any, run: Path, system: str, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Measures the alignments of test pairs, and asks the model what these do not show.

    Args:
        model: a `models.base.System` whose index is built; data: a `RetrievalDataModule`.
        run: the run's folder; `alignments/`, a CSV for each table and `figures/` appear in it.
        system: the model's name.
        settings: a file of `conf/analysis`, resolved.

    Returns:
        Flat metrics, "analysis/…".

    Raises:
        ValueError: a measurement that does not exist.
    """
    run, found = Path(run), []
    if settings["pairs"] and model.alignable:
        found += _analyse_alignments(model, data, run, system, settings)
    experiments = (settings["experiments"] or {}).values()
    with admitting(settings):
        found += [build("experiment", asked, model, data) for asked in experiments if asked]
    return write_findings(found, run)


def _analyse_alignments(
    model: Any, data: Any, run: Path, system: str, settings: Mapping[str, Any]
) -> list[Findings]:
    store = extract_run(model, data, run, system, settings["pairs"], settings["precision"])
    if store is None:
        return []
    texts = texts_of(model, data, store)
    found = measure_store(store, texts, settings["measurements"])
    return [*found, measure_curve(run), draw_cases(store, texts, settings["cases"])]


def extract_run(
    model: Any, data: Any, run: Path, system: str, pairs: int, precision: str = "float32"
) -> AlignmentStore | None:
    """The alignments of (test query, relevant document) pairs; None if the system knows none.

    Args:
        pairs: at most; precision: of the stored matrices. The others: see `analyse_run`.
    """
    names, batches = data.test_pairs(data.test_splits[0], pairs, covers=model.covers)
    if not names:
        return None
    texts = data.collection.sources, data.query_length, data.document_length, data.text_options
    made_from = hashlib.sha256(json.dumps(texts, sort_keys=True, default=str).encode())
    description = StoreDescription(
        system=system,
        paradigm=model.paradigm,
        collection=data.collection.name,
        precision=precision,
        made_from=f"{hash_weights(model)}-{made_from.hexdigest()[:16]}",
    )
    store = extract_alignments(model, batches, run / "alignments", names, description)
    strings = partial(token_strings, data.tokenizer)
    write_vocabulary(store, strings, data.tokenizer.all_special_ids)
    return store


def texts_of(model: Any, data: Any, store: AlignmentStore) -> Texts:
    """What the measurements know of a run's texts."""
    # Docid tokens lie beyond the tokeniser's: no document's text holds them.
    size = max(len(data.tokenizer), model.vocabulary_size)
    frequencies = document_frequencies(data.documents["tokens"], size)
    gold = gold_tokens(data, data.test_splits[0], store.pairs)
    return Texts(
        idf=inverse_document_frequency(frequencies, len(data.documents)),
        kinds=TokenKinds.of(data.tokenizer, size),
        strings=partial(token_strings, data.tokenizer),
        gold={pair: GoldTokens(*tokens) for pair, tokens in gold.items()},
    )


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as they are drawn; a docid token as its number among these, "#17"."""
    size = len(tokenizer)
    return [tokenizer.convert_ids_to_tokens(i) if i < size else f"#{i - size}" for i in ids]


def measure_store(store: AlignmentStore, texts: Texts, names: Iterable[str]) -> list[Findings]:
    """Shows every pair of a store to all measurements, in one pass.

    Args:
        names: dotted paths of classes, see `analysis.analysis.Measurement`.
    """
    asked = [{TARGET: name} for name in names]
    with admitting(asked):
        measurements = [build("measurement", one, store, texts) for one in asked]
    size, first = store.batch_size(BATCH_VALUES, BATCH), 0
    batches = track(store.explanations(size), "measuring alignments", -(-len(store) // size))
    for batch in batches:
        for measurement in measurements:
            measurement.update(batch, first)
        first += len(batch)
    return [measurement.result() for measurement in measurements]


def write_findings(found: Sequence[Findings], run: Path) -> dict[str, float]:
    """Writes tables and figures into a run's folder; answers all metrics."""
    metrics, gallery = {}, Gallery(run / "figures", keep=True)
    figures = [figure for measured in found for figure in measured.figures]
    if any(entry.case for _, entry in figures):  # there may have been more of them
        gallery.entries = [entry for entry in gallery.entries if not entry.case]
    for measured in found:
        metrics |= measured.metrics
        for name, rows in measured.tables.items():
            write_rows(rows, run / f"{name}.csv")
    for figure, entry in figures:
        gallery.add(figure, entry)
    return metrics
