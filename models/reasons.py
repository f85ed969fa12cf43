"""Why a document has its rank: the steps of a beam search in texts, and all in a sentence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gr_mvdr.decoding.search_trace import Hypothesis, SearchPath
from models.results import Explained, GeneratedText, Hit, TextStep

TextOf = Callable[[tuple[int, ...]], str]  # token ids as a text

_TOKENS = 3  # that a sentence names


def add_path(found: Explained, path: SearchPath, text_of: TextOf, ids: Sequence[str]) -> Explained:
    """The explanation with its search, in token ids and in texts; `ids` of documents by number."""
    steps, generated = _steps(path, text_of), _generated(path, text_of, ids)
    return replace(found, path=path, steps=steps, generated=generated)


def _steps(path: SearchPath, text_of: TextOf) -> tuple[TextStep, ...]:
    steps = []
    for number, step in enumerate(path.steps, start=1):
        best, kept = step.best, step.kept[0] if step.kept else None
        steps.append(
            TextStep(
                step=number,
                alive=step.alive,
                best=text_of(best.tokens) if best else "",
                probability=_probability(best),
                rank=step.rank,
                kept=text_of(kept.tokens) if kept else "",
                kept_probability=_probability(kept),
                limit_probability=_probability(step.limit),
            )
        )
    return tuple(steps)


def _generated(path: SearchPath, text_of: TextOf, ids: Sequence[str]) -> tuple[GeneratedText, ...]:
    return tuple(
        GeneratedText(
            text_of(one.tokens), one.log_prob, tuple(ids[n] for n in one.documents), one.n_documents
        )
        for one in path.generated
    )


def describe_reason(found: Explained, depth: int, text_of: TextOf) -> str:
    """What an `Explained` says, for a person.

    Args:
        found: with all but its reason.
        depth: documents among which its rank was looked for.
        text_of: token ids as a text.
    """
    return " ".join(filter(None, [_rank(found, depth), _path(found, text_of), _shares(found)]))


def _rank(found: Explained, depth: int) -> str:
    if found.rank == 1:
        return f"{found.id} is the first document, with {found.score:.4g}."
    place = f"not among the first {depth}" if found.rank is None else f"number {found.rank}"
    score = "" if found.score is None else f", with {found.score:.4g}"
    best = "" if found.best is None else f"; the first, {found.best.id}, has {found.best.score:.4g}"
    return f"{found.id} is {place}{score}{best}."


def _path(found: Explained, text_of: TextOf) -> str:
    """Where a beam search lost the document, and to what."""
    if found.path is None or found.path.lost is None:
        return ""
    step, number = found.path.lost_step, found.path.lost
    if step.best is None:
        return f"At step {number} no hypothesis of its own was left to go on."
    lost = f"{text_of(step.best.tokens)!r} (p = {_probability(step.best):.3g}, rank {step.rank})"
    said = f"Its best beginning left the beam at step {number}: {lost}"
    if not step.kept:
        return f"{said}."
    last = step.limit or step.kept[-1]
    return (
        f"{said}; the beam went on with {text_of(step.kept[0].tokens)!r} "
        f"(p = {_probability(step.kept[0]):.3g}) down to {text_of(last.tokens)!r} "
        f"(p = {_probability(last):.3g})."
    )


def _probability(hypothesis: Hypothesis | None) -> float | None:
    """p(tokens | query) of a whole hypothesis."""
    return math.exp(hypothesis.log_prob) if hypothesis else None


def _shares(found: Explained) -> str:
    """The parts that make the largest difference to the first document."""
    if found.rank == 1 or not (found.hit and found.best):
        return ""
    own, other = _by_text(found.hit), _by_text(found.best)
    lost = {text: other.get(text, 0.0) - own.get(text, 0.0) for text in own | other}
    named = sorted(filter(lambda text: lost[text] > 0, lost), key=lost.__getitem__)[::-1][:_TOKENS]
    if not named:
        return ""
    parts = (
        f"{text!r} ({own.get(text, 0):.3g} against {other.get(text, 0):.3g})" for text in named
    )
    return f"It loses most by {', '.join(parts)}."


def _by_text(hit: Hit) -> dict[str, float]:
    total: dict[str, float] = {}
    for share in hit.shares:
        total[share.text] = total.get(share.text, 0.0) + share.value
    return total
