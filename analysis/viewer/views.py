"""What the page is told of systems, hits, alignments and explanations, as JSON can hold it."""

from collections.abc import Collection, Iterable, Sequence
from math import fsum
from typing import Any

from analysis.patching import PatchedPair, patch_texts, patchable
from analysis.viewer.directed_alignment import OWN_DIRECTION
from analysis.viewer.loading import LoadedSystem
from gr_mvdr.decoding.search_trace import Continuation, Hypothesis, SearchPath
from gr_mvdr.tokenizers import token_strings
from models.base import Share
from models.multi_vector import MultiVector
from models.results import AlignedPair, Explained, Hit
from models.retriever import Retriever


class NotThere(ValueError):
    """What was asked for by its name or number is not there."""


def describe_system(number: int, system: LoadedSystem) -> dict[str, Any]:
    """A system as `/api/about` lists it."""
    model, retriever = system.retriever.system, system.retriever
    generative = retriever.system.paradigm == "generative"
    shape = model.backbone.config if generative else None
    return {
        "number": number,
        "label": system.label,
        "paradigm": retriever.system.paradigm.replace("_", " "),
        "run": str(system.run.path),
        "alignable": model.alignable,
        "patchable": patchable(model),
        "heads": shape.num_heads if generative else 1,
        "layers": shape.num_decoder_layers if generative else 1,
        "direction": OWN_DIRECTION.get(retriever.system.paradigm),
        "generative": generative,
        "shares_of": model.share_of,
    }


def describe_hit(hit: Hit, gold: Collection[str]) -> dict[str, Any]:
    """A hit; `rest` is what its shares leave of its score, but for rounding."""
    rest = hit.score - fsum(share.value for share in hit.shares)
    return {
        "rank": hit.rank,
        "id": hit.id,
        "title": hit.title,
        "snippet": hit.snippet,
        "score": hit.score,
        "gold": hit.id in gold,
        "shares": _shares(hit.shares),
        "rest": rest if abs(rest) > 1e-4 * max(1, abs(hit.score)) else 0.0,
    }


def describe_alignment(
    system: LoadedSystem,
    aligned: AlignedPair,
    shares: Sequence[Share],
    layer: int,
    head: int | None,
) -> dict[str, Any]:
    """S, A and S·A / Z of one pair, and what its score is made of.

    Args:
        shares: of its score. head: None = similarity and alignment as the mean of the heads, the
            product as their sum.

    Raises:
        ValueError: there is no such head.
    """
    matrices = {what: aligned.matrix(what, head) for what in ("similarity", "alignment", "product")}
    about = describe_system(0, system)
    return {
        "query_tokens": aligned.query_tokens,
        "document_tokens": aligned.document_tokens,
        **{what: matrix.tolist() for what, matrix in matrices.items()},
        "query_shares": matrices["product"].sum(0).tolist(),
        "document_shares": matrices["product"].sum(1).tolist(),
        "normaliser": aligned.normaliser.item(),
        "relevance": aligned.relevance.item(),
        "score": aligned.score.item(),
        "score_name": system.retriever.system.score_is,
        "shares": _shares(shares),
        "shares_sum": fsum(share.value for share in shares),
        "layers": about["layers"],
        "heads": aligned.alignment.shape[1],
        "direction": about["direction"],
        "layer": layer,
        "head": head,
        "note": _note(system, aligned.alignment.shape[1], head),
    }


def describe_salience(retriever: Retriever, query: str, document: Any) -> dict[str, Any]:
    """How much each token of a pair counts (u of aligner Eq. 2 and 3); None where all are alike.

    Args:
        document: as of `Retriever.encode_documents`.
    """
    found = dict.fromkeys(("query_salience", "document_salience"))
    if isinstance(retriever.system, MultiVector) and retriever.system.encoder.salience:
        texts = *retriever.encode_queries(query), *retriever.encode_documents([document])
        for side, text in zip(found, texts, strict=True):
            found[side] = None if text.salience is None else text.salience.tolist()
    return found


def _note(system: LoadedSystem, heads: int, head: int | None) -> str:
    """What the numbers of an alignment do not say themselves."""
    said = []
    if heads > 1 and head is None:
        said.append(f"S and A are the mean of {heads} heads, S·A is their sum.")
    elif head is not None and heads > 1:
        said.append("S·A is this head's part of the relevance.")
    if system.retriever.system.paradigm == "generative":
        said.append(
            "The relevance (Eq. 1) is read off one layer's cross-attention and is not what the "
            "system ranks by: the score comes through all paths of the decoder (gr_as_mvdr §8)."
        )
    return " ".join(said)


def describe_patches(
    retriever: Retriever, query: str, perturbed: str, document: Any
) -> dict[str, Any]:
    """Scores of a query and a perturbed one, and of each stack the parts' shares by token and by
    head; they are NaN where the scores are too close.
    """

    def tell(pair: PatchedPair) -> dict[str, Any]:
        return {
            "perturbed": perturbed,
            "scores": [pair.clean, pair.perturbed],
            "stacks": [_describe_stack(retriever, pair, stack) for stack in pair.sites],
        }

    return patch_texts(retriever, (query, perturbed), document, tell)


def _describe_stack(retriever: Retriever, pair: PatchedPair, stack: str) -> dict[str, Any]:
    ids, sites, (by_token, by_head) = pair.tokens(stack), pair.sites[stack], pair.maps(stack)
    texts = ["" if i is None else token_strings(retriever.tokenizer, [i])[0] for i in ids]
    names = [f"{site.part} {site.layer + 1}".replace("_", " ") for site in sites]
    return {
        "name": stack,
        "tokens": ["".join(texts[place] for place in column) for column in pair.columns(stack)],
        "parts": names,
        "by_token": by_token.tolist(),
        "attentions": [n for n, site in zip(names, sites, strict=True) if site.heads > 1],
        "by_head": by_head.tolist(),
    }


def _shares(shares: Iterable[Share]) -> list[dict[str, Any]]:
    return [{"text": share.text, "value": share.value} for share in shares]


def describe_explanation(
    retriever: Retriever, explained: Explained, gold: Collection[str]
) -> dict[str, Any]:
    """Why a system ranks a document where it does; of a generative one, its search, too."""
    found = {
        "rank": explained.rank,
        "score": explained.score,
        "best": describe_hit(explained.best, gold) if explained.best else None,
        "hit": describe_hit(explained.hit, gold) if explained.hit else None,
        "reason": explained.reason,
    }
    return found if explained.path is None else found | _describe_path(retriever, explained.path)


def _describe_path(retriever: Retriever, path: SearchPath) -> dict[str, Any]:
    """A beam search step by step.

    Returns:
        "steps": of each its `depth`, whether the document was `alive` after it, the best hypothesis
        that leads to the document (`gold_token`, `gold_rank`, `gold_probability`), and what the
        beam `kept`. "lost": the step that lost the document, "replaced_by": the last place of the
        beam there. "generated": what the search ended with. Probabilities are those of whole
        hypotheses, by which a beam chooses.
    """

    def tell(hypothesis: Hypothesis) -> dict[str, Any]:
        text = retriever.text_of(hypothesis.tokens)
        return {"text": text, "probability": hypothesis.probability}

    steps = []
    for depth, step in enumerate(path.steps, start=1):
        gold = tell(step.best) if step.best else {"text": None, "probability": None}
        steps.append(
            {
                "depth": depth,
                "alive": step.alive,
                "gold_rank": step.rank,
                "gold_token": gold["text"],
                "gold_probability": gold["probability"],
                "kept": [tell(hypothesis) for hypothesis in step.kept],
            }
        )
    lost = path.lost_step
    replaced = (lost.limit or next(iter(lost.kept), None)) if lost else None
    return {
        "steps": steps,
        "lost": path.lost,
        "replaced_by": tell(replaced) if replaced else None,
        "generated": [_describe_generated(retriever, one) for one in path.generated],
    }


def _describe_generated(retriever: Retriever, one: Hypothesis) -> dict[str, Any]:
    return {
        "text": retriever.text_of(one.tokens),
        "log_probability": one.log_prob,
        "documents": _titles(retriever, one.documents),
        "count": one.n_documents,
    }


def describe_continuation(retriever: Retriever, found: Continuation) -> dict[str, Any]:
    """A token that may come next, and some of the documents that it leads to."""
    return {
        "token": found.token,
        "text": found.text,
        "probability": found.probability,
        "documents": found.n_documents,
        "allowed": found.allowed,
        "examples": _titles(retriever, found.documents),
    }


def _titles(retriever: Retriever, names: Iterable[str]) -> list[dict[str, str]]:
    return [{"id": name, "title": retriever.read(name)[0]} for name in names]
