"""What is kept of a pair: its fields, from a padded batch to ragged tensors and back."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gr_mvdr.explanation import DecoderPaths, Explanation
from gr_mvdr.relevance import PairAlignment

# Axes: l layers, h heads, p paths of the decoder, m document tokens, n query tokens.
MATRICES = {"similarity": "lhmn", "alignment": "lhmn"}
PAIRWISE = {"pairwise": "mn"}
DECODER = {
    **{"contributions": "pm", "logits": "m", "log_probs": "m"},
    **{"document_norms": "l", "query_norms": ""},
}
TOKENS = {"document_tokens": "m", "query_tokens": "n"}
SCALARS = {"normaliser": "l", "relevance": "l", "score": ""}
FIELDS = MATRICES | PAIRWISE | DECODER | TOKENS | SCALARS

Fields = dict[str, Tensor]


def cut(explanation: Explanation, number: int) -> Fields:
    """One pair of a batch without its padding, on the CPU; the axes are those of `FIELDS`."""
    last = explanation.layers[-1]
    rows, columns = last.document_mask[number], last.query_mask[number]
    fields = {
        name: torch.stack([getattr(layer, name)[number] for layer in explanation.layers])
        for name in ("similarity", "alignment", "normaliser", "relevance")
    }
    fields["score"] = last.score[number]
    fields["document_tokens"] = last.document_ids[number].int()
    fields["query_tokens"] = last.query_ids[number].int()
    if explanation.pairwise is not None:
        fields["pairwise"] = explanation.pairwise[number, 0]
    if explanation.decoder is not None:
        fields |= {name: getattr(explanation.decoder, name)[number] for name in DECODER}
    for name, axes in FIELDS.items():
        if name in fields and "m" in axes:
            fields[name] = fields[name][..., rows, :] if "n" in axes else fields[name][..., rows]
        if name in fields and "n" in axes:
            fields[name] = fields[name][..., columns]
    return {name: value.cpu() for name, value in fields.items()}


def padded(
    pairs: Sequence[Fields], path_names: tuple[str, ...], projection_norms: Tensor
) -> Explanation:
    """Pairs as one batch, padded on the right; matrices are zero at padding.

    Args:
        path_names, projection_norms: of the decoder's paths, which no pair holds.
    """
    names = [name for name in pairs[0] if name not in TOKENS]
    found = {name: _stacked([pair[name].float() for pair in pairs]) for name in names}
    sides = {}
    for side in ("document", "query"):
        tokens = [pair[f"{side}_tokens"].long() for pair in pairs]
        real = [torch.ones(len(ids), dtype=torch.bool) for ids in tokens]
        sides[f"{side}_ids"] = pad_sequence(tokens, batch_first=True)
        sides[f"{side}_mask"] = pad_sequence(real, batch_first=True)
    layers = [
        PairAlignment(**_of_layer(found, layer), score=found["score"], **sides)
        for layer in range(found["similarity"].shape[1])
    ]
    decoder = {name: found[name] for name in DECODER if name in found}
    return Explanation(
        layers,
        DecoderPaths(path_names, **decoder, projection_norms=projection_norms) if decoder else None,
        found["pairwise"].unsqueeze(1) if "pairwise" in found else None,
    )


def _of_layer(found: Mapping[str, Tensor], layer: int) -> Fields:
    names = ("similarity", "alignment", "normaliser", "relevance")
    return {name: found[name][:, layer] for name in names}


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Tensors that differ in the length of their axes, as one, zero at padding."""
    shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    batch = torch.zeros(len(values), *shape)
    for row, value in zip(batch, values, strict=True):
        row[tuple(map(slice, value.shape))] = value
    return batch
