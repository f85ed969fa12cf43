"""The README.md of an exported model: what the run's own files say of it, and nothing else."""

import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from analysis import metric_names
from analysis.run_folder import Run
from analysis.tables import Cell, Table, format_markdown
from gr_mvdr.heads.plain import Head
from models.base import System
from models.docid import Docid
from models.export.folder import find_t5
from models.export.sentence_transformers import SIMILARITIES, find_obstacles
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector

_FOLDER = 'folder = "…"  # where this file lies'


def build_model_card(run: Run, system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The card's text, Markdown under a YAML header.

    Args:
        run: finished; system: its model; tokenizer: its tokeniser.
    """
    named = f"{run.system} on {run.provenance['collection']}"
    header = [
        "---",
        f"library_name: {name_library(system, tokenizer)}",
        "tags: [retrieval, gr-mvdr]",
    ]
    parts = [
        [*header, "---", f"# {named}"],
        [_summary(run, system)],
        format_markdown(_data(run)),
        format_markdown(_sources(run)),
        format_markdown(_metrics(run)),
        format_markdown(_made(run, system)),
        explain_usage(system, tokenizer),
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
    for key, statistic in metric_names.join_intervals({k: run.metrics[k] for k in keys}).items():
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


def name_library(system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The library that reads the folder best."""
    return "sentence-transformers" if _reads(system, tokenizer) else "transformers"


def _reads(system: System, tokenizer: PreTrainedTokenizerBase) -> bool:
    return isinstance(system, MultiVector) and not find_obstacles(system, tokenizer)


def explain_usage(system: System, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The lines of the section; its blocks of code run one after the other."""
    lines = ["## How to load it", "", *_transformers(system)]
    if _reads(system, tokenizer):
        lines += _sentence_transformers(system)
    elif isinstance(system, MultiVector):
        lacking = ", ".join(find_obstacles(system, tokenizer))
        lines += [
            "",
            "The T5 encoder alone is not this system: what makes token vectors, salience and "
            "scores of its states lies in `gr_mvdr.safetensors` and `gr_mvdr.json`. "
            f"sentence-transformers' `MultiVectorEncoder` cannot express {lacking}.",
        ]
    elif not isinstance(system, GenerativeSystem):
        lines += ["", "What scores the encoder's states lies in `gr_mvdr.safetensors`."]
    elif type(system.head) is not Head:
        lines += [
            "",
            f"The T5 alone is not this system: it generates with a {type(system.head).__name__}, "
            "whose parameters and rows lie in `gr_mvdr.safetensors` and `head_rows.safetensors`. "
            f"`{_name(system)}` does not have them, its logits are those of the T5's own table.",
        ]
    if isinstance(system, Docid):
        lines += _identifiers()
    return lines + _here(system)


def _name(system: System) -> str:
    return type(find_t5(system)[1]).__name__


def _code(*lines: str) -> list[str]:
    return ["", "```python", *lines, "```"]


def _transformers(system: System) -> list[str]:
    name = _name(system)
    found = _code(
        f"from transformers import AutoTokenizer, {name}",
        "",
        _FOLDER,
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"t5 = {name}.from_pretrained(folder)",
    )
    return ["In transformers:", *found]


def _sentence_transformers(system: MultiVector) -> list[str]:
    kind = SIMILARITIES[system.scoring.normaliser]
    found = _code(
        "from sentence_transformers import MultiVectorEncoder",
        "",
        "model = MultiVectorEncoder(folder)",
        'queries = model.encode_query(["a query"])',
        'documents = model.encode_document(["a title | its text"])',
        "scores = model.similarity(queries, documents)",
    )
    return [
        "",
        f"In sentence-transformers 6 (`pip install 'sentence-transformers>=6'`), by {kind}, with "
        "this system's scores of a query and a document:",
        *found,
    ]


def _identifiers() -> list[str]:
    found = _code(
        "import json",
        "",
        "import numpy as np",
        "",
        'saved = f"{folder}/identifiers/identifiers"',
        'tokens, starts = (np.load(f"{saved}/{name}.npy") for name in ("tokens", "starts"))',
        'with open(f"{saved}/arrays.json", encoding="utf-8") as file:',
        '    names = json.load(file)["settings"]["document_ids"]',
        "documents_of = {}",
        "for name, start, end in zip(names, starts, starts[1:]):",
        "    documents_of.setdefault(tuple(tokens[start:end].tolist()), []).append(name)",
    )
    return ["", "The documents of every identifier, which is the token ids generated:", *found]


def _here(system: System) -> list[str]:
    table = [
        "def table(texts):",
        '    tokens = tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"]',
        '    columns = {"id": list(texts), "text": list(texts.values()), "tokens": tokens}',
        "    return Dataset.from_dict(columns)",
        "",
    ]
    documents = 'table({"d1": "a title | its text", "d2": "another | text"})'
    if isinstance(system, Docid):
        documents = '{"id": system.identifiers.document_ids}'
    elif getattr(system, "special_tokens", None):
        documents += '.add_column("title_tokens", [[], []])'
    options = "k=10"
    if isinstance(system, MultiVector) and system.search.mode != "exact":
        options += ', mode="exact"'  # its own search wants more tokens than two texts have
    found = _code(
        "from datasets import Dataset",
        "",
        "from models.export.folder import load_exported",
        "",
        *table,
        "system = load_exported(folder)",
        f"system.index({documents})",
        f'ranking = system.retrieve(table({{"q1": "a query"}}), {options}).documents("q1")',
    )
    return [
        "",
        "In gr-mvdr, with all of its verbs (`score`, `align`, `index`, `retrieve`, `rerank`):",
        *found,
        "",
        "`backbone=pretrained backbone.name=FOLDER` trains another system from the T5 in it.",
    ]
