"""Which document tokens does a query token retrieve? (XTR §5.1, Figures 2, 4, Tables 6, E.)"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.figures import GalleryEntry, draw_lines
from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.questions.tokens import find_special
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import TokenSearch
from gr_mvdr.token_vectors import TokenVectors
from gr_mvdr.tokenizers import readable

FILE = "token_contexts"
KEPT_RANKS = (1, 2, 5, 20, 100)  # ranks whose tokens are kept with their context
AROUND = 10  # tokens of context before and after
RANKS = (1, 10, 100)  # ranks of the metrics
BINS = 40  # bins of the histogram
_SEARCHED = 8  # queries per batch: all their tokens are compared with every token of the index
KINDS = {"gold": "from a relevant document", "lexical": "the query token itself"}


class Query(NamedTuple):
    """A query's words, and the numbers of its relevant and its ignored documents."""

    id: str
    words: TokenVectors
    relevant: Tensor
    ignored: Tensor


def retrieve(tokens: TokenSearch, queries: Sequence[Query], neighbours: int) -> Iterator[DataFrame]:
    """Retrieves the nearest document tokens of all words of some queries in one search.

    Yields:
        For each query, a row for each token that a word retrieves: `query`, the word's number and
        id (`word`, `token`), the `rank` from 1, the token's `row` in the index, its `similarity`,
        and whether it is from a relevant document (`gold`) and equals the query token (`lexical`).
    """
    vectors = [q.words.vectors if q.words.keys is None else q.words.keys for q in queries]
    ignored = max(int(tokens.store.counts[query.ignored].sum()) for query in queries)
    searched = min(neighbours + ignored, len(tokens.rows))
    similarities, found = tokens.search(torch.cat(vectors), searched, probes=None)
    sizes = [*map(len, vectors)]
    for query, near, rows in zip(
        queries, similarities.split(sizes), found.split(sizes), strict=True
    ):
        gone = torch.isin(tokens.store.owners(rows), query.ignored)
        order = gone.int().argsort(dim=1, stable=True)[:, :neighbours]  # ignored documents last
        near, rows, gone = (one.gather(1, order) for one in (near, rows, gone))
        word, place = (~gone).nonzero(as_tuple=True)
        rows, ids = rows[word, place], query.words.ids[word]
        columns = {"word": word, "token": ids, "rank": place + 1, "row": rows}
        columns |= {"similarity": near[word, place], "lexical": tokens.store.ids(rows) == ids}
        columns["gold"] = torch.isin(tokens.store.owners(rows), query.relevant)
        yield DataFrame({"query": query.id} | {k: v.numpy() for k, v in columns.items()})


@part("analysis")
@dataclass
class TokenRetrieval(Analysis):
    """Gold and lexical token retrieval by rank, over the words of test queries.

    All tokens of the index are searched, even if the system's own search would skip some. The
    query's special tokens (end, sentinels) are not searched with.

    Args:
        queries: the maximum number of test queries, evenly spread over the first test split.
        neighbours: tokens retrieved for each word, at most all tokens of the index.
        contexts: for how many of the first queries the retrieved tokens are kept in context.
    """

    queries: Count
    neighbours: Size = 100
    contexts: Count = 5

    name, title = "token_retrieval", "Token retrieval"
    reading = "What each word of a query retrieves from all tokens of all documents, by rank."
    metrics = tuple(
        Metric(f"{kind}@#", f"The share of query tokens that retrieve {what} at rank #.").at(rank)
        for rank in RANKS
        for kind, what in {
            "gold": "a relevant document's token",
            "lexical": "an equal token",
        }.items()
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return isinstance(subject.model.searcher, TokenIndex)

    def finish(self) -> Findings:
        """Returns metrics "gold@k" and "lexical@k", the probabilities at rank k itself."""
        tokens = TokenSearch(self.subject.model.searcher.store)  # all tokens, none pruned
        neighbours, queries, parts = min(self.neighbours, len(tokens.rows)), self._queries(), []
        for start in track(range(0, len(queries), _SEARCHED), "retrieving tokens"):
            parts += retrieve(tokens, queries[start : start + _SEARCHED], neighbours)
        if not parts:
            return Findings()
        kept = {part["query"].iloc[0]: self._describe(part) for part in parts[: self.contexts]}
        table = pandas.concat(parts)
        curves, densities = table.groupby("rank")[[*KINDS]].mean(), densities_of(table)
        ranks = curves.index.intersection(RANKS)
        flat = {f"{kind}@{rank}": curves[kind][rank] for kind in KINDS for rank in ranks}
        words = table.groupby(["query", "word"]).ngroups
        name = self.subject.data.collection.name
        title = f"{name}: tokens retrieved by {words:,} query words"
        tables = {
            "token_retrieval": curves.reset_index().to_dict("records"),
            "token_similarity": densities.reset_index().to_dict("records"),
        }
        entry = GalleryEntry("token_retrieval", "What query tokens retrieve", CAPTION)
        figures = [(retrieval_figure(curves, densities, title), entry)]
        return self.findings(self.rows(flat), tables, figures, {FILE: kept})

    def _queries(self) -> list[Query]:
        """Returns the queries with at least one word and one relevant document in the index."""
        data, model, queries = self.subject.data, self.subject.model, []
        table, index = self.subject.queries(self.queries), model.searcher
        judged = data.evaluation.relevant(self.subject.split, table)
        special, known = torch.tensor(find_special(data)), set(index.store.document_ids)
        for name, encoded, _ in model.encoded_queries(table) if len(table) else ():
            relevant = [one for one in model.passages.of(judged[name]) if one in known]
            words = encoded[~torch.isin(encoded.ids, special)]
            ignored = model.passages.of([name] if data.drop_identical else [])
            ignored = [one for one in ignored if one in known]
            if relevant and len(words):
                queries.append(Query(name, words, index.numbers(relevant), index.numbers(ignored)))
        return queries

    def _describe(self, retrieved: DataFrame) -> dict[str, Any]:
        """Returns a query's text and, for each token, shares and what it retrieved, in context.

        "gold" and "lexical" are the shares of the retrieved tokens that are from a relevant
        document, and that equal the query token.
        """
        tokenizer, special = self.subject.data.tokenizer, {*find_special(self.subject.data)}
        store = self.subject.model.searcher.store

        def text(tokens: Sequence[int]) -> str:
            return readable(tokenizer, [token for token in tokens if token not in special])

        tokens, ids = [], []
        for (_, token), rows in retrieved.groupby(["word", "token"]):
            ids.append(int(token))
            found = []
            for one in rows[rows["rank"].isin(KEPT_RANKS)].itertuples():
                document, before, own, after = store.context(one.row, AROUND)
                kept = {"rank": one.rank, "similarity": one.similarity, "document": document}
                kept |= {"relevant": one.gold, "before": text(before), "after": text(after)}
                found.append(kept | {"token": readable(tokenizer, own)})
            shares = {kind: float(rows[kind].mean()) for kind in KINDS}
            tokens.append({"token": readable(tokenizer, ids[-1:])} | shares | {"retrieved": found})
        return {"text": readable(tokenizer, ids), "tokens": tokens}


def densities_of(table: DataFrame) -> DataFrame:
    """Computes the densities "gold" and "other" at each bin's central similarity (XTR Figure 2).

    The density is NaN for a kind of token that was never retrieved.
    """
    edges = np.histogram_bin_edges(table["similarity"], BINS)
    found = DataFrame({"similarity": (edges[1:] + edges[:-1]) / 2}).set_index("similarity")
    for kind, chosen in (("gold", table["gold"]), ("other", ~table["gold"])):
        if chosen.any():
            found[kind] = np.histogram(table["similarity"][chosen], edges, density=True)[0]
    return found.reindex(columns=["gold", "other"])


CAPTION = (
    "Left (XTR, Figure 4): where many tokens are the query's own and few are from a relevant "
    "document, tokens are matched by their form, whatever their context. Right (XTR, Figure 2): "
    "the similarities of tokens from relevant documents and from others, each as a density. Where "
    "both lie together at the right end, a token's score says little about relevance."
)


def retrieval_figure(curves: DataFrame, densities: DataFrame, title: str) -> Figure:
    """Plots probabilities by rank (XTR Figure 4), and densities of similarities (XTR Figure 2)."""
    named = densities.fillna(0).rename(columns=KINDS | {"other": "from another document"})
    panels = {"probability": curves.rename(columns=KINDS), "density": named}
    points = [
        part.rename_axis("x").reset_index().melt("x", var_name="line", value_name="y")
        for part in panels.values()
    ]
    points = pandas.concat(points, keys=panels, names=["panel"]).reset_index("panel")
    figure = draw_lines(points, title, "", "", shared=False, band=True)
    left = {"xscale": "log", "ylim": (0, 1), "xlabel": "rank of the retrieved token"}
    right = {"ylim": (0, None), "xlabel": "similarity to the query token"}
    for axes, look in zip(figure.axes, (left, right), strict=False):
        axes.set(**look)
    return figure
