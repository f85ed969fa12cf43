"""Train, search, rerank, analyse and log one system on one collection: `python train.py --help`."""

if __name__ == "__main__":  # before the heavy imports: command-line errors come at once
    import os
    import signal

    from conf.command import RESUME, run_command

    if "LOCAL_RANK" not in os.environ:  # SIGTERM acts as Ctrl-C; a launcher has its own
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_command("train", "train:main", RESUME)
    raise SystemExit

import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from analysis.run import analyse_run
from analysis.runs.evaluation import (
    evaluate_reranking,
    evaluate_retrieval,
    measure_index_bytes,
    measure_latency,
    measure_memory,
    measure_stages,
    release_memory,
    watch_run,
)
from analysis.runs.numbers import export_numbers, make_frame, write_numbers
from analysis.runs.provenance import print_losses, record_provenance
from analysis.runs.publish import begin_upload, must_upload, publish_run, tolerating
from analysis.runs.report import write_report
from analysis.runs.run_folder import Run, open_run, read_run, start_run
from analysis.studies.study import check_study, run_study
from conf.checks import check_hub
from conf.command import RESUME, compose_command, explain_errors
from conf.composition import find_typed, register_resolvers, take_settings
from conf.launch import choose_precision, choose_strategy, is_in_sweep, launch, processes_to_start
from data_modules.collection import sample_tokens
from data_modules.module import RetrievalDataModule
from data_modules.sources import write_given_table
from gr_mvdr.files import CHECKPOINT, new_folder, read_checkpoint, sha256
from gr_mvdr.fine_tuning import merge_adapters
from gr_mvdr.initialisation import take_latent_meanings
from gr_mvdr.measures import Measured, costs
from gr_mvdr.options import admitting, build, name_some
from gr_mvdr.progress import SPENT, timed
from gr_mvdr.ranks import broadcast, disconnect, join, leave, rank, rank_zero_first
from models.base import System, check_form, find_backbone
from models.results import count_of
from models.saved_model import (
    ADAPTER,
    IDENTIFIERS,
    MODEL,
    SavedWeights,
    find_weights,
    save_model,
    save_options,
    text_options,
)
from models.sentence_transformers import PublishedWeights, naming
from models.training import CurveLogger, fit, save_tokenizer

register_resolvers()  # for callers that compose a configuration without the command line
logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
NOISE = (
    *("LeafSpec", "Total length of `list`", "The number of training batches", "FSDP2-wrapped"),
    "(Checkpoint|Experiment logs) directory .* exists and is not empty",  # of a resumed run
)
_SHOWN = 5  # stages, the longest, whose time is printed
AGAIN = "the same command with resume=true, once the run is finished,"
LATENT_TOKENS = 2**22  # tokens for computing initial token vectors: takes seconds, below 1 GB
for message in (f".*{words}.*" for words in NOISE):
    warnings.filterwarnings("ignore", message)


def train(config: Sequence[str] | DictConfig, data: Any = None) -> Run | None:
    """Makes one run in this process, from the configuration to its folder.

        run = train(["model=t5_colbert", "data=beir", "data.path=…"])
        run = train(["model=t5_colbert"], data=frame)

    Args:
        config: the arguments of `python train.py`, or a configuration composed from
            `conf/train.yaml`.
        data: a table in memory instead of `data.path` (`write_given_table`); only with arguments.

    Returns:
        The finished run: its `path`, its flat `metrics`; None on all ranks but the first.

    Raises:
        FileExistsError: the run's folder exists and `resume` is false.
        ValueError, FileNotFoundError: an option or a file is wrong; the message is one line.
    """
    if isinstance(config, DictConfig):
        return make_run(config)
    if data is not None:
        config = ["data=files", *config, f"data.path='{write_given_table(data)}'"]
    composed = compose_command("train", config)
    if (processes := processes_to_start(composed)) > 1:
        raise ValueError(
            f"trainer.devices={composed.trainer.devices}: must be one device in Python, "
            f"{processes} processes need the command line: python train.py …"
        )
    try:
        with explain_errors(config):
            check_hub(composed)
            return make_run(composed, config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUME) from None


def make_run(config: DictConfig, typed: Sequence[str] | None = None) -> Run | None:
    """Makes the run of `train` from a composed configuration.

    Args:
        typed: the overrides that the user typed; None = those of Hydra's command line.
    """
    typed = find_typed(typed)
    join()
    with rank_zero_first():  # the others read what rank 0 has downloaded
        taken = find_weights("weights", config.weights) or find_weights("initial", config.initial)
    if taken is not None:
        take_settings(config, taken.settings(config), typed)
    if config.trainer.precision == "auto":
        config.trainer.precision = choose_precision(config.trainer.accelerator)
    if config.trainer.strategy == "auto":
        config.trainer.strategy = choose_strategy()
    trainer = instantiate(config.trainer, logger=False)  # checks its keys before anything is read
    with open_run(config) as (folder, missing), ExitStack() as opened:
        is_first = rank() == 0
        if missing in ([], ["report.html"]):
            if is_first:
                print(f"{folder}: finished before, kept", *(write_report(folder) for _ in missing))
                if must_upload(folder):
                    publish_run(open_logger(config, folder), read_run(folder), AGAIN, curves=True)
            return read_run(folder)
        pl.seed_everything(config.seed, workers=True, verbose=False)
        watch_run()
        with (
            timed("reading"),
            rank_zero_first(),
            naming(taken),
        ):  # the others read what rank 0 has cached
            data = instantiate(config.data)
            model = prepare_model(config, data, folder, taken, trainer.strategy.root_device)
            record = record_provenance(config.system, model, data, config.seed)
            record["overrides"] = list(typed)
            if isinstance(taken, SavedWeights):
                record["training_sources"][str(taken.file)] = sha256(taken.file)
        opened.callback(lambda: model.close())  # the model may be another after training
        logger = announce_run(config, folder, model, record) if is_first else None
        rows: list[Measured] = []
        if is_trained(config):
            model, rows = train_model(config, trainer, folder, model, data, logger)
            release_memory()
        elif taken is not None:
            if is_first:
                save_tokenizer(data.tokenizer, folder)  # doc2query's index reads it
            model.eval().to(trainer.strategy.root_device)
        if is_first:
            # Of a system of words, whose tokeniser is its collection's, the options alone.
            tokenizer = data.tokenizer if model.trainable else None
            with new_folder(folder / MODEL, replace=True) as partial:
                save_model(model, partial, tokenizer, text_options(data))
        with timed("index"):
            reused = is_first and isinstance(taken, SavedWeights)
            reused = reused and taken.open_index(model, data.documents, folder / "index")
            reused = bool(broadcast(torch.tensor(reused)))
            if not reused and (is_first or model.indexes_in_shards):
                model.index(data.documents, folder / "index")
        leave()
        if not is_first:
            return None
        if not reused:
            rows += costs({"index_seconds": SPENT["index"]})
        is_tuned = model.tunes_search
        rows += measure_run(config, folder, model, data) + measure_memory()
        rows += (stages := measure_stages())
        if is_tuned:
            save_options(model, folder / MODEL)
        write_numbers(folder, make_frame(rows))
        report = write_report(folder, finished=False)
        run = read_run(folder, finished=False)
        export_numbers(folder, run.numbers)  # last: from here on the run is finished
        if not is_in_sweep():
            print(run.summary)
            print("time:", ", ".join(f"{row.part} {row.value:.1f} s" for row in stages[:_SHOWN]))
        publish_run(logger, run, AGAIN)
        print(f"{folder}: finished, {report}")
        return run


def prepare_model(
    config: DictConfig,
    data: RetrievalDataModule,
    run: Path,
    taken: SavedWeights | PublishedWeights | None = None,
    device: torch.device | None = None,
) -> System:
    """Builds the system, prepares it on the collection and loads the weights that it takes over.

    Args:
        device: where another run's model embeds documents for docids; None = the CPU.
    """
    data.check_splits(is_trained(config), bool(config.study))
    settings = config.copy()
    settings.tokenizer.vocab_size = len(data.tokenizer)  # a small model's table wastes no row
    settings.data.language = data.analyzer.language  # a model knows the language that was guessed
    if config.data.language == "auto" and rank() == 0:
        print(f"data.language={settings.data.language}: guessed from the documents")
    settings.tokenizer.special_tokens = data.special_tokens  # a model knows tokens, not texts
    if "backbone" in settings:
        settings.backbone.template = data.template.settings
    # Parts within a model (its head, its identifiers) stay dicts: a checkpoint can hold them.
    typed = OmegaConf.to_container(settings.model, resolve=True)
    with admitting(typed):
        model = build("model", typed)
        data.check_system(model, is_trained(config))
        check_study(config.study, model)
        for form, options in config.rerank.items():
            check_form(model, f"rerank.{form}", options)
        identifiers = run / IDENTIFIERS
        if isinstance(taken, SavedWeights):
            taken.give_identifiers(model, config, data.documents, identifiers)
        elif is_trained(config) and getattr(backbone := find_backbone(model)[1], "latent", 0.0):
            sample = sample_tokens(data.documents, data.known_documents, LATENT_TOKENS)
            take_latent_meanings(backbone, sample)
        if device is not None and hasattr(model, "scheme"):
            model.scheme.device = device
        model.passages = data.evaluation.passage_map
        model.prepare(data.documents, data.known_documents, identifiers)
        said = taken.give(model, data.tokenizer) if taken is not None else None
    if taken is None and is_trained(config) and (left_out := find_backbone(model)[1].left_out):
        said = f"backbone.name={config.backbone.name}: trained without its {name_some(left_out)}"
    if said and rank() == 0:
        print(said)
    return model


def is_trained(config: DictConfig) -> bool:
    """Whether a run trains its system: not BM25, and nothing with `weights=`."""
    return get_class(config.model._target_).trainable and config.weights is None


def announce_run(config: DictConfig, run: Path, model: System, record: dict[str, Any]) -> Any:
    """Creates and prints the run's folder; returns the run's logger, or None."""
    start_run(config, record)
    documents = count_of(record["documents"], "document")
    print(f"{config.system} on {record['collection']}: {documents} → {run}")
    print_losses(record, config)
    return open_logger(config, run)


def open_logger(config: DictConfig, run: Path) -> Any:
    """Returns the run's logger, ready to log; None without one, or if it cannot be opened."""
    logger = instantiate(begin_upload(config.logger, run)) or None
    with tolerating(run, AGAIN):
        if logger is not None:
            logger.experiment  # noqa: B018  opens it: training should not meet its errors
        return logger
    return None


@timed("training")
def train_model(
    config: DictConfig,
    trainer: pl.Trainer,
    run: Path,
    model: System,
    data: RetrievalDataModule,
    logger: Any,
) -> tuple[System, list[Measured]]:
    """Trains a model; returns it on its device, with the costs of its training."""
    trainer.loggers = [CurveLogger(run), *([logger] if logger else [])]
    kept, spent = fit(model, data, trainer, run)
    is_sharded = model.device_mesh is not None  # its checkpoint is whole
    if kept or is_sharded:
        checkpoint = read_checkpoint(kept or run / CHECKPOINT)
        if is_sharded:
            model = prepare_model(config, data, run)
            model.configure_model()
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
    # Lightning has moved it to the CPU. Search and analysis are in fp32, as in a restored run.
    model.eval().float().to(trainer.strategy.root_device)
    if hasattr(backbone := find_backbone(model)[1], "adapted"):
        first = new_folder(run / ADAPTER, replace=True) if rank() == 0 else nullcontext()
        with first as folder:
            merge_adapters(backbone, folder)
    return model, spent


def measure_run(
    config: DictConfig, run: Path, model: System, data: RetrievalDataModule
) -> list[Measured]:
    """Searches, reranks and analyses with an indexed model; writes the run's files."""
    rows = costs({"index_bytes": measure_index_bytes(run / "index")})
    rows += evaluate_retrieval(model, data, run, config.retrieval_depth)
    rows += evaluate_reranking(model, data, run, instantiate(config.rerank, _convert_="all"))
    rows += model.statistics()
    rows += measure_latency(model, data, config.retrieval_depth)
    asked = OmegaConf.to_container(config.analysis, resolve=True)
    rows += analyse_run(model, data, run, config.system, asked)
    rows += run_study(config.study, model, data, run)
    return rows


def main(config: DictConfig) -> None:
    """Trains in as many processes as the configuration asks for."""
    if (processes := processes_to_start(config)) > 1:
        launch(processes, config.trainer)
        return
    try:
        train(config)
    except (ValueError, OSError, SystemExit):
        disconnect()
        raise
