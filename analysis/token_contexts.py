"""Retrieved tokens in their contexts: what the tokens of single queries find (XTR Tables 6, E).

`analysis.token_retrieval` keeps them in a run's `token_contexts.json`; its report shows them.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from analysis.tokens import readable
from gr_mvdr.files import check_file, read_json, reading
from gr_mvdr.token_index.store import TokenStore

FILE = "token_contexts"
RANKS = (1, 2, 5, 20, 100)  # whose tokens are kept
AROUND = 10  # tokens of a context, before and after


@dataclass(frozen=True)
class RetrievedToken:
    """A token that a query token retrieved, and the text around it.

    Attributes:
        rank: from 1. similarity: to the query token. relevant: whether its document is.
    """

    rank: int
    similarity: float
    document: str
    relevant: bool
    before: str
    token: str
    after: str


@dataclass(frozen=True)
class QueryToken:
    """A token of a query, and some of those that it retrieved.

    Attributes:
        gold: the share of all that it retrieved that is from relevant documents.
        lexical: the share that is the same token.
    """

    token: str
    gold: float
    lexical: float
    retrieved: list[RetrievedToken]


@dataclass(frozen=True)
class QueryContexts:
    """A query's text, and what its tokens retrieved."""

    text: str
    tokens: list[QueryToken]


@dataclass(frozen=True)
class ContextReader:
    """Reads the texts around token rows from an index, which holds the tokens of its documents.

    Attributes:
        special: token ids that are no text.
    """

    store: TokenStore
    tokenizer: PreTrainedTokenizerBase
    special: Set[int]

    def query(
        self, ids: Tensor, rows: Tensor, similarities: Tensor, gold: Tensor, lexical: Tensor
    ) -> QueryContexts:
        """What the tokens of a query retrieved.

        Args:
            ids: (T,) int64 of the query's tokens. rows: (T, K) int64 token rows of the index, best
                first, −1 where nothing was retrieved. similarities: (T, K) fp32.
            gold, lexical: (T, K) bool.
        """
        tokens, real = [], (rows >= 0).sum(1).tolist()
        for n, token in enumerate(ids.tolist()):
            ranks = [rank for rank in RANKS if rank <= real[n]]
            places = [rank - 1 for rank in ranks]
            found = (part[n, places].tolist() for part in (rows, similarities, gold))
            shares = (int(hit[n].sum()) / max(1, real[n]) for hit in (gold, lexical))
            retrieved = [self._token(*one) for one in zip(ranks, *found, strict=True)]
            tokens.append(QueryToken(readable(self.tokenizer, [token]), *shares, retrieved))
        return QueryContexts(readable(self.tokenizer, ids.tolist()), tokens)

    def _token(self, rank: int, row: int, similarity: float, relevant: bool) -> RetrievedToken:
        document, before, token, after = self.store.context(row, AROUND)
        return RetrievedToken(
            rank=rank,
            similarity=similarity,
            document=document,
            relevant=relevant,
            before=self._text(before),
            token=readable(self.tokenizer, token),
            after=self._text(after),
        )

    def _text(self, ids: Sequence[int]) -> str:
        return readable(self.tokenizer, [token for token in ids if token not in self.special])


def read_token_contexts(run: Path) -> dict[str, QueryContexts]:
    """What was kept of a run, by query id; nothing where it was not asked.

    Raises:
        ValueError: the file is broken.
    """
    path = Path(run) / f"{FILE}.json"
    if not path.exists():
        return {}
    with reading(f"{path}: must hold what the tokens of queries retrieved"):
        found = read_json(check_file(path, run))
        return {query: _read_query(kept) for query, kept in found.items()}


def _read_query(kept: dict[str, Any]) -> QueryContexts:
    tokens = []
    for token in kept["tokens"]:
        retrieved = [RetrievedToken(**one) for one in token["retrieved"]]
        tokens.append(QueryToken(**token | {"retrieved": retrieved}))
        for number in (tokens[-1].gold, tokens[-1].lexical, *(r.similarity for r in retrieved)):
            if not isfinite(number):
                raise ValueError(f"{number}: must be finite")
    return QueryContexts(str(kept["text"]), tokens)
