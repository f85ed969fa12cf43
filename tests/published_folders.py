"""Folders of tiny random models as transformers, PyLate and colbert-ai lay them out."""

import json
import string

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, BertConfig, BertForSequenceClassification

from tests.families import save_family

# Of texts made of w0 … w39, and of `tests.runs.beir`.
WORDS = [f"w{n}" for n in range(40)]
WORDS += "apple pear plum cherry quince fig grape lemon lime melon peach date".split()
WORDS += "the is a fruit number what who eats 1 2 3 4 5 6 7 8 9 10".split()
# With small weights the states of a new model are nearly all alike.
SIZES = dict(hidden_size=16, intermediate_size=24, initializer_range=0.8)
SIZES |= dict(max_position_embeddings=32)


def make_bert(folder, markers=("[Q]", "[D]")):
    """A random BERT and a WordPiece tokeniser of the words w0 … w39."""
    return save_family("bert", folder, [*WORDS, string.punctuation], markers, 24, **SIZES)


def make_encoder(kind, folder):
    """A random encoder of another family, with BERT's tokeniser."""
    make_bert(folder, ())
    given = BertConfig.from_pretrained(folder)
    sizes = dict(num_hidden_layers=2, num_attention_heads=2, embedding_size=8, pad_token_id=0)
    config = AutoConfig.for_model(kind, vocab_size=given.vocab_size, **SIZES | sizes)
    AutoModel.from_config(config).float().save_pretrained(folder)
    return folder


def make_classifier(folder):
    """A cross-encoder as transformers saves it: a BERT with a head of one label."""
    make_bert(folder, ())
    config = BertConfig.from_pretrained(folder, num_labels=1)
    BertForSequenceClassification(config).float().save_pretrained(folder)
    return folder


def make_modern_bert(folder, markers=("[Q] ", "[D] ")):
    """A random ModernBERT with a byte-level tokeniser, to which a blank belongs to a word."""
    texts = [" w1 w2 w3 w4 w9", "w5 w9"]
    return save_family("modernbert", folder, texts, markers, 24, **SIZES)


def make_decoder(family, folder, padding_side="left", **sizes):
    """A random language model in bf16, as most are saved, with a byte-level tokeniser."""
    own = dict(hidden_size=16, initializer_range=0.8, **sizes)
    save_family(family, folder, WORDS, (), 24, torch.bfloat16, **own)
    file = folder / "tokenizer_config.json"
    write_json(file, json.loads(file.read_text()) | {"padding_side": padding_side})
    return str(folder)


def write_json(file, content):
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def make_pylate(folder):
    """PyLate's layout: two parts, and the settings that its model's `save` adds."""
    make_bert(folder, ("[Q] ", "[D] "))
    linear = dict(bias=False, activation_function="torch.nn.modules.linear.Identity")
    kinds = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
    parts = [{"idx": n, "name": str(n), "path": "", "type": k} for n, k in enumerate(kinds)]
    parts[1]["path"] = "1_Dense"
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 8,
        "document_length": 12,
        "do_query_expansion": True,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
    }
    write_json(folder / "modules.json", parts)
    write_json(folder / "config_sentence_transformers.json", settings)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False})
    write_json(folder / "1_Dense/config.json", dict(in_features=16, out_features=6, **linear))
    save_file({"linear.weight": torch.randn(6, 16).float()}, folder / "1_Dense/model.safetensors")
    return "[Q] ", "[D] "


def make_single(folder):
    """The layout of sentence-transformers 2: unit vectors, each the mean of a text's tokens."""
    make_bert(folder, ())
    kinds = ["Transformer", "Pooling", "Normalize"]
    parts = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    for number, part in enumerate(parts):
        path = f"{number}_{kinds[number]}" if number else ""
        part |= {"idx": number, "name": str(number), "path": path}
    mean = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    write_json(folder / "modules.json", parts)
    write_json(folder / "config_sentence_transformers.json", {"__version__": {}})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False})
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 16, **mean})


def make_stanford(folder, file="model.safetensors"):
    """colbert-ai's layout: the projection is among the encoder's weights."""
    make_bert(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights = {f"bert.{name}": weight for name, weight in weights.items()}
    weights["linear.weight"] = torch.randn(6, 16).float()
    save = save_file if file.endswith("safetensors") else torch.save
    save(weights, folder / file)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    settings = dict(query_token_id="[unused0]", doc_token_id="[unused1]", query_maxlen=8)
    settings |= dict(doc_maxlen=12, mask_punctuation=True, attend_to_mask_tokens=False, dim=6)
    write_json(folder / "artifact.metadata", settings | {"similarity": "cosine"})
    return "[unused0]", "[unused1]"
