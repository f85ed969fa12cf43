"""Analyses one run: stores alignments of test pairs and runs every listed analysis.

`conf/analysis/full.yaml` lists them; `analysis/analysis.py` shows how to write one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis.alignment_store import (
    AlignmentStore,
    StoreDescription,
    extract_alignments,
    write_vocabulary,
)
from analysis.analysis import Analysis, Findings, Subject, Texts
from analysis.evaluation import release_memory
from analysis.figures import Gallery
from analysis.gold import find_gold_tokens
from analysis.tables.rows import write_rows
from analysis.tokens import (
    TokenKinds,
    document_frequencies,
    find_special,
    inverse_document_frequency,
)
from data_modules.module import RetrievalDataModule
from gr_mvdr.backbones import hash_weights
from gr_mvdr.files import write_json
from gr_mvdr.options import TARGET, admitting, build, find_part
from gr_mvdr.progress import track
from gr_mvdr.tokenizers import token_strings
from models.base import System
from models.t5_seal import T5SEAL

# Pairs of the store at once, and their similarity values: only speed and memory depend on them.
BATCH, BATCH_VALUES = 64, 2**23
# Options that say how much is measured: 0 disables the analysis.
SIZES = ("pairs", "queries", "cases")


def analyse_run(
    model: System, data: RetrievalDataModule, run: Path, system: str, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Stores the alignments of test pairs and runs the analyses of `settings`.

    Args:
        model: its index is built.
        run: the run's folder; `alignments/`, a CSV for each table and `figures/` appear in it.
        system: the model's name.
        settings: a file of `conf/analysis`, resolved.

    Returns:
        Flat metrics, "analysis/…"; {} without test queries.

    Raises:
        ValueError: an analysis that does not exist.
    """
    if not data.test_splits:
        return {}
    subject = Subject(model, data, Path(run))
    if settings["pairs"] and model.alignable:
        pairs, precision = settings["pairs"], settings["precision"]
        store = extract_run(model, data, subject.run, system, pairs, precision)
        if store is not None:
            subject = Subject(model, data, subject.run, store, texts_of(model, data, store))
    return write_findings(ask(subject, settings["questions"] or {}), subject.run)


def ask(subject: Subject, questions: Mapping[str, Mapping[str, Any] | None]) -> list[Findings]:
    """Runs all analyses; those of stored alignments share one pass over the store.

    Args:
        questions: name → `_target_`, an `analysis.analysis.Analysis`, and its options; None leaves
            one out.
    """
    asked: list[Analysis] = []
    with admitting(questions):
        for settings in questions.values():
            if not settings or 0 in map(settings.get, SIZES):
                continue
            if find_part("analysis", settings[TARGET]).applies(subject):
                asked.append(build("analysis", settings, subject))
    looking = [one for one in asked if type(one).update is not Analysis.update]
    if looking and (store := subject.store) is not None:
        size, first = store.batch_size(BATCH_VALUES, BATCH), 0
        steps = -(-len(store) // size)
        for batch in track(store.explanations(size), "reading alignments", steps):
            for analysis in looking:
                analysis.update(batch, first)
            first += len(batch)
    found = []
    for analysis in asked:
        found.append(analysis.finish())
        release_memory()  # each analysis allocates tensors of other sizes
    return found


def extract_run(
    model: System,
    data: RetrievalDataModule,
    run: Path,
    system: str,
    pairs: int,
    precision: str = "float32",
) -> AlignmentStore | None:
    """Stores the alignments of (test query, relevant document) pairs; None if there are no pairs.

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
    write_vocabulary(store, strings, find_special(data))
    return store


def texts_of(model: System, data: RetrievalDataModule, store: AlignmentStore) -> Texts:
    """The facts about a run's texts that analyses need besides the alignments."""
    # Docid tokens lie beyond the tokeniser's: no document's text holds them.
    size = max(len(data.tokenizer), model.vocabulary_size)
    frequencies = document_frequencies(data.documents["tokens"], size)
    gold = find_gold_tokens(data, data.test_splits[0], store.pairs)
    if isinstance(model, T5SEAL):  # it forces a text and an end, nothing before (BART's <s>)
        first, after = len(data.template.document), len(data.template.suffix) - 1
        gold = {pair: sides[:, first : sides.shape[1] - after] for pair, sides in gold.items()}
    if model.share_of == "vocabulary term":  # SPLADE's documents are terms without an order
        gold = {}
    return Texts(
        idf=inverse_document_frequency(frequencies, len(data.documents)),
        kinds=TokenKinds.of(data.tokenizer, size, find_special(data)),
        strings=partial(token_strings, data.tokenizer),
        gold=gold,
    )


def write_findings(found: Sequence[Findings], run: Path) -> dict[str, float]:
    """Writes tables, records and figures into a run's folder; returns all metrics."""
    metrics, gallery = {}, Gallery(run / "figures", keep=True)
    figures = [figure for findings in found for figure in findings.figures]
    if any(entry.case for _, entry in figures):  # there may have been more of them
        gallery.entries = [entry for entry in gallery.entries if not entry.case]
    for findings in found:
        metrics |= findings.metrics
        for name, rows in findings.tables.items():
            write_rows(rows, run / f"{name}.csv")
        for name, record in findings.records.items():
            write_json(run / f"{name}.json", record)
    for figure, entry in figures:
        gallery.add(figure, entry)
    return metrics
