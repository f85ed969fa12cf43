"""Train, search, rerank, analyse and log one system on one collection: `python train.py --help`."""

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import hydra
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from analysis.analyse import analyse_run
from analysis.costs import index_bytes, peak_memory_bytes, query_milliseconds, reset_peak_memory
from analysis.evaluation import evaluate_reranking, evaluate_retrieval
from analysis.pages.report import write_report
from analysis.provenance import provenance
from analysis.publish import publish_run
from analysis.run_folder import find_run, read_run, start_run, write_json
from analysis.studies.study import check_study, run_study
from conf.checks import check_values
from conf.resolvers import register_resolvers

register_resolvers()
logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
for message in (".*LeafSpec.*", "Total length of `list`.*", "The number of training batches.*"):
    warnings.filterwarnings("ignore", message)


def train(config: DictConfig) -> dict[str, float]:
    """One run, from the configuration to the folder that it leaves behind.

    Args:
        config: composed from `conf/train.yaml`.

    Returns:
        The run's flat metrics, as in its `metrics.json`.

    Raises:
        FileExistsError: the run's folder exists and `resume` is false.
        ValueError, FileNotFoundError: the user's choices or files are at fault.
    """
    check_values(config)
    run, finished = find_run(config)
    if finished:
        print(f"{run}: finished before, kept")
        return json.loads((run / "metrics.json").read_text())
    reset_peak_memory()
    pl.seed_everything(config.seed, workers=True, verbose=False)
    data = instantiate(config.data)
    settings = config.copy()
    settings.tokenizer.vocab_size = len(data.tokenizer)  # a small model's table wastes no row
    settings.tokenizer.marks = data.marks  # a model knows tokens, not texts
    # Parts within a model (its head, its identifiers) stay dicts: a checkpoint can hold them.
    model = instantiate(settings.model, _convert_="all", _recursive_=False)
    check_study(config.study, model)
    model.prepare(data.documents, data.known_documents, run / "identifiers")
    record = provenance(config.system, model, data, config.seed)
    start_run(config, record)
    print(f"{config.system} on {record['collection']}: {record['documents']:,} documents → {run}")
    logger = instantiate(config.logger) or None
    print_cut_texts(record["cut_texts"], config)
    fit(model, data, config, logger)
    metrics = {"cost/train_seconds": model.train_seconds}

    start = time.perf_counter()
    model.index(data.documents, run / "index")
    metrics["cost/index_seconds"] = time.perf_counter() - start
    metrics["cost/index_bytes"] = index_bytes(run / "index")
    metrics |= evaluate_retrieval(model, data, run, config.retrieval_depth)
    metrics |= evaluate_reranking(model, data, run, instantiate(config.rerank, _convert_="all"))
    metrics |= model.statistics()
    metrics |= query_milliseconds(model, data, config.retrieval_depth)
    asked = OmegaConf.to_container(config.analysis, resolve=True)
    metrics |= analyse_run(model, data, run, config.system, asked)
    metrics |= run_study(config.study, model, data, run)
    metrics["cost/peak_memory_bytes"] = peak_memory_bytes()

    write_json(run / "metrics.json", metrics)
    report = write_report(run)
    publish_run(logger, read_run(run))
    print(f"{run}: finished, {report}")
    return metrics


def print_cut_texts(cut: dict[str, int], config: DictConfig) -> None:
    """Says how many texts are longer than the limits: never fatal, never silent."""
    for name, limit in (("queries", "query_length"), ("documents", "document_length")):
        if cut[name]:
            print(f"{cut[name]:,} {name} are cut at {limit}={config[limit]} tokens")


def fit(model: pl.LightningModule, data: Any, config: DictConfig, logger: Any) -> None:
    """Trains the model, from its last checkpoint if there is one; BM25 has nothing to train."""
    if not model.trainable:
        return
    data.tokenizer.save_pretrained(Path(config.run) / "tokenizer")
    trainer = instantiate(config.trainer, logger=logger or False)
    checkpoint = Path(config.run) / "checkpoints" / "last.ckpt"
    resumed = str(checkpoint) if checkpoint.is_file() else None
    try:
        trainer.fit(model, data, ckpt_path=resumed, weights_only=True)
    except SystemExit:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from None
    model.eval()


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(config: DictConfig) -> None:
    try:
        train(config)
    except hydra.errors.InstantiationException as error:
        sys.exit(f"error: {error.__cause__ or error}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command with resume=true goes on from the last epoch")


if __name__ == "__main__":
    main()
