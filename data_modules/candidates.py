"""Documents to rerank that a file names."""

import math
from collections.abc import Sequence
from pathlib import Path

from data_modules.formats.named_pairs import RANKING, RUN, read_pairs
from gr_mvdr.evaluation.ranking import Ranking


def read_candidates(
    file: Path, query_ids: Sequence[str], document_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Query id → the documents of the corpus that the file names for it, as `Ranking` orders them.

    Args:
        file: a TREC run, or what `read_pairs` reads beside it.
        query_ids: of the queries that are reranked; document_ids: of the corpus.

    Returns:
        The queries that have a candidate.

    Raises:
        ValueError: a line breaks the format.
    """
    wanted, known = set(query_ids), set(document_ids)
    found: dict[str, dict[str, float]] = {}
    unknown = 0
    for pair in read_pairs(file, RUN, RANKING):
        if pair.query not in wanted:
            continue
        if pair.document in known:
            scores = found.setdefault(pair.query, {})
            # Without scores the file's order counts.
            scores.setdefault(pair.document, -len(scores) if math.isnan(pair.score) else pair.score)
        else:
            unknown += 1
    if unknown:
        print(f"{file}: {unknown:,} candidates are not in the collection and are left out")
    ranking = Ranking(found)
    return {query: ranking.documents(query) for query in found}
