"""Whose tokens does a query token retrieve, and where? (XTR §5.1, Figures 2, 4, Tables 6, E.)"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import COLOURS, GalleryEntry, legend_below, page_figure, styled
from analysis.runs.run_folder import read_queries
from analysis.statistics import spread
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.tokens import find_special, readable
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_vectors import TokenVectors

FILE = "token_contexts"
KEPT_RANKS = (1, 2, 5, 20, 100)  # whose tokens are kept in context
AROUND = 10  # tokens of a context, before and after
RANKS = (1, 10, 100)  # of the metrics
BINS = 40  # of the histogram
_SEARCHED = 8  # queries at once: every token of the index is compared with all their tokens
KINDS = {"gold": "from a relevant document", "lexical": "the query token itself"}
CAPTION = (
    "Each word of a query retrieves its nearest tokens among all tokens of all documents. Left: "
    "the probability that the token at a rank comes from a relevant document, and that it is the "
    "same token as the query's (XTR, Figure 4). A high lexical and a low gold curve mean that "
    "tokens are matched by their form, whatever their context. Right: the similarities of tokens "
    "from relevant documents and from others, each as a density (XTR, Figure 2). Where both lie "
    "together at the right end, a token's score says little about relevance."
)


class Retrieved(NamedTuple):
    """What T query tokens retrieved at K ranks.

    Attributes:
        rows: (T, K) int64 token rows of the index, best first, −1 where nothing was retrieved.
        similarities: (T, K) fp32.
        gold: (T, K) bool, from a relevant document.
        lexical: (T, K) bool, the same token as the query's.
    """

    rows: Tensor
    similarities: Tensor
    gold: Tensor
    lexical: Tensor


class Query(NamedTuple):
    """A query's words, and the numbers of its relevant documents and of those to ignore."""

    id: str
    words: TokenVectors
    relevant: Tensor
    ignored: Tensor


def retrieve(tokens: NearestTokens, queries: Sequence[Query], neighbours: int) -> list[Retrieved]:
    """The nearest document tokens of all words of some queries, searched together."""
    vectors = [q.words.vectors if q.words.keys is None else q.words.keys for q in queries]
    ignored = max(int(tokens.store.counts[query.ignored].sum()) for query in queries)
    searched = min(neighbours + ignored, len(tokens.rows))
    similarities, rows = tokens.search(torch.cat(vectors), searched, probes=None)
    sizes, retrieved = [*map(len, vectors)], []
    for query, near, own in zip(queries, similarities.split(sizes), rows.split(sizes), strict=True):
        gone = torch.isin(tokens.store.owners(own), query.ignored)
        order = gone.int().argsort(dim=1, stable=True)[:, :neighbours]  # ignored documents last
        own, near = own.masked_fill(gone, -1).gather(1, order), near.gather(1, order)
        ids = tokens.store.ids(own.flatten().clamp(min=0)).view_as(own)
        gold = torch.isin(tokens.store.owners(own), query.relevant) & (own >= 0)
        lexical = (ids == query.words.ids[:, None]) & (own >= 0)
        retrieved.append(Retrieved(own, near, gold, lexical))
    return retrieved


def read_token_contexts(run: Path) -> dict[str, dict[str, Any]]:
    """What was kept of a run, by query id (`TokenRetrieval`); {} where it was not measured.

    Raises:
        ValueError: the file is broken.
    """
    return read_queries(run, FILE, "what the tokens of queries retrieved", _check)


def _check(kept: dict[str, Any]) -> dict[str, Any]:
    for token in kept["tokens"]:
        similarities = (one["similarity"] for one in token["retrieved"])
        if not all(map(isfinite, (token["gold"], token["lexical"], *similarities))):
            raise ValueError("numbers must be finite")
    return kept


@part("analysis")
class TokenRetrieval(Analysis):
    """Gold and lexical token retrieval by rank, over the words of test queries.

    All tokens of the index are searched, whatever the system's own search would leave out. The
    query's special tokens (end, sentinels) retrieve nothing here.

    Args:
        queries: test queries at most, spread evenly over the first test split.
        neighbours: tokens retrieved, at most as many as the index has.
        contexts: how many of the first queries are kept with the contexts of what they retrieved.
    """

    name, title = "token_retrieval", "Token retrieval"
    reading = (
        "The probability that the document token at rank k of a query token's neighbours is of a "
        "relevant document (gold), and that it is the same token (lexical)."
    )
    metrics = (
        Metric("gold@#", "The probability that the token at this rank is of a relevant document."),
        Metric(
            "lexical@#", "The probability that the token at this rank is the query's own token."
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return isinstance(getattr(subject.model, "searcher", None), TokenIndex)

    def __init__(
        self, subject: Subject, queries: Count, neighbours: Size = 100, contexts: Count = 5
    ):
        self.model, self.data = subject.model, subject.data
        self.queries, self.neighbours, self.contexts = queries, neighbours, contexts

    @torch.inference_mode()
    def finish(self) -> Findings:
        """Metrics "gold@k" and "lexical@k", the probabilities at rank k itself."""
        tokens = NearestTokens(self.model.searcher.store)  # of all documents, none pruned
        neighbours, queries = min(self.neighbours, len(tokens.rows)), self._queries()
        parts, contexts = [], {}
        for start in track(range(0, len(queries), _SEARCHED), "retrieving tokens"):
            group = queries[start : start + _SEARCHED]
            for query, retrieved in zip(group, retrieve(tokens, group, neighbours), strict=True):
                parts.append(retrieved)
                if len(contexts) < self.contexts:
                    contexts[query.id] = self._contexts(query.words.ids.tolist(), retrieved)
        if not parts:
            return Findings()
        everything = Retrieved(*map(torch.cat, zip(*parts, strict=True)))
        curves, densities = by_rank(everything), densities_of(everything)
        flat = {
            f"{kind}@{row['rank']}": row[kind]
            for row in curves
            for kind in KINDS
            if row["rank"] in RANKS
        }
        heading = "What query tokens retrieve"
        title = (
            f"{self.data.collection.name}: tokens retrieved by {len(everything.rows):,} query words"
        )
        entry = GalleryEntry("token_retrieval", heading, CAPTION)
        tables = {"token_retrieval": curves, "token_similarity": densities}
        figures = [(retrieval_figure(curves, densities, title), entry)]
        return Findings(named(self.name, flat), tables, figures, {FILE: contexts})

    def _queries(self) -> list[Query]:
        """Queries that have a word and, in the index, a relevant document."""
        data, index = self.data, self.model.searcher
        table = spread(data.test_queries(data.test_splits[0]), self.queries)
        grades = data.judgements(data.test_splits[0], table)
        special, known = torch.tensor(find_special(data)), set(index.store.document_ids)
        queries = []
        for name, encoded in self.model.encoded_queries(table) if len(table) else ():
            relevant = [d for d, grade in grades[name].items() if grade > 0 and d in known]
            words = encoded[~torch.isin(encoded.ids, special)]
            ignored = [name] if data.drop_identical and name in known else []
            if relevant and len(words):
                queries.append(Query(name, words, index.numbers(relevant), index.numbers(ignored)))
        return queries

    def _contexts(self, ids: Sequence[int], retrieved: Retrieved) -> dict[str, Any]:
        """A query's text, and for each of its tokens its shares and what it retrieved, in context.

        "gold" and "lexical": the shares of all that the token retrieved that are from relevant
        documents, and the same token.
        """
        tokenizer, special = self.data.tokenizer, {*find_special(self.data)}

        def text(tokens: Sequence[int]) -> str:
            return readable(tokenizer, [token for token in tokens if token not in special])

        def context(rank: int, row: int, similarity: float, relevant: bool) -> dict[str, Any]:
            document, before, own, after = self.model.searcher.store.context(row, AROUND)
            where = {"rank": rank, "similarity": similarity, "document": document}
            token = readable(tokenizer, own)
            return where | {
                "relevant": relevant,
                "before": text(before),
                "token": token,
                "after": text(after),
            }

        tokens = []
        for token, *parts in zip(ids, *retrieved, strict=True):
            rows, similarities, gold, lexical = (part[parts[0] >= 0].tolist() for part in parts)
            shares = {"gold": np.mean(gold or [0]), "lexical": np.mean(lexical or [0])}
            ranked = enumerate(zip(rows, similarities, gold, strict=True), start=1)
            found = [context(rank, *one) for rank, one in ranked if rank in KEPT_RANKS]
            tokens.append({"token": readable(tokenizer, [token])} | shares | {"retrieved": found})
        return {"text": readable(tokenizer, ids), "tokens": tokens}


def by_rank(retrieved: Retrieved) -> list[Row]:
    """For each rank the shares of its tokens that are gold and lexical."""
    real = (retrieved.rows >= 0).sum(0)
    gold, lexical = (hit.sum(0).double() / real for hit in (retrieved.gold, retrieved.lexical))
    rows = zip(gold[real > 0].tolist(), lexical[real > 0].tolist(), strict=True)
    return [{"rank": k, "gold": g, "lexical": w} for k, (g, w) in enumerate(rows, start=1)]


def densities_of(retrieved: Retrieved) -> list[Row]:
    """Rows of a similarity (a bin's centre) and the densities "gold" and "other" (XTR Figure 2).

    A kind of token that was never retrieved has no density (None).
    """
    real = retrieved.rows >= 0
    edges = np.histogram_bin_edges(retrieved.similarities[real].numpy(), BINS)
    rows = [{"similarity": float(centre)} for centre in (edges[1:] + edges[:-1]) / 2]
    for kind, chosen in (("gold", retrieved.gold), ("other", real & ~retrieved.gold)):
        values = retrieved.similarities[chosen].numpy()
        heights = np.histogram(values, edges, density=True)[0] if len(values) else [None] * BINS
        for row, height in zip(rows, heights, strict=True):
            row[kind] = height
    return rows


@styled
def retrieval_figure(curves: list[Row], densities: list[Row], title: str) -> Figure:
    """Probabilities over a logarithmic rank (XTR Figure 4), and similarities (XTR Figure 2)."""
    figure = page_figure(title)
    left, right = figure.subplots(1, 2)
    table = DataFrame(curves).set_index("rank").rename(columns=KINDS)
    table.plot(ax=left, logx=True, ylim=(0, 1), color=COLOURS, style=["-", "--"])
    left.set(xlabel="rank of the retrieved token", ylabel="probability")
    table = DataFrame(densities, dtype=float).set_index("similarity").fillna(0)
    table.columns = [KINDS["gold"], "from another document"]
    table.plot(ax=right, drawstyle="steps-mid", color=[COLOURS[0], COLOURS[2]], style=["-", "--"])
    right.set(xlabel="similarity to the query token", ylabel="density", ylim=(0, None))
    for axes in (left, right):
        axes.grid()
    legend_below(figure, 3)
    return figure
