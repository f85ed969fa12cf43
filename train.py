"""Train, search, rerank, analyse and log one system on one collection: `python train.py --help`."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    import os
    import signal

    from conf.command import RESUME, run_command

    if "LOCAL_RANK" not in os.environ:  # SIGTERM ends a run as Ctrl-C does; a launcher has its own
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_command("train", "train:main", RESUME)
    raise SystemExit

import logging
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import get_class, instantiate
from lightning_fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from analysis.analyse import analyse_run
from analysis.evaluation import (
    evaluate_reranking,
    evaluate_retrieval,
    measure_index_bytes,
    measure_latency,
)
from analysis.provenance import record_provenance
from analysis.publish import describe_run, publish_run
from analysis.report.report import write_report
from analysis.report.summary import summarise_run
from analysis.run_folder import Run, find_other_seed, open_run, read_run, start_run
from analysis.studies.study import check_study, run_study
from conf.checks import check_hub
from conf.command import RESUME, compose_command, explain_errors
from conf.composition import find_typed, register_resolvers, take_settings
from conf.launch import choose_precision, is_in_sweep, launch, processes_to_start
from data_modules.module import RetrievalDataModule
from data_modules.tables import TokenColumn
from gr_mvdr.evaluation.metrics import rank_of
from gr_mvdr.files import new_folder, read_checkpoint, write_json
from gr_mvdr.initialisation import take_latent_meanings
from gr_mvdr.memory import StagePeaks
from gr_mvdr.options import admitting, build
from gr_mvdr.ranks import join, leave, rank, rank_zero_first
from gr_mvdr.run_files import CHECKPOINT, check_finite
from gr_mvdr.tokenizers import load_tokenizer
from models.base import System, find_backbone
from models.results import count_of
from models.training import CurveLogger, RunCheckpoint
from models.weights import RunWeights, Weights, find_weights, save_weights

register_resolvers()  # for who composes a configuration without the command line
logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
NOISE = (
    *("LeafSpec", "Total length of `list`", "The number of training batches", "FSDP2-wrapped"),
    "(Checkpoint|Experiment logs) directory .* exists and is not empty",  # of a resumed run
)
LATENT_TOKENS = 2**22  # in a sample of documents: takes seconds, below 1 GB
for message in (f".*{words}.*" for words in NOISE):
    warnings.filterwarnings("ignore", message)


def train(config: Sequence[str] | DictConfig) -> Run | None:
    """Makes one run in this process, from the configuration to its folder.

        run = train(["model=t5_colbert", "data=beir", "data.path=…"])

    Args:
        config: the arguments of `python train.py`, or a configuration composed from
            `conf/train.yaml`.

    Returns:
        The finished run: its `path`, its flat `metrics`; None on all ranks but the first.

    Raises:
        FileExistsError: the run's folder exists and `resume` is false.
        ValueError, FileNotFoundError: an option or a file is wrong; one line.
    """
    if isinstance(config, DictConfig):
        return make_run(config)
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
    """`train` of a composed configuration.

    Args:
        typed: its command line; None = Hydra's.
    """
    typed = find_typed(typed)
    join()
    with rank_zero_first():  # the others read what rank 0 has downloaded
        weights = find_weights(config.weights)
    if weights is not None:
        take_settings(config, weights.settings, typed)
    initial = None if config.initial is None else RunWeights.find("initial", config.initial)
    if initial is not None:
        take_settings(config, initial.initial_settings(config), typed)
    if config.trainer.precision == "auto":
        config.trainer.precision = choose_precision()
    untrained = not get_class(config.model._target_).trainable
    if untrained and is_in_sweep() and (same := find_other_seed(config)):
        print(f"{config.system} is not trained, no seed changes it: {same} stands for {config.run}")
        return read_run(same)
    with open_run(config) as (folder, missing):
        if missing in ([], ["report.html"]):
            return keep_finished(folder, missing)
        memory = StagePeaks()
        model, data, logger = train_model(config, folder, weights, initial, memory, typed)
        if rank() > 0:
            if model.indexes_in_shards:
                model.index(data.documents, folder / "index")
            leave()
            return None
        measured = measure_run(config, folder, model, data, memory)
        metrics = check_finite(measured | memory.metrics, folder / "metrics.json")
        report = write_report(folder, metrics=metrics)
        memory.end("report")
        metrics |= memory.metrics
        run = read_run(folder, metrics)
        publish_run(logger, run)
        write_json(folder / "metrics.json", metrics)  # last: from here on the run is finished
        if not is_in_sweep():
            print(summarise_run(run))
        print(f"{folder}: finished, {report}")
        return run


def keep_finished(run: Path, missing: list[str]) -> Run:
    """A run that was finished before; makes its report again if it is missing."""
    if rank() == 0:
        report = [write_report(run)] if missing else []
        print(f"{run}: finished before, kept", *report)
    return read_run(run)


def train_model(
    config: DictConfig,
    run: Path,
    weights: Weights | None,
    initial: RunWeights | None,
    memory: StagePeaks,
    typed: Sequence[str] = (),
) -> tuple[System, RetrievalDataModule, Any]:
    """The run's trained model, its data, and the logger of rank 0, None elsewhere."""
    pl.seed_everything(config.seed, workers=True, verbose=False)
    with rank_zero_first():  # the others read what rank 0 has cached
        data = instantiate(config.data)
        check_queries(config, data)
        model = prepare_model(config, data, run, initial)
        if weights is not None:
            weights.give(model.eval(), data.tokenizer)
        record = record_provenance(config.system, model, data, config.seed)
        record["overrides"] = list(typed)
        if initial is not None:
            taken = initial.give_fitting(model, data.tokenizer)
            if rank() == 0:
                print(taken)
            record["training_sources"] |= initial.sources
    logger = announce_run(config, run, model, record) if rank() == 0 else None
    memory.end("load")
    if trains(model, config):
        model = fit(model, data, config, logger)
        memory.end("train")
        return model, data, logger
    if weights is None:
        return model, data, logger
    # The weights of another run are not copied, unless nothing is measured: then this run exists
    # only to be opened again.
    if rank() == 0 and not (weights.is_run and data.test_splits):
        save_tokenizer(data, run)
        save_weights(model, run)
    return model.to(instantiate(config.trainer, logger=False).strategy.root_device), data, logger


def measure_run(
    config: DictConfig, run: Path, model: System, data: RetrievalDataModule, memory: StagePeaks
) -> dict[str, float]:
    """Indexes, searches, reranks and analyses; returns the metrics, writes the run's files.

    An index of shards is written by all ranks (`indexes_in_shards`); after it rank 0 is alone.
    """
    metrics = {"cost/train_seconds": model.train_seconds} if trains(model, config) else {}
    start = time.perf_counter()
    model.index(data.documents, run / "index")
    leave()
    metrics["cost/index_seconds"] = time.perf_counter() - start
    metrics["cost/index_bytes"] = measure_index_bytes(run / "index")
    memory.end("index")
    metrics |= evaluate_retrieval(model, data, run, config.retrieval_depth)
    memory.end("retrieve")
    metrics |= evaluate_reranking(model, data, run, instantiate(config.rerank, _convert_="all"))
    metrics |= model.statistics()
    metrics |= measure_latency(model, data, config.retrieval_depth)
    memory.end("rerank")
    asked = OmegaConf.to_container(config.analysis, resolve=True)
    metrics |= analyse_run(model, data, run, config.system, asked)
    metrics |= run_study(config.study, model, data, run)
    memory.end("analyse")
    return metrics


def prepare_model(
    config: DictConfig, data: RetrievalDataModule, run: Path, initial: RunWeights | None = None
) -> System:
    """The configuration's system, prepared on the collection; may take identifiers of `initial`."""
    settings = config.copy()
    settings.tokenizer.vocab_size = len(data.tokenizer)  # a small model's table wastes no row
    settings.tokenizer.special_tokens = data.special_tokens  # a model knows tokens, not texts
    if "backbone" in settings:
        settings.backbone.template = data.template.settings
    # Parts within a model (its head, its identifiers) stay dicts: a checkpoint can hold them.
    typed = OmegaConf.to_container(settings.model, resolve=True)
    with admitting(typed):
        model = build("model", typed)
        if data.shard and model.scores_need:
            need = f"{config.system}'s scores need {model.scores_need}"
            raise ValueError(f"data.shard={data.shard}: must be null, {need}")
        if model.trainable and data.new_documents and config.tokenizer.unit == "word":
            rule = f"must be piece with data.new_documents={data.new_documents}, whose words"
            raise ValueError(f"tokenizer.unit=word: {rule} training would know already")
        if model.needs_negatives and config.weights is None:
            data.check_negatives()
        check_study(config.study, model)
        if initial is not None:
            initial.give_identifiers(model, config, data.documents, run / "identifiers")
        if config.weights is None and initial is None:
            start_token_vectors(model, data)
        model.prepare(data.documents, data.known_documents, run / "identifiers")
    return model


def check_queries(config: DictConfig, data: RetrievalDataModule) -> None:
    """Checks that there are training queries, and queries with judgements for a study.

    Raises:
        ValueError: the system must be trained and there are no training queries, or a study is
            asked for and no query has judgements.
    """
    name, trainable = data.collection.name, get_class(config.model._target_).trainable
    if trainable and config.weights is None and data.train_split is None:
        splits = ", ".join(sorted(data.collection.qrels))
        rule = f"must be one of {splits}" if splits else f"{name} has no training queries"
        ways = "weights=RUN takes over a trained model, model=bm25 needs no training"
        raise ValueError(f"data.train_split=null: {rule}: {ways}")
    if config.study and not data.test_splits:
        raise ValueError(f"study: must be null, {name} has no queries with judgements")


def start_token_vectors(model: System, data: RetrievalDataModule) -> None:
    """Initialises a new backbone's embeddings by latent meanings of the known documents' tokens."""
    backbone = find_backbone(model)[1] if model.trainable else None
    if getattr(backbone, "latent", 0.0):
        known = data.documents.select(data.known_documents)
        tokens = TokenColumn(known).lengths.sum()
        sample = known.select(range(0, len(known), max(1, -(-tokens // LATENT_TOKENS))))
        take_latent_meanings(backbone, TokenColumn(sample))


def announce_run(config: DictConfig, run: Path, model: System, record: dict[str, Any]) -> Any:
    """Makes the run's folder and prints it; returns the run's logger, or None."""
    begun = (run / "config.yaml").is_file()
    start_run(config, record)
    documents = count_of(record["documents"], "document")
    print(f"{config.system} on {record['collection']}: {documents} → {run}")
    if begun and not trains(model, config):
        print("resume: nothing is to be trained, goes on with the index")
    elif begun and not (run / CHECKPOINT).is_file():  # with one, `fit` knows more
        print("resume: there is no checkpoint yet, training begins again")
    print_losses(record, config)
    return instantiate(describe_run(config.logger, "train", [record])) or None


def trains(model: System, config: DictConfig) -> bool:
    """Whether this run trains its system: not BM25, and nothing with `weights=`."""
    return model.trainable and config.weights is None


def print_losses(record: dict[str, Any], config: DictConfig) -> None:
    """Prints which texts are cut, which documents are missing, which queries have no judgements."""
    for noun, key in (("query", "queries"), ("document", "documents")):
        if count := record["cut_texts"][key]:
            limit = f"{noun}_length"
            print(f"{count_of(count, noun)} cut at {limit}={config[limit]} tokens")
    if config.data.shard:
        print(f"data.shard={config.data.shard}: documents of other shards cannot be retrieved")
    if (deepest := max(map(rank_of, config.data.metrics))) > config.retrieval_depth:
        print(f"retrieval_depth={config.retrieval_depth}: a metric looks at rank {deepest:,}")
    if not record["splits"]:
        print("no queries with judgements: the documents can be searched, nothing is measured")
    for where, count in record["unjudged_queries"].items():
        print(f"{count_of(count, 'query')} without a relevant document: {where}")


def fit(model: System, data: RetrievalDataModule, config: DictConfig, logger: Any) -> System:
    """The trained model; training continues from the run's last checkpoint, if there is one.

    Raises:
        ValueError: the trainer's settings contradict each other, nothing was trained, or the
            checkpoint is of another tokeniser.
    """
    with rank_zero_first():  # caches negatives and spans
        data.epoch(0)
        data.val_dataloader()
    checkpoint = Path(config.run) / CHECKPOINT
    resumed = str(checkpoint) if checkpoint.is_file() else None
    if rank() == 0:
        if resumed:
            check_tokenizer(data, Path(config.run))
        save_tokenizer(data, Path(config.run))
    loggers = [CurveLogger(config.run), *([logger] if logger else [])]
    trainer = instantiate(config.trainer, logger=loggers)
    trainer.callbacks.append(kept := RunCheckpoint(checkpoint))
    with _interruptible():
        try:
            trainer.fit(model, data, ckpt_path=resumed, weights_only=True)
        except MisconfigurationException as error:
            raise ValueError(f"trainer: {error}") from None
    if not trainer.global_step:  # such as under trainer.max_time
        raise ValueError("trainer: training ended before its first step, nothing was trained")
    if rank() == 0 and resumed and not kept.trains:
        step = f"checkpoint of step {trainer.global_step:,}"
        print(f"resume: training is finished ({step}), goes on with the index")
    # The model keeps its trainer: Adam and gradients are three more copies of its weights.
    trainer.strategy.optimizers = trainer.strategy.lr_scheduler_configs = []
    model.zero_grad()
    if model.device_mesh is not None:  # the model is sharded, its checkpoint is whole
        seconds, model = model.train_seconds, prepare_model(config, data, Path(config.run))
        whole = read_checkpoint(checkpoint)
        model.load_state_dict(whole["state_dict"])
        model.on_load_checkpoint(whole)
        model.train_seconds = seconds
    # Lightning has moved it to the CPU. Search and analysis are in fp32, as in a restored run.
    return model.eval().float().to(trainer.strategy.root_device)


def check_tokenizer(data: RetrievalDataModule, run: Path) -> None:
    """Raises ValueError if an interrupted run started with another tokeniser.

    The collection's files may have changed, or the version of this library.
    """
    own = run / "tokenizer"
    if own.is_dir() and load_tokenizer(own).get_vocab() != data.tokenizer.get_vocab():
        raise ValueError(
            f"run={run}: cannot resume, its tokeniser is not the one that is trained now, of "
            "other texts or by another version; name=… makes another run"
        )


def save_tokenizer(data: RetrievalDataModule, run: Path) -> None:
    """Saves the run's tokeniser in its folder."""
    with new_folder(run / "tokenizer", replace=True) as folder:
        data.tokenizer.save_pretrained(folder)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turns Lightning's SystemExit after Ctrl-C into a KeyboardInterrupt, and restores SIGINT."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def main(config: DictConfig) -> None:
    """Trains in as many processes as the configuration asks for."""
    if (processes := processes_to_start(config)) > 1:
        launch(processes)
    else:
        train(config)
