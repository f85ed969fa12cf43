"""Folders of tiny random models as transformers, PyLate and colbert-ai lay them out."""

import json
import string

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
)

# Of texts made of w0 … w39, and of `tests.runs.beir`.
WORDS = [f"w{n}" for n in range(40)]
WORDS += "apple pear plum cherry quince fig grape lemon lime melon peach date".split()
WORDS += "the is a fruit number what who eats 1 2 3 4 5 6 7 8 9 10".split()
SPECIAL = dict(pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", cls_token="[CLS]")
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


def make_bert(folder, markers=("[Q]", "[D]")):
    """A random BERT and a WordPiece tokeniser of the words w0 … w39."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"]
    words += [*string.punctuation, *WORDS]
    vocabulary = {word: number for number, word in enumerate(words)}
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    pieces.normalizer = tokenizers.normalizers.BertNormalizer()
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return save_encoder(folder, pieces, markers, BertModel, BertConfig)


def make_modern_bert(folder, markers=("[Q] ", "[D] ")):
    """A random ModernBERT with a byte-level tokeniser, to which a blank belongs to a word."""
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=special, initial_alphabet=alphabet, vocab_size=300, show_progress=False
    )
    pieces.train_from_iterator([" w1 w2 w3 w4 w9", "w5 w9"], trainer)
    return save_encoder(folder, pieces, markers, ModernBertModel, ModernBertConfig)


def save_encoder(folder, pieces, markers, model, config):
    ends = [(name, pieces.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces, sep_token="[SEP]", model_max_length=24, **SPECIAL
    )
    added = [tokenizers.AddedToken(text, special=True, normalized=False) for text in markers]
    tokenizer.add_tokens(added, special_tokens=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    ids = dict(pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
    ids |= dict(max_position_embeddings=32, vocab_size=len(tokenizer))
    network = model(config(**SIZES, **ids)).float()
    with torch.no_grad():  # a fresh model's states are nearly all alike
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.8)
    network.save_pretrained(folder)
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
