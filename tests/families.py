"""Tiny checkpoints of the families of encoders and encoder-decoders, as transformers saves them."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors, trainers

# Shapes by the names of either tradition. Weights of 0.1: with 0.02 so few dimensions tell little.
BERT = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    initializer_range=0.1,
)
T5 = dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
DISTIL = dict(dim=32, n_layers=2, n_heads=2, hidden_dim=64, initializer_range=0.1)
BART = dict(d_model=32, init_std=0.1) | {
    f"{stack}_{size}": number
    for stack in ("encoder", "decoder")
    for size, number in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 64))
}
# Family → its model's class, its shape, its tokeniser's class, and what that is trained as.
ENCODERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bert": ("BertModel", BERT, "BertTokenizer", "words"),
    "distilbert": ("DistilBertModel", DISTIL, "DistilBertTokenizer", "words"),
    "roberta": ("RobertaModel", BERT | {"type_vocab_size": 1}, "RobertaTokenizer", "bytes"),
    "xlm-roberta": ("XLMRobertaModel", BERT, "XLMRobertaTokenizer", "unigram"),
    "modernbert": ("ModernBertModel", BERT, "PreTrainedTokenizerFast", "bytes"),
    "deberta-v2": ("DebertaV2Model", BERT, "DebertaV2Tokenizer", "unigram"),
}
ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "t5": ("T5ForConditionalGeneration", T5, "T5Tokenizer", "unigram"),
    "mt5": ("MT5ForConditionalGeneration", T5, "T5Tokenizer", "unigram"),
    "byt5": ("T5ForConditionalGeneration", T5, "ByT5Tokenizer", "python"),
    "bart": ("BartForConditionalGeneration", BART, "BartTokenizer", "bytes"),
    "mbart": ("MBartForConditionalGeneration", BART, "MBartTokenizer", "unigram"),
}
# Decoder-only language models. GPT-2's and Llama 3's tokenisers have no token that pads.
GPT2 = dict(n_embd=32, n_layer=2, n_head=2, n_positions=512, initializer_range=0.1)
LLAMA = BERT | dict(num_key_value_heads=1, head_dim=16)
LAYERS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=8)
GEMMA3 = LLAMA | LAYERS | dict(query_pre_attn_scalar=16)
MAMBA = dict(hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.1)
LFM2 = LLAMA | dict(layer_types=["conv", "full_attention"])
DECODERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2, "PreTrainedTokenizerFast", "bytes"),
    "llama": ("LlamaForCausalLM", LLAMA, "PreTrainedTokenizerFast", "bytes"),
    "qwen3": ("Qwen3ForCausalLM", LLAMA, "PreTrainedTokenizerFast", "bytes"),
    "gemma3": ("Gemma3ForCausalLM", GEMMA3, "PreTrainedTokenizerFast", "bytes"),
    "mamba": ("MambaForCausalLM", MAMBA, "PreTrainedTokenizerFast", "bytes"),
    "lfm2": ("Lfm2ForCausalLM", LFM2, "PreTrainedTokenizerFast", "bytes"),
}
FAMILIES = ENCODERS | ENCODER_DECODERS | DECODERS
# Special tokens in the order of their ids, as the families' published tokenisers have them.
_FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"],
    "modernbert": ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    "deberta-v2": ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
    **{family: _FAIRSEQ for family in ("roberta", "xlm-roberta", "bart", "mbart")},
    **{family: ["<pad>", "</s>", "<unk>"] for family in ("t5", "mt5")},
    **{family: ["<pad>", "<bos>", "<eos>"] for family in DECODERS},
}
# Families of decoders whose tokenisers have no padding, and begin a text with <bos>.
_UNPADDED, _BEGUN = ("gpt2", "llama"), ("llama", "gemma3", "lfm2")
_OPTIONS = {"t5": {"extra_ids": 0}, "mt5": {"extra_ids": 0}, "mbart": {"src_lang": "en_XX"}}


def save_family(
    family: str,
    folder: Path,
    texts: Sequence[str],
    markers: Sequence[str] = (),
    max_length: int | None = None,
    dtype: torch.dtype = torch.float32,
    **sizes: float,
) -> str:
    """Writes a tiny random model of a family, and a tokeniser of the texts; returns the folder.

    Args:
        markers: special tokens that are added. max_length: of the tokeniser's texts.
        dtype: of the saved weights.
        sizes: further values of the model's configuration.
    """
    torch.manual_seed(0)
    kind, shape, tokenizer_kind, trained_as = FAMILIES[family]
    tokenizer = _make_tokenizer(getattr(transformers, tokenizer_kind), trained_as, family, texts)
    added = [tokenizers.AddedToken(text, special=True, normalized=False) for text in markers]
    tokenizer.add_tokens(added, special_tokens=True)
    tokenizer.model_max_length = max_length or tokenizer.model_max_length
    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
        for name in ("pad", "eos", "bos", "cls", "sep")
    }
    model_class = getattr(transformers, kind)
    if family in ("t5", "mt5", "byt5"):
        ids["decoder_start_token_id"] = tokenizer.pad_token_id
    elif family == "bart":
        ids["decoder_start_token_id"] = tokenizer.eos_token_id
    shape = {**shape, **ids, **sizes, "vocab_size": len(tokenizer)}
    model_class(model_class.config_class(**shape)).to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _make_tokenizer(kind: Any, trained_as: str, family: str, texts: Sequence[str]) -> Any:
    if trained_as == "python":
        return kind()
    special = _SPECIAL["bert" if trained_as == "words" else family]
    if trained_as == "words":
        words = sorted({word for text in texts for word in _words(text.lower())})
        letters = sorted({letter for word in words for letter in word})
        pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *words]
        return kind(vocab={piece: number for number, piece in enumerate(dict.fromkeys(pieces))})
    if trained_as == "bytes":
        model = tokenizers.ByteLevelBPETokenizer()
        model.train_from_iterator(texts, 600, special_tokens=special, show_progress=False)
        if family == "modernbert" or family in DECODERS:
            wrap = _modernbert if family == "modernbert" else partial(_decoder, family)
            return wrap(tokenizers.Tokenizer.from_str(model.to_str()))
        pairs = [tuple(pair) for pair in json.loads(model.to_str())["model"]["merges"]]
        return kind(vocab=model.get_vocab(), merges=pairs)
    model = tokenizers.Tokenizer(models.Unigram())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    unknown = next(token for token in special if "unk" in token.lower())
    options = {"special_tokens": special, "unk_token": unknown, "show_progress": False}
    model.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=200, **options))
    vocabulary = [tuple(piece) for piece in json.loads(model.to_str())["model"]["vocab"]]
    own = {"unk_id": special.index(unknown)} if family == "deberta-v2" else _OPTIONS.get(family, {})
    return kind(vocab=vocabulary, **own)


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else f" {c} " for c in text).split()


def _modernbert(model: tokenizers.Tokenizer) -> Any:
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    model.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, model.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, **{f"{name}_token": token for name, token in names.items()}
    )


def _decoder(family: str, model: tokenizers.Tokenizer) -> Any:
    names = {"eos_token": "<eos>"}
    if family not in _UNPADDED:
        names["pad_token"] = "<pad>"
    if family in _BEGUN:
        names["bos_token"] = "<bos>"
        model.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **names)
