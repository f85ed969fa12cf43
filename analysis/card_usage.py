"""The part of a model card that says how to load the folder: in its libraries, and here."""

from transformers import PreTrainedTokenizerBase

from gr_mvdr.heads.plain import Head
from models.base import System
from models.encoder_decoder import EncoderDecoder
from models.export.sentence_transformers import SIMILARITIES, obstacles
from models.export.write import t5_of
from models.identified import IdentifiedSystem
from models.multi_vector import MultiVector

_FOLDER = 'folder = "…"  # where this file lies'


def library(system: System, tokenizer: PreTrainedTokenizerBase) -> str:
    """The library that reads the folder best."""
    return "sentence-transformers" if _reads(system, tokenizer) else "transformers"


def _reads(system: System, tokenizer: PreTrainedTokenizerBase) -> bool:
    return isinstance(system, MultiVector) and not obstacles(system, tokenizer)


def usage(system: System, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The lines of the section; its blocks of code run one after the other."""
    lines = ["## How to load it", "", *_transformers(system)]
    if _reads(system, tokenizer):
        lines += _sentence_transformers(system)
    elif isinstance(system, MultiVector):
        lacking = ", ".join(obstacles(system, tokenizer))
        lines += [
            "",
            "The T5 encoder alone is not this system: what makes token vectors, salience and "
            "scores of its states lies in `gr_mvdr.safetensors` and `gr_mvdr.json`. "
            f"sentence-transformers' `MultiVectorEncoder` cannot express {lacking}.",
        ]
    elif not isinstance(system, EncoderDecoder):
        lines += ["", "What scores the encoder's states lies in `gr_mvdr.safetensors`."]
    elif type(system.head) is not Head:
        lines += [
            "",
            f"The T5 alone is not this system: it generates with a {type(system.head).__name__}, "
            "whose parameters and rows lie in `gr_mvdr.safetensors` and `head_rows.safetensors`. "
            f"`{_name(system)}` does not have them, its logits are those of the T5's own table.",
        ]
    if isinstance(system, IdentifiedSystem):
        lines += _identifiers()
    return lines + _here(system)


def _name(system: System) -> str:
    return type(t5_of(system)[1]).__name__


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
    if isinstance(system, IdentifiedSystem):
        documents = '{"id": system.identifiers.document_ids}'
    elif getattr(system, "special_tokens", None):
        documents += '.add_column("title_tokens", [[], []])'
    options = "k=10"
    if isinstance(system, MultiVector) and system.search.mode != "exact":
        options += ', mode="exact"'  # its own search wants more tokens than two texts have
    found = _code(
        "from datasets import Dataset",
        "",
        "from models.export.read import load_exported",
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
