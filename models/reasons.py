"""Why a document has its rank, in a sentence."""

from collections.abc import Callable

from models.results import Explained, Hit

_TOKENS = 3  # that a sentence names


def describe_reason(found: Explained, depth: int, text_of: Callable[[tuple[int, ...]], str]) -> str:
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


def _path(found: Explained, text_of: Callable[[tuple[int, ...]], str]) -> str:
    """Where a beam search lost the document."""
    return ""


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
    for text, value in hit.shares:
        total[text] = total.get(text, 0.0) + value
    return total
