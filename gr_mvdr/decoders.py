"""Decoders that read a query: by cross-attention, or as their own prefix (a causal language model).

A causal language model has no encoder. Its query vectors are the inputs of the prompt, the query in
its template, and it reads prompt and identifier as one sequence. The last token of the template is
the identifier's start: the decoder's first input, and the last token of every prompt.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from gr_mvdr.backbones import encode, encoder_mask


def read_query(backbone: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Returns the query vectors (B, N, d) that `decode` takes, from token ids and mask (B, N)."""
    if backbone.config.is_encoder_decoder:
        return encode(backbone, ids, mask)
    return backbone.get_input_embeddings()(ids)


def new_cache(backbone: PreTrainedModel) -> Cache:
    """Returns an empty cache for the steps of a search."""
    if backbone.config.is_encoder_decoder:
        return EncoderDecoderCache(DynamicCache(), DynamicCache())
    return DynamicCache(config=backbone.config)


def decode(
    backbone: PreTrainedModel,
    inputs: Tensor,
    queries: Tensor,
    query_mask: Tensor,
    cache: Cache | None = None,
) -> Tensor:
    """Computes the decoder's states (B·S, M, d), S sequences for each query.

    Args:
        inputs: (B·S, M, d) decoder inputs, the start first; rows b·S … b·S + S − 1 are query b's.
        queries, query_mask: (B, N, d) from `read_query`, and (B, N), padded on the right.
        cache: of a search, where S = 1. It holds all but the last input, and only this input's
            states (B, 1, d) are returned; an empty one takes up all inputs.
    """
    each, new = len(inputs) // len(queries), inputs
    if cache is not None and cache.get_seq_length():
        new = inputs[:, -1:]
    if not backbone.config.is_encoder_decoder:
        return _continue_prompt(backbone, inputs, new, queries, query_mask, cache)
    return backbone.get_decoder()(
        inputs_embeds=new,
        encoder_hidden_states=queries.repeat_interleave(each, 0) if each > 1 else queries,
        encoder_attention_mask=encoder_mask(
            backbone, query_mask.repeat_interleave(each, 0) if each > 1 else query_mask
        ),
        past_key_values=cache,
        use_cache=cache is not None,
    ).last_hidden_state


def _continue_prompt(
    model: PreTrainedModel,
    inputs: Tensor,
    new: Tensor,
    prompts: Tensor,
    mask: Tensor,
    cache: Cache | None,
) -> Tensor:
    """Computes what `decode` does, by a causal language model; a prompt is computed once."""
    each = len(inputs) // len(prompts)
    # Padded on the left, a prompt and its continuation are consecutive tokens.
    prompts, seen = push_right(prompts, mask)[:, :-1], mask.flip(1)[:, :-1]
    # Recomputed layers take no cache.
    recomputes = model.training and getattr(model.base_model, "gradient_checkpointing", False)
    if each > 1 and prompts.shape[1] and not recomputes:
        cache = DynamicCache(config=model.config)
        _read(model, prompts, seen, cache)
        cache.reorder_cache(torch.arange(len(prompts), device=mask.device).repeat_interleave(each))
    elif new is inputs:
        new = torch.cat([prompts.repeat_interleave(each, 0), inputs], 1)
    seen = F.pad(seen.repeat_interleave(each, 0), (0, inputs.shape[1]), value=True)
    return _read(model, new, seen, cache)[:, -inputs.shape[1] :]


def _read(model: PreTrainedModel, inputs: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
    """(R, L, d) states of the last L tokens of sequences whose real tokens are `seen` (R, ≥ L)."""
    options: dict[str, Any] = dict(past_key_values=cache, use_cache=cache is not None)
    position = (seen.cumsum(1)[:, -inputs.shape[1] :] - 1).clamp(min=0)
    options |= dict(attention_mask=seen.long(), position_ids=position)
    return model.base_model(inputs_embeds=inputs, **options).last_hidden_state


def push_right(rows: Tensor, mask: Tensor) -> Tensor:
    """Moves the padding of rows (B, N, …) from the right to the left; mask (B, N), True = real."""
    place = torch.arange(mask.shape[1], device=mask.device) + mask.sum(1, keepdim=True)
    place = (place % mask.shape[1]).view(*mask.shape, *[1] * (rows.dim() - 2))
    return torch.take_along_dim(rows, place, 1)


@torch.no_grad()
def check_output(model: PreTrainedModel) -> None:
    """Checks that a causal language model attends, and has logits states · output table + bias.

    Raises:
        ValueError: the model has no attention (Mamba), or bounds its logits by tanh (Gemma 2).
    """
    key = f"backbone.name={model.name_or_path}: holds a {model.config.model_type}"
    if not any(hasattr(part, "is_causal") for part in model.modules()):
        raise ValueError(f"{key}, must have attention to generate")
    ids, output = torch.arange(3, device=model.device)[None], model.get_output_embeddings()
    model.eval()
    expected, states = model(ids).logits, model.base_model(ids).last_hidden_state
    model.train()
    made = output(states)
    if not torch.allclose(made, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(f"{key}, must have logits that are products of states and a table")
