"""Which (query, document) pairs are worth a look: best, worst, random, and where systems part."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]
GROUPS = ("best", "worst", "random", "disagreement")


@dataclass(frozen=True)
class Candidate:
    """A (query id, document id) pair and what searches made of it.

    Attributes:
        pair: its ids.
        success: the document's reciprocal rank, 0 where it was not found; the mean of several
            systems; None where nothing is known.
        score: the document's score in that ranking, −inf where it was not found; breaks ties.
        difference: reciprocal rank in generative minus in multi-vector systems; None where one of
            the two is missing.
    """

    pair: Pair
    success: float | None
    score: float = float("-inf")
    difference: float | None = None


def choose_cases(candidates: Sequence[Candidate], each: int = 4, seed: int = 0) -> dict[Pair, str]:
    """Pairs and the group that each stands in, grouped in the order of `GROUPS`.

    No pair stands in two groups. Disagreements, the scarcest, choose first; then best and worst by
    reciprocal rank (ties by score, then by ids); random ones are drawn from the rest. A handful of
    pairs is shared out evenly.

    Args:
        candidates: all pairs.
        each: pairs of a group at most.
        seed: of the random ones.
    """
    each = min(each, -(-len(candidates) // 3))
    taken: dict[Pair, str] = {}

    def take(group: str, ordered: Iterable[Candidate]) -> None:
        fresh = [candidate.pair for candidate in ordered if candidate.pair not in taken]
        taken.update(dict.fromkeys(fresh[:each], group))

    apart = [candidate for candidate in candidates if candidate.difference]
    take("disagreement", sorted(apart, key=lambda c: (-abs(c.difference), c.pair)))
    known = [candidate for candidate in candidates if candidate.success is not None]
    ranked = sorted(known, key=lambda c: (-c.success, -c.score, c.pair))
    take("best", ranked)
    take("worst", reversed(ranked))
    shuffled = sorted(candidates, key=lambda c: c.pair)
    random.Random(seed).shuffle(shuffled)
    take("random", shuffled)
    return dict(sorted(taken.items(), key=lambda item: GROUPS.index(item[1])))
