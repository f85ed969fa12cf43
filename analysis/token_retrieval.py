"""Whose tokens does a query token retrieve? (XTR §5.1, Figure 4.)"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import COLOURS, GalleryEntry, page_figure, styled
from analysis.statistics import spread
from analysis.tables import Row
from analysis.tokens import find_special
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import TokenNeighbours

RANKS = (1, 10, 100)  # of the metrics
_SEARCHED = 8  # queries at once: every token of the index is compared with all of theirs
LABELS = {"gold": "from a relevant document", "lexical": "the query token itself"}
CAPTION = (
    "Every word of a query retrieves its nearest tokens among all tokens of all documents. Left: "
    "the probability that the token at a rank comes from a document that is relevant to the query; "
    "right: that it is the same token as the one of the query (XTR, Figure 4). High on the right "
    "and low on the left means that tokens are matched by their form, whatever their context."
)


class Found(NamedTuple):
    """What T query tokens retrieved at K ranks.

    Attributes:
        gold: (T, K) bool, from a relevant document.
        lexical: (T, K) bool, the same token as the query's.
        real: (T, K) bool, something was retrieved at all.
    """

    gold: Tensor
    lexical: Tensor
    real: Tensor


def hits(owners: Tensor, ids: Tensor, query_ids: Tensor, relevant: Tensor) -> Found:
    """Compares retrieved tokens with the query (XTR §5.1).

    Args:
        owners: (T, K) int64 document numbers, −1 where nothing was retrieved; ids: (T, K) int64.
        query_ids: (T,) int64, the tokens that retrieved. relevant: (R,) int64 document numbers.
    """
    real = owners >= 0
    return Found(torch.isin(owners, relevant), (ids == query_ids[:, None]) & real, real)


def by_rank(hit: Tensor, real: Tensor) -> Tensor:
    """(K,) fp64: of the tokens at a rank, the share that are hits; NaN without any.

    Args:
        hit, real: (T, K) bool.
    """
    return hit.sum(0).double() / real.sum(0)


@part("analysis")
class TokenRetrieval(Analysis):
    """Gold and lexical token retrieval by rank, over the words of test queries.

    All tokens of the index are looked at, whatever the system's own search would leave out. The
    query's special tokens (end, sentinels) retrieve nothing here.

    Args:
        queries: test queries at most, spread evenly over the first test split.
        neighbours: tokens retrieved, at most as many as the index has.
    """

    name, title = "token_retrieval", "Token retrieval"
    reading = (
        "The probability that the document token at rank k of a query token's neighbours is of a "
        "relevant document (gold), and that it is the same token (lexical)."
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return isinstance(getattr(subject.model, "searcher", None), TokenIndex)

    def __init__(self, subject: Subject, queries: int, neighbours: int = 100):
        self.model, self.data = subject.model, subject.data
        self.queries, self.neighbours = queries, neighbours

    def finish(self) -> Findings:
        """Metrics "gold@k" and "lexical@k", the probabilities at rank k itself."""
        parts = list(self._found())
        if not parts:
            return Findings()
        found = Found(*map(torch.cat, zip(*parts, strict=True)))
        size = int(found.real.any(0).sum())  # ranks at which anything was retrieved
        curves = {n: by_rank(getattr(found, n), found.real)[:size].tolist() for n in LABELS}
        rows = [{"rank": k + 1} | {n: curves[n][k] for n in LABELS} for k in range(size)]
        flat = {f"{n}@{k}": curves[n][k - 1] for n in LABELS for k in RANKS if k <= size}
        title = f"{self.data.collection.name}: tokens retrieved by {len(found.real):,} query words"
        entry = GalleryEntry("token_retrieval", "What query tokens retrieve", CAPTION)
        figures = [(retrieval_figure(rows, title), entry)]
        return Findings(named(self.name, flat), {"token_retrieval": rows}, figures)

    @torch.inference_mode()
    def _found(self) -> Iterator[Found]:
        data, index = self.data, self.model.searcher
        table = spread(data.test_queries(data.test_splits[0]), self.queries)
        grades = data.judgements(data.test_splits[0], table)
        special = torch.tensor(find_special(data))
        tokens = TokenNeighbours(index.store)  # of all documents, none pruned
        neighbours = min(self.neighbours, len(tokens.rows))
        encoded, known = self.model.encoded_queries(table), set(index.document_ids)
        for start in track(range(0, len(encoded), _SEARCHED), "retrieving tokens"):
            chosen = []
            for name, query in encoded[start : start + _SEARCHED]:
                judged = grades[name].items()
                relevant = [d for d, grade in judged if grade > 0 and d in known]
                words = query[~torch.isin(query.ids, special)]
                own = [name] if data.drop_identical and name in known else []
                if relevant and len(words):
                    chosen.append((words, index.numbers(relevant), index.numbers(own)))
            yield from _retrieved(tokens, chosen, neighbours)


def _retrieved(tokens: TokenNeighbours, chosen: list, neighbours: int) -> Iterator[Found]:
    """Of queries (words, relevant documents, documents that are no hits), searched together."""
    if not chosen:
        return
    vectors = [words.vectors if words.keys is None else words.keys for words, *_ in chosen]
    most = max(int(tokens.store.counts[own].sum()) for *_, own in chosen)
    searched = min(neighbours + most, len(tokens.rows))
    _, rows = tokens.search(torch.cat(vectors), searched, probes=None)
    for (words, relevant, own), mine in zip(chosen, rows.split([*map(len, vectors)]), strict=True):
        mine = _without(mine, torch.isin(tokens.store.owners(mine), own))[:, :neighbours]
        ids = tokens.store.ids(mine.flatten().clamp(min=0)).view_as(mine)
        yield hits(tokens.store.owners(mine), ids, words.ids, relevant)


def _without(rows: Tensor, gone: Tensor) -> Tensor:
    """(T, K) rows in their order, those that are gone (T, K) last and −1."""
    order = gone.int().argsort(dim=1, stable=True)
    return rows.masked_fill(gone, -1).gather(1, order)


@styled
def retrieval_figure(rows: list[Row], title: str) -> Figure:
    """Two panels over a logarithmic rank (XTR Figure 4), of the table `token_retrieval`."""
    figure = page_figure(title)
    ranks = [row["rank"] for row in rows]
    panels = zip(figure.subplots(1, 2), LABELS.items(), COLOURS, strict=False)
    for axes, (name, label), colour in panels:
        axes.plot(ranks, [row[name] for row in rows], color=colour)
        axes.set_xscale("log")
        ticks = [rank for rank in RANKS if rank <= len(rows)]
        axes.set_xticks(ticks, [str(rank) for rank in ticks])
        axes.set_ylim(0, 1)
        axes.grid()
        axes.set(xlabel="rank of the retrieved token", ylabel="probability", title=label)
    return figure
