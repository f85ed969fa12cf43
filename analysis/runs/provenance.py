"""Where a run came from: code, versions, hardware, data and choices."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from data_modules.module import RetrievalDataModule
from gr_mvdr.evaluation.metrics import rank_of
from gr_mvdr.files import VERSION
from gr_mvdr.ranks import world_size
from models.base import System
from models.results import count_of

PACKAGES = (
    *("torch", "transformers", "pytorch-lightning"),
    *("datasets", "faiss-cpu", "bm25s", "PyStemmer", "scikit-learn"),
)


def record_provenance(
    system: str, model: System, data: RetrievalDataModule, seed: int
) -> dict[str, Any]:
    """Collects what a reader needs to judge or repeat a run's numbers.

    Args:
        system: the model's name in tables.
        seed: the run's random seed.
    """
    collection = data.collection
    return {
        "system": system,
        "paradigm": model.paradigm,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "collection": collection.name,
        "documents": len(collection.documents),
        "passages": len(data.texts) if data.passages else None,
        "sources": collection.sources,
        "built": collection.folder and collection.folder.name,
        "training_sources": data.training_sources,
        "text_fields": data.text_fields,
        "cleaning": data.cleaning,
        "train_split": data.train_split,
        "splits": data.evaluation.test_splits,
        "cut_texts": data.evaluation.count_cut_texts(),
        "unjudged_queries": collection.unjudged(data.evaluation.test_splits),
        "candidates": data.evaluation.candidates_from,
        "seed": seed,
        "ranks": world_size(),
        "version": VERSION,
        "git": find_revision(),
        "versions": {name: version(name) for name in PACKAGES},
        "hardware": {
            "machine": platform.machine(),
            "processor": find_processor(),
            "cores": os.cpu_count(),
            "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
            "python": platform.python_version(),
        },
    }


def print_losses(record: dict[str, Any], config: DictConfig) -> None:
    """Prints what limits a run's results.

    These are cut texts, rankings shallower than a metric's rank, and queries without a relevant
    document.

    Args:
        record: as returned by `record_provenance`.
        config: the run's configuration.
    """
    kinds = {"query": "queries", "passage" if record["passages"] else "document": "documents"}
    for kind, key in kinds.items():
        if count := record["cut_texts"][key]:
            limit = "query_length" if kind == "query" else "document_length"
            cure = ", data.passages splits them" if kind == "document" else ""
            print(f"{count_of(count, kind)} cut at {limit}={config[limit]} tokens{cure}")
    if (deepest := max(map(rank_of, config.data.metrics))) > config.retrieval_depth:
        print(f"retrieval_depth={config.retrieval_depth}: a metric looks at rank {deepest:,}")
    if not record["splits"]:
        print("no queries with judgements: the documents can be searched, nothing is measured")
    for where, count in record["unjudged_queries"].items():
        print(f"{count_of(count, 'query')} without a relevant document: {where}")


def find_revision() -> str:
    """Returns the code's commit, with "-dirty" if files differ; "unknown" outside a clone."""
    root = Path(__file__).parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
