"""The tokens of a collection that are nearest to a query token."""

from collections.abc import Callable
from typing import Any

from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import token_strings
from models.results import NearToken

_CONTEXT = 8  # tokens on either side


def find_nearest(
    index: TokenIndex,
    query: TokenVectors,
    token: int,
    k: int,
    tokenizer: Any,
    title_of: Callable[[str], str],
) -> list[NearToken]:
    """The k tokens nearest to a query token, most similar first; all tokens are looked at.

    Args:
        query: (N, …) of one query; token: its place in it; k: fewer where the index has fewer.
        title_of: a document's title, by its id.

    Raises:
        ValueError: the query has no such token, or k is below 1.
    """
    if not 0 <= token < len(query):
        raise ValueError(f"token={token}: must be ≥ 0 and < {len(query)}, the query's tokens")
    if k < 1:
        raise ValueError(f"k={k}: must be ≥ 1")
    store, tokens = index.store, index.neighbours
    vector = (query.vectors if query.keys is None else query.keys)[token]
    similarities, rows = tokens.search(vector[None], min(k, len(tokens.rows)), None)
    found = []
    for row, value in zip(rows[0].tolist(), similarities[0].tolist(), strict=True):
        name, before, own, after = store.context(row, _CONTEXT)
        before, after = (tokenizer.decode(ids).strip() for ids in (before, after))
        (token,) = token_strings(tokenizer, own)
        found.append(NearToken(name, title_of(name), before, token, after, value))
    return found
