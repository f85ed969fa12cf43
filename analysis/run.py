"""Analyses a finished run again, without training: ``python -m analysis.run run=outputs/…``.

`train.py` calls `analyse_run` too. It stores the alignments of test pairs and runs every listed
analysis: `conf/analysis/full.yaml` is the list, and `analysis/questions/analysis.py` shows how to
write one.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("analyse", "analysis.run:main")
    raise SystemExit

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pandas import MultiIndex, concat

from analysis.figures import Gallery
from analysis.questions.alignment_store import AlignmentStore, StoreDescription, write_alignments
from analysis.questions.analysis import Analysis, Findings, Subject, Texts
from analysis.questions.gold import find_gold_tokens
from analysis.questions.tokens import TokenKinds, find_special
from analysis.runs.evaluation import release_memory
from analysis.runs.numbers import PLACE, export_numbers, make_frame, write_numbers
from analysis.runs.publish import begin_upload, publish_run
from analysis.runs.queries import keep_queries
from analysis.runs.report import write_report
from analysis.runs.run_folder import Run, claim_folder, read_kept, read_run
from analysis.runs.tables import write_csv
from data_modules.module import RetrievalDataModule
from gr_mvdr.backbones import hash_weights
from gr_mvdr.files import (
    reading,
    remove_abandoned,
    temporary_folder,
    write_json,
)
from gr_mvdr.measures import Measured
from gr_mvdr.options import ROOMS, TARGET, admitting, build, find_part, name_some
from gr_mvdr.progress import timed, track
from gr_mvdr.salience import count_tokens, inverse_document_frequency
from gr_mvdr.tokenizers import token_strings
from models.base import System
from models.saved_model import restore_run
from models.t5_seal import T5SEAL

# Pairs per batch and their similarity values; they affect only speed and memory.
BATCH, BATCH_VALUES = 64, 2**23
# Options that set how much is measured; 0 disables the analysis.
SIZES = ("pairs", "queries")
_PAIRS = ("pairs", "precision")  # settings that all analyses of alignments share
ANALYSED = "analysed"  # its JSON file in a run's folder: the settings of all that was analysed


def analyse_run(
    model: System, data: RetrievalDataModule, run: Path, system: str, settings: Mapping[str, Any]
) -> list[Measured]:
    """Stores the alignments of test pairs and runs the analyses of `settings`.

    Args:
        model: its index is built.
        run: the run's folder, which receives `alignments/`, a CSV for each table, and `figures/`.
        system: the model's name.
        settings: a file of `conf/analysis`, resolved.

    Returns:
        What they measured; nothing if there are no test queries.

    Raises:
        ValueError: there is no such analysis.
    """
    if not data.evaluation.test_splits:
        return []
    subject = Subject(model, data, Path(run))
    if settings["pairs"] and model.alignable:
        pairs, precision = settings["pairs"], settings["precision"]
        store = extract_run(model, data, subject.run, system, pairs, precision)
        if store is not None:
            subject = Subject(model, data, subject.run, store, texts_of(model, data, store))
    return write_findings(ask(subject, settings["questions"] or {}), subject.run)


def is_asked(question: Mapping[str, Any] | None) -> bool:
    return bool(question) and 0 not in map(question.get, SIZES)


@torch.inference_mode()
def ask(subject: Subject, questions: Mapping[str, Mapping[str, Any] | None]) -> list[Findings]:
    """Runs all analyses; analyses of stored alignments share one pass over the store.

    Args:
        questions: name → `_target_`, an `Analysis`, and its options; None disables the analysis.
    """
    if subject.model is not None:
        subject.model.eval()
    asked: dict[str, Analysis] = {}
    with admitting(questions):
        for name, settings in questions.items():
            if not is_asked(settings):
                continue
            if find_part("analysis", settings[TARGET]).applies(subject):
                with timed(f"analysis {name}"):
                    asked[name] = build("analysis", settings, subject)
            elif settings[TARGET].partition(".")[0] not in ROOMS:  # the user's own
                print(f"analysis.questions.{name}: does not apply to this run, measures nothing")
    looking = {k: one for k, one in asked.items() if type(one).update is not Analysis.update}
    if looking and (store := subject.store) is not None:
        size, first = store.batch_size(BATCH_VALUES, BATCH), 0
        steps = -(-len(store) // size)
        for batch in track(store.explanations(size), "reading alignments", steps):
            for name, analysis in looking.items():
                with timed(f"analysis {name}"):
                    analysis.update(batch, first)
            first += len(batch)
    found = []
    for name, analysis in asked.items():
        with timed(f"analysis {name}"):
            found.append(replace(analysis.finish(), group=analysis.group))
        release_memory()  # each analysis allocates tensors of different sizes
    return found


@timed("alignments")
@torch.inference_mode()
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
        pairs: the maximum number of pairs.
        precision: dtype of the stored matrices.
        model, data, run, system: see `analyse_run`.
    """
    test = data.evaluation
    names, batches = test.test_pairs(test.test_splits[0], pairs, covers=model.covers)
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
    return write_alignments(
        run / "alignments",
        description,
        names,
        batches,
        lambda batch: model.explain(batch.to(model.device)),
        partial(token_strings, data.tokenizer, spell=model.spell),
        find_special(data),
    )


def texts_of(model: System, data: RetrievalDataModule, store: AlignmentStore) -> Texts:
    """Collects the facts about a run's texts that analyses need besides the alignments."""
    # Docid tokens have ids beyond the tokeniser's and occur in no document's text.
    size = max(len(data.tokenizer), model.vocabulary_size)
    _, frequencies = count_tokens(data.documents["tokens"], size)
    idf = inverse_document_frequency(frequencies, len(data.documents))
    gold = find_gold_tokens(data, data.evaluation.test_splits[0], store.pairs)
    if isinstance(model, T5SEAL):  # targets are a text and an end token, without BART's leading <s>
        first, after = len(data.template.document), len(data.template.suffix) - 1
        gold = {pair: sides[:, first : sides.shape[1] - after] for pair, sides in gold.items()}
    if model.share_of == "vocabulary term":  # SPLADE's documents are unordered terms
        gold = {}
    return Texts(
        idf=torch.from_numpy(idf).float(),
        kinds=TokenKinds.of(data.tokenizer, size, find_special(data)),
        strings=partial(token_strings, data.tokenizer, spell=model.spell),
        gold=gold,
    )


@timed("figures")
def write_findings(found: Sequence[Findings], run: Path) -> list[Measured]:
    """Writes tables, records and figures into a run's folder; returns all numbers."""
    gallery = Gallery(run / "figures", keep=True)
    for findings in track(found, "drawing figures"):
        for name, rows in findings.tables.items():
            write_csv(rows, run / f"{name}.csv")
        for name, record in findings.records.items():
            write_json(run / f"{name}.json", record)
        about = {"chapter": findings.group.title, "reading": findings.group.reading}
        for figure, entry in findings.figures:
            gallery.add(figure, replace(entry, **about))
    keep_queries(run, [table for findings in found for table in findings.queries])
    return [row for findings in found for row in findings.rows]


def join_settings(run: Run, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of all that a run's folder holds once it is analysed with `settings`.

    Raises:
        ValueError: numbers of other pairs would stay beside the new ones.
    """
    old = read_kept(run.path, ANALYSED) or run.config.get("analysis") or {}
    asked, before = (one.get("questions") or {} for one in (settings, old))
    stay = [name for name, one in before.items() if is_asked(one) and not is_asked(asked.get(name))]
    of_pairs = {key: one.get(key) for one in (old, settings) if one.get("pairs") for key in _PAIRS}
    for key, value in of_pairs.items():
        if stay and old.get("pairs") and value != old[key]:
            rule = f"must be {old[key]}, as for {name_some(stay)}, or these must be asked again"
            raise ValueError(f"analysis.{key}={value}: {rule}")
    asked = {name: one for name, one in asked.items() if is_asked(one)}
    return of_pairs | {"questions": {**before, **asked}}


def analyse_again(
    run: Path | str,
    settings: Mapping[str, Any],
    logger: Any = None,
    trust: bool = False,
) -> dict[str, float]:
    """Analyses a run again and writes its report; returns all metrics, old ones included.

    Args:
        run: the folder of a run of `train.py`.
        settings: a file of `conf/analysis`, resolved.
        logger: a Lightning logger, or None.
        trust: whether the run may name classes from outside this library (docs/design.md).

    Raises:
        FileNotFoundError: there is no such folder.
        UnfinishedRun: a part of the run is missing.
        ValueError: this version cannot read the run, or a setting is invalid.
    """
    read = read_run(Path(run))
    analysed = join_settings(read, settings)
    model, data = restore_run(read.path, trust=trust)
    with claim_folder(read.path):
        remove_abandoned(read.path)
        # The new index has a folder of its own, so that the run's index is not changed.
        folder = temporary_folder("index")
        with reading(f"run={run}: cannot be indexed"):  # a part of it may be broken
            model.index(data.documents, folder)
        rows = analyse_run(model, data, read.path, read.system, settings) + model.statistics()
        write_json(read.path / f"{ANALYSED}.json", analysed)
        shutil.rmtree(folder)
        measured, old = make_frame(rows), read.numbers
        # A metric that is measured again loses all its earlier parts, such as ranges of IDF.
        where = [column for column in PLACE if column != "part"]
        again = MultiIndex.from_frame(old[where]).isin(MultiIndex.from_frame(measured[where]))
        write_numbers(read.path, concat([old[~again], measured], ignore_index=True))
        report = write_report(read.path)
        run = read_run(read.path)
        export_numbers(run.path, run.numbers)
        publish_run(logger, run, "the same command")
    print(f"{run.path}: analysed, {report}")
    return run.metrics


def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(config.analysis, resolve=True)
    read = read_run(Path(config.run))
    logger = instantiate(begin_upload(config.logger, read.path)) or None
    analyse_again(config.run, settings, logger, config.trust)
