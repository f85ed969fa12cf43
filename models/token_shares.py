"""What each query token adds to the scores that a multi-vector search finds (Eq. 1, xtr Eq. 4)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gr_mvdr.relevance import PairAlignment, divide, normaliser
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.index import SearchOptions, TokenIndex
from gr_mvdr.token_vectors import TokenVectors
from models.base import Share, query_shares
from models.candidates import CandidateEncoder


def align_vectors(
    documents: TokenVectors, queries: TokenVectors, scoring: Scoring
) -> PairAlignment:
    """S and A of B pairs of token vectors, salience included, H = 1 (Eq. 1)."""
    matrix, aligned = scoring.matrices(documents, queries)
    scores = scoring.divide(matrix, aligned, queries)
    return PairAlignment(
        similarity=matrix.unsqueeze(1),
        alignment=aligned.unsqueeze(1),
        normaliser=normaliser(scoring.normaliser, matrix, aligned, queries.mask),
        relevance=scores,
        score=scores,
        document_ids=documents.ids,
        document_mask=documents.mask,
        query_ids=queries.ids,
        query_mask=queries.mask,
    )


def find_shares(
    searcher: TokenIndex | CandidateEncoder,
    query: TokenVectors,
    documents: Sequence[str],
    scoring: Scoring,
    options: SearchOptions | None = None,
) -> dict[str, list[Share]]:
    """What each token of a query adds to the scores of documents, from their stored vectors.

    Args:
        query: (N, …) without padding; documents: their ids.
        options: of the search that found them; None = they were scored with all their tokens.
    """
    if not documents:
        return {}
    numbers = searcher.numbers(documents)
    if options is not None and options.mode == "impute":
        found = _imputed_shares(searcher, query, numbers, options)
    elif options is not None and (options.mode, options.refine) == ("fde", 0):
        terms = searcher.estimated_terms(query, options)[numbers]
        found = _as_shares(query, terms)
    else:
        repeated = query[None][torch.zeros_like(numbers)]
        found = query_shares(align_vectors(searcher.vectors(numbers), repeated, scoring))
    return dict(zip(documents, found, strict=True))


def _imputed_shares(
    index: TokenIndex, query: TokenVectors, documents: Tensor, options: SearchOptions
) -> list[list[Share]]:
    found, terms, z = index.imputed_terms(query, options)
    places = torch.searchsorted(found, documents)
    return _as_shares(options.salient(query), divide(terms[places], z[places, None]))


def _as_shares(query: TokenVectors, added: Tensor) -> list[list[Share]]:
    """Of documents what each query token adds to their scores (C, N)."""
    tokens = query.ids.tolist()
    return [[Share((t,), v) for t, v in zip(tokens, row, strict=True)] for row in added.tolist()]
