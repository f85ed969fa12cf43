"""Documents to rerank that a file names."""

import math
from collections.abc import Sequence
from pathlib import Path

from data_modules.formats.named_pairs import RANKING, RUN, read_pairs


def read_candidates(
    file: Path, query_ids: Sequence[str], document_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Query id → the documents that the file names for it, best first.

    Args:
        file: a TREC run, or what `read_pairs` reads beside it.
        query_ids: of the queries that are reranked; document_ids: of the corpus.

    Raises:
        ValueError: a line breaks the format, or a query has no candidate.
    """
    wanted, known = set(query_ids), set(document_ids)
    found: dict[str, dict[str, float]] = {query: {} for query in query_ids}
    unknown = 0
    for pair in read_pairs(file, RUN, RANKING):
        if pair.query in wanted:
            unknown += pair.document not in known
            # Without scores the file's order stands.
            score = -len(found[pair.query]) if math.isnan(pair.score) else pair.score
            found[pair.query].setdefault(pair.document, score)
    if unknown:
        print(f"{file}: {unknown:,} candidates are not in the collection and are left out")
    if empty := [query for query, documents in found.items() if not documents]:
        raise ValueError(
            f"data.candidates_run={file}: {len(empty):,} of {len(found):,} queries have no "
            f"candidate, the first is {empty[0]!r}"
        )
    return {
        query: [d for d in sorted(scores, key=lambda d: -scores[d]) if d in known]
        for query, scores in found.items()
    }
