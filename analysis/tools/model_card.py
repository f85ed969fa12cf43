"""The README.md of an exported model: what the run's own files say of it, and how to load it."""

import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from analysis.runs.run_folder import Run
from analysis.tables import metric_names
from analysis.tables.report import tabulate_sections
from analysis.tables.rows import Cell, Table, escape_markdown, format_markdown
from gr_mvdr.heads.plain import Head
from models.base import System
from models.docid import Docid
from models.export.folder import find_backbone
from models.export.sentence_transformers import SIMILARITIES, find_obstacles
from models.generative import GenerativeSystem
from models.multi_vector import MultiVector

# The blocks of code of a card run in this order.
_TRANSFORMERS = """In transformers:

```python
from transformers import AutoTokenizer, {name}

folder = "…"  # where this file lies
tokenizer = AutoTokenizer.from_pretrained(folder)
backbone = {name}.from_pretrained(folder)
```"""

_SENTENCE_TRANSFORMERS = """
In sentence-transformers 6 (`pip install 'sentence-transformers>=6'`), by {similarity}, with \
this system's scores of a query and a document:

```python
from sentence_transformers import MultiVectorEncoder

model = MultiVectorEncoder(folder)
queries = model.encode_query(["a query"])
documents = model.encode_document(["a title | its text"])
scores = model.similarity(queries, documents)
```"""

_MULTI_VECTOR = """
The encoder alone is not this system: what makes token vectors, salience and scores of its \
states lies in `gr_mvdr.safetensors` and `gr_mvdr.json`. sentence-transformers' \
`MultiVectorEncoder` cannot express {lacking}."""

_ENCODER = """
The encoder alone is not this system: its other weights are in `gr_mvdr.safetensors`."""

_HEAD = """
The backbone alone is not this system: it generates with a {head}, whose parameters and rows lie \
in `gr_mvdr.safetensors` and `head_rows.safetensors`. `{name}` does not have them, its logits are \
those of its own table."""

_IDENTIFIERS = """
The documents of every identifier, which is the token ids generated:

```python
import json

import numpy as np

saved = f"{folder}/identifiers/identifiers"
tokens, starts = (np.load(f"{saved}/{name}.npy") for name in ("tokens", "starts"))
with open(f"{saved}/arrays.json", encoding="utf-8") as file:
    names = json.load(file)["settings"]["document_ids"]
documents_of = {}
for name, start, end in zip(names, starts, starts[1:]):
    documents_of.setdefault(tuple(tokens[start:end].tolist()), []).append(name)
```"""

_GR_MVDR = """
In gr-mvdr, with all of its verbs (`score`, `align`, `index`, `retrieve`, `rerank`):

```python
from datasets import Dataset

from models.export.folder import load_exported

def table(texts):
    tokens = tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"]
    columns = {"id": list(texts), "text": list(texts.values()), "tokens": tokens}
    return Dataset.from_dict(columns)

system = load_exported(folder)
system.index(DOCUMENTS)
ranking = system.retrieve(table({"q1": "a query"}), OPTIONS).documents("q1")
```

`backbone=pretrained backbone.name=FOLDER` trains another system from the backbone in it."""


def build_model_card(run: Run, system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The card's text, Markdown under a YAML header.

    Args:
        run: finished; system: its model; tokenizer: its tokeniser.
    """
    lacking = find_obstacles(system, tokenizer) if isinstance(system, MultiVector) else []
    read = isinstance(system, MultiVector) and not lacking
    library = "sentence-transformers" if read else "transformers"
    header = ["---", f"library_name: {library}", "tags: [retrieval, gr-mvdr]", "---"]
    summary = (
        f"A {system.paradigm.replace('_', '-')} retrieval system ({type(system).__name__}), "
        "exported by `python -m analysis.export` of gr-mvdr. All that is said here is copied from "
        "the run's own records; its hyper-parameters are in `gr_mvdr.json`."
    )
    licence = (
        f"The code of gr-mvdr is under {metadata('gr-mvdr')['License-Expression']}. The licences "
        "of the data and of the backbone are not known to the run; they may bind these weights too."
    )
    title = f"# {escape_markdown(run.system)} on {escape_markdown(run.provenance['collection'])}"
    parts = ["\n".join([*header, title]), summary]
    tables = [_data(run), _sources(run), _metrics(run), _origin(run)]
    parts += ["\n".join(format_markdown(table)) for table in tables]
    parts += ["## How to load it\n\n" + "\n".join(_explain_usage(system, lacking))]
    return "\n\n".join([*parts, "## Licence", licence]) + "\n"


def _list(heading: str, corner: str, column: str, rows: dict[str, Any]) -> Table:
    """Two columns: names, and what they are; a name without value is left out."""
    shown = []
    for name, value in rows.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown.append((name, [Cell(f"{value:,}" if isinstance(value, int) else text)]))
    return Table(heading, [column], shown, corner)


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
    return _list("Data", "what", "value", {k: v for k, v in rows.items() if v is not None})


def _sources(run: Run) -> Table:
    sources = run.provenance.get("sources", {}) | run.provenance.get("training_sources", {})
    # A file's name, not its path: the folder may be given away.
    named = {Path(name).name: str(value) for name, value in sources.items()}
    return _list("What the data were made of", "source", "SHA-256, or options", named)


def _metrics(run: Run) -> Table:
    places = ("retrieve", "rerank")
    found = {
        key: value
        for key, value in run.metrics.items()
        if metric_names.group(key) in places and "@" in key.split("/")[-1]
    }
    statistics = metric_names.join_intervals(found)
    keys = sorted(statistics, key=metric_names.order)
    return tabulate_sections("Metrics", statistics, keys, "task")


def _origin(run: Run) -> Table:
    record, backbone = run.provenance, run.config.get("backbone") or {}
    weights = backbone.get("name")
    weights = Path(weights).name if weights and Path(weights).is_dir() else weights
    rows = {
        "system": run.system,
        "backbone": weights or "none: trained from random weights",
        "parameters": record.get("parameters"),
        "seed": run.seed,
        "commit": record.get("git"),
        "gr-mvdr": record.get("version"),
        **record.get("versions", {}),
    }
    return _list("How it was made", "what", "value", {k: v for k, v in rows.items() if v})


def _explain_usage(system: System, lacking: list[str]) -> list[str]:
    """How to load the folder; lacking: what sentence-transformers cannot express of the system."""
    name = type(find_backbone(system)[1]).__name__
    parts = [_TRANSFORMERS.format(name=name)]
    if isinstance(system, MultiVector):
        similarity = SIMILARITIES.get(system.scoring.normaliser)
        text = _MULTI_VECTOR if lacking else _SENTENCE_TRANSFORMERS
        parts.append(text.format(lacking=", ".join(lacking), similarity=similarity))
    elif not isinstance(system, GenerativeSystem):
        parts.append(_ENCODER)
    elif type(system.head) is not Head:
        parts.append(_HEAD.format(head=type(system.head).__name__, name=name))
    documents = 'table({"d1": "a title | its text", "d2": "another | text"})'
    if isinstance(system, Docid):
        parts.append(_IDENTIFIERS)
        documents = '{"id": system.identifiers.document_ids}'
    elif getattr(system, "special_tokens", None):
        documents += '.add_column("title_tokens", [[], []])'
    options = "k=10"
    if isinstance(system, MultiVector) and system.search.mode != "exact":
        options += ', mode="exact"'  # its own search wants more tokens than two texts have
    return [*parts, _GR_MVDR.replace("DOCUMENTS", documents).replace("OPTIONS", options)]
