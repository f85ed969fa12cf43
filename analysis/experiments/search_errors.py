"""Beam search against exhaustive scoring: is the model wrong, or was its answer not found?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gr_mvdr.evaluation.ranking import Ranking

DEPTHS = (1, 10)


@dataclass(frozen=True)
class SearchErrors:
    """One query's relevant documents, ranked by the search and by scoring every document.

    Attributes:
        beam: the rank (from 1) of each relevant document in the search's result, None if missing.
        exhaustive: its rank among all documents; None as a whole where these cannot be scored.
        difference: the largest difference of the two scores of a document that was found; both
            score the same identifier, so that anything but rounding is a fault.
    """

    beam: list[int | None]
    exhaustive: list[int | None] | None
    difference: float | None

    def at(self, k: int) -> dict[str, float]:
        """Shares of the relevant documents, such as "search_error@10".

        With b and e for "in the first k of the search" and "… of all documents": recall b, model
        error ¬e, search error e ∧ ¬b, luck b ∧ ¬e (a better competitor was pruned). Hence recall
        = 1 − model error − search error + luck.
        """
        beam = _within(self.beam, k)
        shares = {"recall": beam}
        if self.exhaustive is not None:
            exhaustive = _within(self.exhaustive, k)
            shares["model_error"] = ~exhaustive
            shares["search_error"] = exhaustive & ~beam
            shares["luck"] = beam & ~exhaustive
        return {f"{name}@{k}": float(share.mean()) for name, share in shares.items()}


def _within(ranks: Sequence[int | None], k: int) -> np.ndarray:
    return np.array([rank is not None and rank <= k for rank in ranks])


def search_errors(
    relevant: Sequence[int | None],
    found: dict[int, float],
    scores: np.ndarray | None,
    document_ids: Sequence[str],
) -> SearchErrors:
    """Ranks the relevant documents of a query in both ways.

    Args:
        relevant: document numbers; None for one that the collection lacks.
        found: document number → score, the search's result.
        scores: (D,) of all documents, −inf for those without an identifier; None where they cannot
            be had.
        document_ids: of all D documents; they order equal scores, as in `Ranking`.
    """
    ranking = Ranking({"": {document_ids[number]: score for number, score in found.items()}})
    place = {document: rank for rank, document in enumerate(ranking.documents(""), start=1)}
    beam = [None if number is None else place.get(document_ids[number]) for number in relevant]
    if scores is None:
        return SearchErrors(beam, None, None)
    exhaustive = [
        None if number is None else _rank(scores, number, document_ids) for number in relevant
    ]
    differences = [abs(score - float(scores[number])) for number, score in found.items()]
    return SearchErrors(beam, exhaustive, max(differences, default=0.0))


def _rank(scores: np.ndarray, number: int, document_ids: Sequence[str]) -> int | None:
    if scores[number] == -np.inf:
        return None
    equal = np.flatnonzero(scores == scores[number])
    before = sum(document_ids[other] > document_ids[number] for other in equal.tolist())
    return 1 + int((scores > scores[number]).sum()) + before
