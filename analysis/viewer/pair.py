"""One query and one document in one system, as the JSON that every page shows."""

import base64
import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from analysis.viewer.directed_alignment import DIRECTIONS, directed_alignment
from gr_mvdr.relevance import PairAlignment, divide

LEVELS = 2**16 - 1  # steps from a matrix's smallest value to its largest
DIGITS = 6  # significant digits of a number in JSON: more than a page shows
NOTE = (
    "The relevance (Eq. 1) is read off one layer's cross-attention and is not what the system "
    "ranks by: the score comes through all paths of the decoder (gr_as_mvdr §8)."
)


def describe_pair(
    layers: Sequence[PairAlignment],
    paradigm: str,
    strings: Callable[[list[int]], Sequence[str]],
    special: Collection[int],
    every: bool = True,
) -> dict[str, Any]:
    """Describes a pair by its S, A, S·A / Z and directed weights in every layer and head.

    Args:
        layers: each with B = 1 and no padding.
        paradigm: of the system.
        strings: turns token ids into strings.
        special: ids of special tokens.
        every: False leaves out S, and S·A of single heads, which make a file large.

    Returns:
        "query", "document": {tokens, special, adds}; `adds` is what each token adds to the
        relevance, layer by layer. "matrices": name → `pack_matrices` of L matrices, or of
        L · (1 + H): for each layer all heads together, then every head.
    """
    products = [_product(layer) for layer in layers]
    matrices = {"alignment": [_with_mean(layer.alignment[0]) for layer in layers]}
    matrices["product"] = products if every else [heads[:1] for heads in products]
    for direction in DIRECTIONS:
        matrices[direction] = [directed_alignment(x, paradigm, direction) for x in layers]
    if every:
        matrices["similarity"] = [_with_mean(layer.similarity[0]) for layer in layers]
    sides = {
        side: {
            "tokens": list(strings(ids)),
            "special": [number in special for number in ids],
            "adds": [heads[0].sum(axis).tolist() for heads in products],
        }
        for axis, side in enumerate(("query", "document"))
        for ids in [getattr(layers[-1], f"{side}_ids")[0].tolist()]
    }
    return {
        **sides,
        "layers": len(layers),
        "heads": layers[-1].alignment.shape[1],
        "score": layers[-1].score.item(),
        "relevance": [layer.relevance.item() for layer in layers],
        "note": NOTE if paradigm == "generative" else "",
        "matrices": {name: pack_matrices(torch.cat(parts)) for name, parts in matrices.items()},
    }


def _with_mean(heads: Tensor) -> Tensor:
    """Returns (1, M, N) for one head, (1 + H, M, N) for several: their mean, then each head."""
    return heads if len(heads) == 1 else torch.cat([heads.mean(0, keepdim=True), heads])


def _product(layer: PairAlignment) -> Tensor:
    """Returns S·A / Z in the shape of `_with_mean`, with the heads' sum instead of their mean."""
    terms = layer.similarity * layer.alignment
    heads = divide(terms, layer.normaliser[:, None, None, None])[0]
    return heads if len(heads) == 1 else torch.cat([heads.sum(0, keepdim=True), heads])


def pack_matrices(matrices: Tensor) -> dict[str, Any]:
    """Compresses matrices: 16 bits a value, 0 for a matrix's smallest and 65,535 for its largest.

    Args:
        matrices: (K, M, N), any float dtype.

    Returns:
        "low", "high": K numbers each; "data": K·M·N little-endian numbers of 16 bits, row by row,
        as base64 of a zlib stream.
    """
    values = matrices.double()
    low, high = values.flatten(1).amin(1), values.flatten(1).amax(1)
    span = (high - low)[:, None, None].expand_as(values)
    levels = LEVELS * divide(values - low[:, None, None], span)  # all 0 if all values are equal
    content = zlib.compress(levels.round().numpy().astype("<u2").tobytes())
    data = base64.b64encode(content).decode()
    return {"low": low.tolist(), "high": high.tolist(), "data": data}


def to_json(content: Any) -> str:
    """Returns JSON with six significant digits; null for a number that is not finite."""
    return json.dumps(_rounded(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list | tuple) else value
