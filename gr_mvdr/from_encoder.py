"""Turns an encoder into an encoder-decoder (Rothe, Narayan and Severyn 2020).

A layer of BERT, RoBERTa or DistilBERT has the form of a BART layer: post-norm, learned positions,
biases on every projection. So their encoder is exactly the encoder of a BART, and all code for BART
applies. The decoder starts from the encoder's weights.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedModel

from gr_mvdr.options import Size, checked
from gr_mvdr.template import TextTemplate

# BART's name of each part of a layer → the name in the encoder's family.
_BERT = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_DISTILBERT = {
    "self_attn.q_proj": "attention.q_lin",
    "self_attn.k_proj": "attention.k_lin",
    "self_attn.v_proj": "attention.v_lin",
    "self_attn.out_proj": "attention.out_lin",
    "self_attn_layer_norm": "sa_layer_norm",
    "fc1": "ffn.lin1",
    "fc2": "ffn.lin2",
    "final_layer_norm": "output_layer_norm",
}
# Family → the module that holds its layers, the names of a layer's parts, and the configuration's
# keys for the activation and the dropout rates.
_OPTIONS = ("activation_function", "dropout", "attention_dropout")
_LIKE_BERT = ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")
_FAMILIES = {
    "bert": ("encoder.layer", _BERT, _LIKE_BERT),
    "roberta": ("encoder.layer", _BERT, _LIKE_BERT),
    "xlm-roberta": ("encoder.layer", _BERT, _LIKE_BERT),
    "distilbert": (
        "transformer.layer",
        _DISTILBERT,
        ("activation", "dropout", "attention_dropout"),
    ),
}
_OFFSET = 2  # rows before the first position in BART's table
# Of `_copy_tokens`: random sequences and their length, the ridge penalty as a share of the states'
# variance, and the norm of a copied vector, large enough to outweigh what it is added to.
_SEQUENCES, _LENGTH, _RIDGE, _NORM = 400, 32, 0.1, 60.0


@checked
def make_encoder_decoder(
    encoder: PreTrainedModel,
    template: TextTemplate,
    layers: Size = 2,
    cross_attention: Literal["tokens", "copied", "random"] = "tokens",
) -> PreTrainedModel:
    """Builds a BART with this encoder, and a decoder that starts from the encoder's weights.

    The decoder's layers are copies of encoder layers, evenly spread from the first to the last. The
    output table is the input table.

    Args:
        layers: number of decoder layers.
        cross_attention: "copied" starts from the weights of the layer's self-attention, "random"
            from random weights; "tokens" is "copied", but the last layer writes the vectors of the
            tokens that it attends to, so that the model begins by generating words of the query.

    Raises:
        ValueError: the encoder's layers do not have the form of BART's.
    """
    kind = encoder.config.model_type
    if kind not in _FAMILIES:
        raise ValueError(
            f"backbone.name={encoder.name_or_path}: holds a {kind}; must be one of "
            f"{', '.join(_FAMILIES)} to become an encoder-decoder"
        )
    place, names, options = _FAMILIES[kind]
    config, blocks = encoder.config, encoder.get_submodule(place)
    positions, norm = _read_positions(encoder), encoder.get_submodule("embeddings.LayerNorm")
    width = blocks[0].get_submodule(names["fc1"]).out_features
    new = BartConfig(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        encoder_layers=len(blocks),
        decoder_layers=layers,
        encoder_attention_heads=config.num_attention_heads,
        decoder_attention_heads=config.num_attention_heads,
        encoder_ffn_dim=width,
        decoder_ffn_dim=width,
        max_position_embeddings=len(positions) - _OFFSET,
        tie_word_embeddings=True,
        pad_token_id=template.pad,
        bos_token_id=template.target[0] if template.target else template.stop,
        eos_token_id=template.stop,
        decoder_start_token_id=template.stop,  # as in BART
        forced_eos_token_id=None,
        layer_norm_eps=norm.eps,
        **{name: getattr(config, key) for name, key in zip(_OPTIONS, options, strict=True)},
    )
    model = BartForConditionalGeneration(new)
    model.to(encoder.dtype).name_or_path = encoder.name_or_path
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(encoder.get_input_embeddings().weight)
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.embed_positions.weight.copy_(positions)
            stack.layernorm_embedding.load_state_dict(norm.state_dict())
            last = max(1, len(stack.layers) - 1)
            for number, layer in enumerate(stack.layers):
                block = blocks[number * (len(blocks) - 1) // last]
                for name, other in names.items():
                    part = block.get_submodule(other).state_dict()
                    layer.get_submodule(name).load_state_dict(part)
                if stack is model.get_decoder() and cross_attention != "random":
                    layer.encoder_attn.load_state_dict(layer.self_attn.state_dict())
                    norms = layer.encoder_attn_layer_norm, layer.self_attn_layer_norm
                    norms[0].load_state_dict(norms[1].state_dict())
        set_epsilon(model)
        if cross_attention == "tokens":
            _copy_tokens(model, template)
    return model


def _copy_tokens(model: PreTrainedModel, template: TextTemplate) -> None:
    """Lets the last cross-attention write the vectors of the tokens that it attends to.

    A ridge regression learns to read a token's own input vector from its state in the encoder, on
    random sequences of the vocabulary's tokens. The product of output and value weights becomes
    its matrix. The feed-forward layer behind it begins near zero, and the layer norms neutral, so
    that the copied vectors reach the output table, which is the input table.
    """
    table, encoder = model.get_input_embeddings().weight, model.get_encoder().eval()
    usable = torch.tensor([t for t in range(len(table)) if t not in template.special])
    length = min(_LENGTH, model.config.max_position_embeddings)
    ids = usable[torch.randint(len(usable), (_SEQUENCES, length))]
    states = torch.cat([encoder(part).last_hidden_state for part in ids.split(50)]).flatten(0, 1)
    states, rows = states.double(), table[ids.flatten()].double()
    mean = states.mean(0)
    inputs, targets = states - mean, rows - rows.mean(0)
    products = inputs.T @ inputs
    penalty = _RIDGE * products.diagonal().mean() * torch.eye(len(products))
    matrix = torch.linalg.solve(products + penalty, inputs.T @ targets)  # inputs @ matrix ≈ targets
    matrix *= _NORM / (inputs @ matrix).norm(dim=1).mean()
    left, values, right = torch.linalg.svd(matrix.T)
    layer = model.get_decoder().layers[-1]
    attention = layer.encoder_attn
    attention.v_proj.weight.copy_(values.sqrt()[:, None] * right)
    attention.v_proj.bias.copy_(-(attention.v_proj.weight.double() @ mean))
    attention.out_proj.weight.copy_(left * values.sqrt())
    attention.out_proj.bias.zero_()
    for norm in (layer.encoder_attn_layer_norm, layer.final_layer_norm):
        norm.reset_parameters()
    layer.fc2.weight.mul_(0.1)
    layer.fc2.bias.mul_(0.1)


def set_epsilon(model: PreTrainedModel) -> None:
    """Sets the ε of the layer norms of a BART that was made from an encoder to the encoder's ε.

    BART has 1e-5, without a key in its configuration; BERT has 1e-12. With the wrong ε, vectors
    differ in the fourth digit.
    """
    epsilon = getattr(model.config, "layer_norm_eps", None)
    if model.config.model_type == "bart" and epsilon is not None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = epsilon


def _read_positions(encoder: PreTrainedModel) -> Tensor:
    """(positions + 2, d) an encoder's table of positions in BART's form.

    The row of token type 0, which BERT adds to every token's vector, is added to every position.
    """
    embeddings = encoder.get_submodule("embeddings")
    table = embeddings.position_embeddings
    rows = table.weight.detach()
    if table.padding_idx is None:  # RoBERTa's and BART's tables begin with two unused rows
        rows = torch.cat([torch.zeros_like(rows[:_OFFSET]), rows])
    types = getattr(embeddings, "token_type_embeddings", None)
    return rows if types is None else rows + types.weight.detach()[0]
