"""What the explorer asks of a `Retriever` besides its verbs: near tokens and next tokens."""

from dataclasses import replace
from typing import Annotated, Any

from gr_mvdr.decoding.search_trace import Continuation
from gr_mvdr.options import Count, Rule, Size, checked, fits_type
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import TokenSearch
from gr_mvdr.tokenizers import token_strings
from models.retriever import Retriever, locked

_CONTEXT = 8  # tokens shown on either side of a nearest token
TokenIds = Annotated[Any, Rule("a list of token ids", lambda ids: fits_type(ids, list[int]))]


@locked
@checked
def nearest_tokens(retriever: Retriever, query: str, token: Count, k: Size = 20) -> Any:
    """Finds the k document tokens nearest to a query token, most similar first.

    Args:
        token: the place of the query token in `align(…).query_tokens`.

    Returns:
        A table with a row for each token: `id` and `title` of its document, the text `before`, the
        `token`, the text `after`, and the `similarity` (inner product) of the two tokens' vectors.
    """
    import pandas

    system, tokenizer = retriever.system, retriever.reader.tokenizer
    if not isinstance(index := system.searcher, TokenIndex):
        raise NotImplementedError(f"{retriever.label}: keeps no vectors of document tokens")
    ((_, encoded, _),) = system.encoded_queries(retriever.reader.queries([query]))
    if token >= len(encoded):
        raise ValueError(f"token={token}: must be ≥ 0 and < {len(encoded)}, the query's tokens")
    vector = (encoded.vectors if encoded.keys is None else encoded.keys)[token]
    tokens = TokenSearch(index.store)
    similarities, rows = tokens.search(vector[None], min(k, len(tokens.rows)), None)
    nearest = []
    for row, similarity in zip(rows[0].tolist(), similarities[0].tolist(), strict=True):
        name, before, own, after = index.store.context(row, _CONTEXT)
        before, after = (tokenizer.decode(ids).strip() for ids in (before, after))
        (text,) = token_strings(tokenizer, own)
        nearest.append((name, retriever.document(name)["title"], before, text, after, similarity))
    columns = ["id", "title", "before", "token", "after", "similarity"]
    return pandas.DataFrame(nearest, columns=columns)


@locked
@checked
def continuations(
    retriever: Retriever, query: str, prefix: TokenIds = (), k: Size = 20
) -> list[Continuation]:
    """Lists the tokens that a generative system may generate after a prefix, and the documents that
    they lead to.
    """
    if retriever.system.generates != "document":
        raise NotImplementedError(f"{retriever.label}: its search generates no identifiers")
    tokens = retriever.reader.queries([query])["tokens"][0]
    return [
        replace(one, text=retriever.text_of((one.token,)))
        for one in retriever.system.list_continuations(tokens, list(prefix), k)
    ]
