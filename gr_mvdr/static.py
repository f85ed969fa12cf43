"""Static embeddings: a table of token vectors as an encoder that reads no context.

They are published by sentence-transformers (`StaticEmbedding`) and as model2vec. The table is a
model of transformers here, so that everything that trains, saves and opens an encoder applies.
"""

from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput

from gr_mvdr.files import temporary_folder


class StaticConfig(PretrainedConfig):
    """The size of the table."""

    model_type = "gr_mvdr_static"

    def __init__(self, vocab_size: int = 1, hidden_size: int = 1, **options: Any):
        super().__init__(**options)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size


class StaticModel(PreTrainedModel):
    """Maps token ids (B, L) to the rows (B, L, d) of a table."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> BaseModelOutput:
        states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return BaseModelOutput(last_hidden_state=states)


AutoConfig.register(StaticConfig.model_type, StaticConfig)
AutoModel.register(StaticConfig, StaticModel)


def save_static(table: Tensor, tokenizer: tokenizers.Tokenizer) -> Path:
    """Saves a table (V, d) and its tokeniser as a model of transformers; returns a new folder.

    No token is put around a text. Some tokenisers have no token that ends or pads one, which a
    model needs to name: it is the first token then, and never read.
    """
    folder = temporary_folder("static")
    model = StaticModel(StaticConfig(*table.shape))
    model.embed_tokens.weight = nn.Parameter(table.detach().to(torch.get_default_dtype()))
    model.save_pretrained(folder)
    copied = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copied.no_padding()
    copied.no_truncation()
    copied.post_processor = tokenizers.processors.Sequence([])
    first = min(copied.get_vocab(), key=copied.get_vocab().get)
    names = {"pad_token": first, "eos_token": first}
    if (unknown := getattr(copied.model, "unk_token", None)) is not None:
        names["unk_token"] = unknown
    PreTrainedTokenizerFast(tokenizer_object=copied, **names).save_pretrained(folder)
    return folder
