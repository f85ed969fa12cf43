"""What the page is told of systems, hits, alignments and explanations, as JSON can hold it."""

from collections.abc import Collection
from typing import Any

from torch import Tensor

from analysis.directed_alignment import OWN_DIRECTION
from analysis.explorer.loading import LoadedSystem
from gr_mvdr.relevance import divide

# What the parts of a score belong to.
PARTS = {
    "lexical": "word",
    "multi_vector": "query token",
    "T5SEAL": "n-gram",
    "Docid": "docid token",
}
# What the number is that a system ranks given pairs by.
SCORES = {
    "lexical": "BM25",
    "multi_vector": "Σ S·A / Z, Eq. 1",
    "T5SEAL": "mean log-probability of the document's windows, whatever the search generates",
    "Docid": "log-probability of the docid",
    "cross_encoder": "the cross-encoder's score",
    "pipeline": "the last stage's score",
}


class NotThere(ValueError):
    """What was asked for by its name or number is not there."""


def describe_system(number: int, system: LoadedSystem) -> dict[str, Any]:
    """A system as `/api/about` lists it."""
    model, retriever = system.retriever.system, system.retriever
    generative = retriever.paradigm == "generative"
    shape = model.backbone.config if generative else None
    parts = PARTS.get(type(model).__name__) or PARTS.get(retriever.paradigm, "document")
    return {
        "number": number,
        "label": system.label,
        "paradigm": retriever.paradigm.replace("_", " "),
        "run": str(system.run.path),
        "alignable": model.alignable,
        "heads": shape.num_heads if generative else 1,
        "layers": shape.num_decoder_layers if generative else 1,
        "direction": OWN_DIRECTION.get(retriever.paradigm),
        "generative": generative,
        "shares_of": parts,
    }


def describe_hit(hit: Any, gold: Collection[str]) -> dict[str, Any]:
    """A hit; `rest` is what its shares leave of its score, but for rounding."""
    rest = hit.score - sum(share.value for share in hit.shares)
    return {
        "rank": hit.rank,
        "id": hit.id,
        "title": hit.title,
        "snippet": hit.snippet,
        "score": hit.score,
        "gold": hit.id in gold,
        "shares": list(map(_share, hit.shares)),
        "rest": rest if abs(rest) > 1e-4 * max(1, abs(hit.score)) else 0.0,
    }


def describe_alignment(
    system: LoadedSystem, aligned: Any, layer: int, head: int | None
) -> dict[str, Any]:
    """S, A and S·A / Z of one pair, and what its score is made of.

    Args:
        aligned: of `Retriever.align`. head: None = similarity and alignment as the mean of the
            heads, the product as their sum.

    Raises:
        ValueError: there is no such head.
    """
    similarity, alignment = aligned.similarity[0], aligned.alignment[0]  # (H, M, N)
    heads = len(similarity)
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"head={head}: must be ≥ 0 and < {heads}, or null")
    product = divide(similarity * alignment, aligned.normaliser[0])
    shown = product.sum(0) if head is None else product[head]
    relevance, score = aligned.relevance.item(), aligned.score.item()
    shares = list(map(_share, aligned.shares))
    return {
        "query_tokens": aligned.query_tokens,
        "document_tokens": aligned.document_tokens,
        "similarity": _rows(similarity.mean(0) if head is None else similarity[head]),
        "alignment": _rows(alignment.mean(0) if head is None else alignment[head]),
        "product": _rows(shown),
        "query_shares": shown.sum(0).tolist(),
        "document_shares": shown.sum(1).tolist(),
        "normaliser": aligned.normaliser.item(),
        "relevance": relevance,
        "score": score,
        "score_name": name_score(system),
        "shares": shares,
        "shares_sum": sum(share["value"] for share in shares),
        **{key: describe_system(0, system)[key] for key in ("layers", "heads", "direction")},
        "layer": layer,
        "head": head,
        "note": _note(system, heads, head),
    }


def name_score(system: LoadedSystem) -> str:
    """What the number is that a system ranks given pairs by."""
    name = type(system.retriever.system).__name__
    return SCORES.get(name) or SCORES.get(system.retriever.paradigm, "score")


def _note(system: LoadedSystem, heads: int, head: int | None) -> str:
    """What the numbers of an alignment do not say themselves."""
    said = []
    if heads > 1 and head is None:
        said.append(f"S and A are the mean of {heads} heads, S·A is their sum.")
    elif head is not None and heads > 1:
        said.append("S·A is this head's part of the relevance.")
    if system.retriever.paradigm == "generative":
        said.append(
            "The relevance (Eq. 1) is read off one layer's cross-attention and is not what the "
            "system ranks by: the score comes through all paths of the decoder (gr_as_mvdr §8)."
        )
    return " ".join(said)


def _rows(matrix: Tensor) -> list[list[float]]:
    return matrix.double().tolist()


def _share(share: Any) -> dict[str, Any]:
    return {"text": share.text, "value": share.value}


def describe_explanation(explained: Any, gold: Collection[str]) -> dict[str, Any]:
    """Why a system ranks a document where it does; of a generative one, its search step by step."""
    found = {
        "rank": explained.rank,
        "score": explained.score,
        "best": describe_hit(explained.best, gold) if explained.best else None,
        "hit": describe_hit(explained.hit, gold) if explained.hit else None,
        "reason": explained.reason,
    }
    if getattr(explained, "steps", None) is None:
        return found
    return found
