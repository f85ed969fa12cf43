"""The README.md of an exported model: what the run's own files say of it, and how to load it."""

import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedTokenizerBase

from analysis.runs.run_folder import Run
from analysis.tables.metric_names import RANKED, join_intervals
from analysis.tables.rows import Table, escape_markdown, format_markdown, pivot, select, tabulate
from gr_mvdr.heads.plain import Head
from models.base import System
from models.docid import Docid
from models.export.folder import find_backbone
from models.export.sentence_transformers import SIMILARITIES, find_obstacles
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector

TEMPLATE = Path(__file__).with_suffix(".md")  # its blocks of code run in their order


def build_model_card(run: Run, system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The card's text, Markdown under a YAML header.

    Args:
        run: finished; system: its model; tokenizer: its tokeniser.
    """
    is_multi_vector, generates = (isinstance(system, c) for c in (MultiVector, GenerativeSystem))
    lacking = find_obstacles(system, tokenizer) if is_multi_vector else []
    similarity = None
    if is_multi_vector and not lacking:
        similarity = SIMILARITIES.get(system.scoring.normaliser)
    documents = 'table({"d1": "a title | its text", "d2": "another | text"})'
    if isinstance(system, Docid):
        documents = '{"id": system.identifiers.document_ids}'
    elif getattr(system, "special_tokens", None):
        documents += '.add_column("title_tokens", [[], []])'
    # A search that is not exact wants more tokens than two texts have.
    inexact = is_multi_vector and system.search.mode != "exact"
    library = "sentence-transformers" if similarity else "transformers"
    values = {
        "title": escape_markdown(f"{run.system} on {run.provenance['collection']}"),
        "paradigm": system.paradigm.replace("_", "-"),
        "kind": type(system).__name__,
        "tables": "\n\n".join("\n".join(format_markdown(table)) for table in _describe(run)),
        "backbone": type(find_backbone(system)[1]).__name__,
        "similarity": similarity,
        "lacking": ", ".join(lacking),
        "head": type(system.head).__name__ if generates and type(system.head) is not Head else "",
        "is_encoder": not generates,
        "has_identifiers": isinstance(system, Docid),
        "documents": documents,
        "options": 'k=10, mode="exact"' if inexact else "k=10",
        "licence": metadata("gr-mvdr")["License-Expression"],
    }
    header = ModelCardData(library_name=library, tags=["retrieval", "gr-mvdr"])
    return str(ModelCard.from_template(header, template_path=str(TEMPLATE), **values))


def _describe(run: Run) -> list[Table]:
    """The data, what they were made of, the metrics, and where the model comes from."""
    record, config, data = run.provenance, run.config, run.config.get("data", {})
    table = tabulate({run.system: join_intervals(run.metrics)})
    ranked = table[table["group"].isin(RANKED)]
    weights = (config.get("backbone") or {}).get("name")
    weights = Path(weights).name if weights and Path(weights).is_dir() else weights
    sources = record.get("sources", {}) | record.get("training_sources", {})
    return [
        _list(
            "Data",
            **{
                "collection": record["collection"],
                "documents": record.get("documents"),
                'text fields, joined by " | "': ", ".join(record.get("text_fields", [])),
                "train split": record.get("train_split"),
                "test splits": ", ".join(record.get("splits", [])),
                "tokens read of a query": config.get("query_length"),
                "tokens read of a document": config.get("document_length"),
                "texts that are longer": record.get("cut_texts"),
                "cleaning": data.get("cleaning"),
                "test queries at most": data.get("max_test_queries"),
                "reranked queries at most": data.get("max_rerank_queries"),
                "BM25 candidates of a query": data.get("candidates"),
            },
        ),
        # A file's name, not its path: the folder may be given away.
        _list("Sources", **{Path(name).name: str(value) for name, value in sources.items()}),
        select(ranked, "section", "label", heading="Metrics", corner="task"),
        _list(
            "How it was made",
            system=run.system,
            backbone=weights or "none: trained from random weights",
            parameters=record.get("parameters"),
            seed=run.seed,
            commit=record.get("git"),
            **{"gr-mvdr": record.get("version"), **record.get("versions", {})},
        ),
    ]


def _list(heading: str, **values: Any) -> Table:
    """Names and what they are; a name without value is left out."""
    texts = {
        (name, "value"): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value not in (None, "", [], {})
    }
    return pivot(texts, heading, corner="")
