"""Which document tokens does a query token retrieve? (XTR §5.1, Figures 2, 4, Tables 6, E.)"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import COLOURS, GalleryEntry, legend_below, page_figure, styled
from analysis.statistics import spread
from analysis.tables.metric_names import Metric
from analysis.tokens import find_special
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import readable

FILE = "token_contexts"
KEPT_RANKS = (1, 2, 5, 20, 100)  # ranks whose tokens are kept with their context
AROUND = 10  # tokens of context before and after
RANKS = (1, 10, 100)  # ranks of the metrics
BINS = 40  # bins of the histogram
_SEARCHED = 8  # queries per batch: all their tokens are compared with every token of the index
KINDS = {"gold": "from a relevant document", "lexical": "the query token itself"}


class Retrieved(NamedTuple):
    """The document tokens that T query tokens retrieved at K ranks.

    Attributes:
        rows: (T, K) int64 token rows of the index, best first, −1 if nothing was retrieved.
        similarities: (T, K) fp32.
        gold: (T, K) bool, the token is from a relevant document.
        lexical: (T, K) bool, the token equals the query token.
    """

    rows: Tensor
    similarities: Tensor
    gold: Tensor
    lexical: Tensor


class Query(NamedTuple):
    """A query's words, and the numbers of its relevant and its ignored documents."""

    id: str
    words: TokenVectors
    relevant: Tensor
    ignored: Tensor


def retrieve(tokens: NearestTokens, queries: Sequence[Query], neighbours: int) -> list[Retrieved]:
    """Retrieves the nearest document tokens of all words of some queries in one search."""
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


@part("analysis")
class TokenRetrieval(Analysis):
    """Gold and lexical token retrieval by rank, over the words of test queries.

    All tokens of the index are searched, even if the system's own search would skip some. The
    query's special tokens (end, sentinels) are not searched with.

    Args:
        queries: the maximum number of test queries, evenly spread over the first test split.
        neighbours: tokens retrieved for each word, at most all tokens of the index.
        contexts: for how many of the first queries the retrieved tokens are kept in context.
    """

    name, title = "token_retrieval", "Token retrieval"
    reading = "What each word of a query retrieves from all tokens of all documents, by rank."
    metrics = (
        Metric("gold@#", "The probability that the token at this rank is of a relevant document."),
        Metric(
            "lexical@#", "The probability that the token at this rank is the query's own token."
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return isinstance(subject.model.searcher, TokenIndex)

    def __init__(
        self, subject: Subject, queries: Count, neighbours: Size = 100, contexts: Count = 5
    ):
        self.model, self.data = subject.model, subject.data
        self.queries, self.neighbours, self.contexts = queries, neighbours, contexts

    @torch.inference_mode()
    def finish(self) -> Findings:
        """Returns metrics "gold@k" and "lexical@k", the probabilities at rank k itself."""
        tokens = NearestTokens(self.model.searcher.store)  # all tokens, none pruned
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
        table = pandas.concat(map(tabulate, parts))
        curves, densities = table.groupby("rank")[[*KINDS]].mean(), densities_of(table)
        ranks = curves.index.intersection(RANKS)
        flat = {f"{kind}@{rank}": curves[kind][rank] for kind in KINDS for rank in ranks}
        words = sum(len(part.rows) for part in parts)
        title = f"{self.data.collection.name}: tokens retrieved by {words:,} query words"
        tables = {
            "token_retrieval": curves.reset_index().to_dict("records"),
            "token_similarity": densities.reset_index().to_dict("records"),
        }
        entry = GalleryEntry("token_retrieval", "What query tokens retrieve", CAPTION)
        figures = [(retrieval_figure(curves, densities, title), entry)]
        return Findings(named(self.name, flat), tables, figures, {FILE: contexts})

    def _queries(self) -> list[Query]:
        """Returns the queries with at least one word and one relevant document in the index."""
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
        """Returns a query's text and, for each token, shares and what it retrieved, in context.

        "gold" and "lexical" are the shares of the retrieved tokens that are from a relevant
        document, and that equal the query token.
        """
        tokenizer, special = self.data.tokenizer, {*find_special(self.data)}

        def text(tokens: Sequence[int]) -> str:
            return readable(tokenizer, [token for token in tokens if token not in special])

        def context(rank: int, row: int, similarity: float, relevant: bool) -> dict[str, Any]:
            document, before, own, after = self.model.searcher.store.context(row, AROUND)
            found = {"rank": rank, "similarity": similarity, "document": document}
            found |= {"relevant": relevant, "before": text(before)}
            return found | {"token": readable(tokenizer, own), "after": text(after)}

        tokens = []
        for token, *parts in zip(ids, *retrieved, strict=True):
            rows, similarities, gold, lexical = (part[parts[0] >= 0].tolist() for part in parts)
            shares = {"gold": np.mean(gold or [0]), "lexical": np.mean(lexical or [0])}
            ranked = enumerate(zip(rows, similarities, gold, strict=True), start=1)
            found = [context(rank, *one) for rank, one in ranked if rank in KEPT_RANKS]
            tokens.append({"token": readable(tokenizer, [token])} | shares | {"retrieved": found})
        return {"text": readable(tokenizer, ids), "tokens": tokens}


def tabulate(retrieved: Retrieved) -> DataFrame:
    """Tabulates a row for each retrieved token: its rank, from 1, and the values of `Retrieved`."""
    real = retrieved.rows >= 0
    columns = retrieved._asdict() | {"rank": torch.arange(1, real.shape[1] + 1).expand_as(real)}
    return DataFrame({name: column[real].numpy() for name, column in columns.items()})


def densities_of(table: DataFrame) -> DataFrame:
    """Computes the densities "gold" and "other" at each bin's central similarity (XTR Figure 2).

    The density is NaN for a kind of token that was never retrieved.
    """
    edges = np.histogram_bin_edges(table["similarities"], BINS)
    found = DataFrame({"similarity": (edges[1:] + edges[:-1]) / 2}).set_index("similarity")
    for kind, chosen in (("gold", table["gold"]), ("other", ~table["gold"])):
        if chosen.any():
            found[kind] = np.histogram(table["similarities"][chosen], edges, density=True)[0]
    return found.reindex(columns=["gold", "other"])


CAPTION = (
    "Left (XTR, Figure 4): where many tokens are the query's own and few are from a relevant "
    "document, tokens are matched by their form, whatever their context. Right (XTR, Figure 2): "
    "the similarities of tokens from relevant documents and from others, each as a density. Where "
    "both lie together at the right end, a token's score says little about relevance."
)


@styled
def retrieval_figure(curves: DataFrame, densities: DataFrame, title: str) -> Figure:
    """Plots probabilities by rank (XTR Figure 4), and densities of similarities (XTR Figure 2)."""
    figure = page_figure(title)
    left, right = figure.subplots(1, 2)
    style = ["-", "--"]
    curves.rename(columns=KINDS).plot(ax=left, logx=True, ylim=(0, 1), color=COLOURS, style=style)
    left.set(xlabel="rank of the retrieved token", ylabel="probability")
    densities = densities.fillna(0).set_axis([KINDS["gold"], "from another document"], axis=1)
    colours = [COLOURS[0], COLOURS[2]]
    densities.plot(ax=right, drawstyle="steps-mid", color=colours, style=style)
    right.set(xlabel="similarity to the query token", ylabel="density", ylim=(0, None))
    for axes in (left, right):
        axes.grid()
    legend_below(figure, 3)
    return figure
