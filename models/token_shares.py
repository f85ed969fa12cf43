"""What each query token adds to the scores that a multi-vector search finds (Eq. 1, xtr Eq. 4)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gr_mvdr.pooling import Grouped, merge_tokens
from gr_mvdr.relevance import Explanation, PairAlignment, divide, normaliser, similarity
from gr_mvdr.salience import keep_salient
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.index import SearchOptions, TokenIndex
from gr_mvdr.token_vectors import TokenVectors
from models.base import Share, query_shares
from models.candidates import CandidateEncoder


def align_vectors(
    documents: TokenVectors, queries: TokenVectors, scoring: Scoring
) -> PairAlignment:
    """S and A of B pairs of token vectors, salience included (Eq. 1)."""
    matrices = scoring.matrices(documents, queries)
    scores = scoring.divide(*matrices, queries)
    matrix, aligned = (part.view(len(part), scoring.heads, *part.shape[-2:]) for part in matrices)
    together = matrix.flatten(1, 2), aligned.flatten(1, 2)
    return PairAlignment(
        similarity=matrix,
        alignment=aligned,
        normaliser=normaliser(scoring.normaliser, *together, queries.mask),
        relevance=scores,
        score=scores,
        document_ids=documents.ids,
        document_mask=documents.mask,
        query_ids=queries.ids,
        query_mask=queries.mask,
    )


def explain_vectors(documents: Grouped, queries: Grouped, scoring: Scoring) -> Explanation:
    """The alignment of B pairs, and Ã before salience where a side has one.

    Of the tokens, where a side's are merged: A of a group is spread evenly over its tokens, with
    the same relevance, since a group's similarity is the mean of its tokens' (`merge_tokens`).
    """
    sides, groups = zip(documents, queries, strict=True)
    merged, pairwise = [merge_tokens(*side) for side in (documents, queries)], None
    pairs = align_vectors(*merged, scoring)
    if any(side.salience is not None for side in sides):
        pairwise = _spread(scoring.pairwise(*merged)[1].unsqueeze(1), *groups)
    if any(group is not None for group in groups):
        pairs = replace(
            pairs,
            similarity=similarity(*(side.by_head(scoring.heads).vectors for side in sides)),
            alignment=_spread(pairs.alignment, *groups),
            document_ids=sides[0].ids,
            document_mask=sides[0].mask,
            query_ids=sides[1].ids,
            query_mask=sides[1].mask,
        )
    return Explanation([pairs], pairwise=pairwise)


def _spread(alignment: Tensor, documents: Tensor | None, queries: Tensor | None) -> Tensor:
    """(B, H, M, N) of the tokens, from an alignment (B, H, K, L) of their groups."""
    if documents is not None:
        alignment = documents.mT.unsqueeze(1).to(alignment) @ alignment
    return alignment if queries is None else alignment @ queries.unsqueeze(1).to(alignment)


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
    return _as_shares(
        keep_salient(query, options.keep_query), divide(terms[places], z[places, None])
    )


def _as_shares(query: TokenVectors, added: Tensor) -> list[list[Share]]:
    """Of documents what each query token adds to their scores (C, N)."""
    tokens = query.ids.tolist()
    return [[Share((t,), v) for t, v in zip(tokens, row, strict=True)] for row in added.tolist()]
