"""The README.md of an exported model: what the run's own files say of it, and nothing else."""

import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from analysis import metric_names
from analysis.card_usage import library, usage
from analysis.run_folder import Run
from analysis.tables import Cell, Table, markdown
from models.base import System


def model_card(run: Run, system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The card's text, Markdown under a YAML header.

    Args:
        run: finished; system: its model; tokenizer: its tokeniser.
    """
    named = f"{run.system} on {run.provenance['collection']}"
    header = ["---", f"library_name: {library(system, tokenizer)}", "tags: [retrieval, gr-mvdr]"]
    parts = [
        [*header, "---", f"# {named}"],
        [_summary(run, system)],
        markdown(_data(run)),
        markdown(_sources(run)),
        markdown(_metrics(run)),
        markdown(_made(run, system)),
        usage(system, tokenizer),
        ["## Licence", "", _licence()],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _summary(run: Run, system: System) -> str:
    kind = system.paradigm.replace("_", "-")
    return (
        f"A {kind} retrieval system ({type(system).__name__}), exported by `python -m "
        "analysis.export` of gr-mvdr. All that stands here is copied from the run's own records; "
        "its hyper-parameters stand in `gr_mvdr.json`."
    )


def _table(heading: str, corner: str, column: str, rows: dict[str, Any]) -> Table:
    """Two columns: names, and what they are."""
    return Table(heading, [column], [(name, [Cell(_shown(v))]) for name, v in rows.items()], corner)


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _data(run: Run) -> Table:
    record, config, data = run.provenance, run.config, run.config.get("data", {})
    rows = {
        "collection": record["collection"],
        "documents": record.get("documents"),
        'text fields, joined by " | "': ", ".join(record.get("text_fields", [])),
        "train split": record.get("train_split"),
        "test splits": ", ".join(record.get("splits", [])),
        "tokens read of a query": config.get("query_length"),
        "tokens read of a document": config.get("document_length"),
        "texts that are longer": record.get("cut_texts"),
        "cleaning": data.get("cleaning") or None,
        "test queries at most": data.get("max_test_queries"),
        "reranked queries at most": data.get("max_rerank_queries"),
        "BM25 candidates of a query": data.get("candidates"),
    }
    return _table("Data", "what", "value", {k: v for k, v in rows.items() if v is not None})


def _sources(run: Run) -> Table:
    sources = run.provenance.get("sources", {}) | run.provenance.get("training_sources", {})
    # A file's name, not its path: the folder may be given away.
    named = {Path(name).name: str(value) for name, value in sources.items()}
    return _table("What the data were made of", "source", "SHA-256, or options", named)


def _metrics(run: Run) -> Table:
    keys = [key for key in run.metrics if metric_names.group(key) in ("retrieve", "rerank")]
    keys = [key for key in sorted(keys, key=metric_names.order) if "@" in key.split("/")[-1]]
    columns = list(dict.fromkeys(map(metric_names.label, keys)))
    found: dict[str, dict[str, Cell]] = {}
    for key, statistic in metric_names.with_intervals({k: run.metrics[k] for k in keys}).items():
        row = found.setdefault(metric_names.section(key), {})
        row[metric_names.label(key)] = Cell(metric_names.text(key, statistic))
    missing = Cell(metric_names.MISSING)
    rows = [(name, [row.get(c, missing) for c in columns]) for name, row in found.items()]
    return Table("Metrics", columns, rows, "task")


def _made(run: Run, system: System) -> Table:
    record, backbone = run.provenance, run.config.get("backbone") or {}
    weights = backbone.get("name")
    rows = {
        "system": run.system,
        "backbone": Path(weights).name if weights and Path(weights).is_dir() else weights,
        "parameters": record.get("parameters"),
        "seed": run.seed,
        "commit": record.get("git"),
        "gr-mvdr": record.get("version"),
        **record.get("versions", {}),
    }
    rows["backbone"] = rows["backbone"] or "none: trained from random weights"
    return _table("How it was made", "what", "value", {k: v for k, v in rows.items() if v})


def _licence() -> str:
    return (
        f"The code of gr-mvdr is under {metadata('gr-mvdr')['License-Expression']}. The licences "
        "of the data and of the backbone are not known to the run; they may bind these weights too."
    )
