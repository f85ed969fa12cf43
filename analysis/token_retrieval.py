"""Whose tokens does a query token retrieve, and where? (XTR §5.1, Figures 2, 4, Tables 6, E.)"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.figures import COLOURS, GalleryEntry, page_figure, styled
from analysis.runs.run_folder import read_queries
from analysis.statistics import spread
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from analysis.tokens import find_special, readable
from gr_mvdr.options import Count, Size, part
from gr_mvdr.progress import track
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_index.store import TokenStore

FILE = "token_contexts"
KEPT_RANKS = (1, 2, 5, 20, 100)  # whose tokens are kept
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
            ranks = [rank for rank in KEPT_RANKS if rank <= real[n]]
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
    return read_queries(run, FILE, "what the tokens of queries retrieved", _read_query)


def _read_query(kept: dict[str, Any]) -> QueryContexts:
    tokens = []
    for token in kept["tokens"]:
        retrieved = [RetrievedToken(**one) for one in token["retrieved"]]
        tokens.append(QueryToken(**token | {"retrieved": retrieved}))
        for number in (tokens[-1].gold, tokens[-1].lexical, *(r.similarity for r in retrieved)):
            if not isfinite(number):
                raise ValueError(f"{number}: must be finite")
    return QueryContexts(str(kept["text"]), tokens)


RANKS = (1, 10, 100)  # of the metrics
BINS = 40  # of the histogram
_SEARCHED = 8  # queries at once: every token of the index is compared with all their tokens
LABELS = {"gold": "from a relevant document", "lexical": "the query token itself"}
CAPTION = (
    "Every word of a query retrieves its nearest tokens among all tokens of all documents. Left: "
    "the probability that the token at a rank comes from a document that is relevant to the query; "
    "right: that it is the same token as the one of the query (XTR, Figure 4). High on the right "
    "and low on the left means that tokens are matched by their form, whatever their context."
)
SIMILARITIES = (
    "How similar the retrieved tokens are to the token that retrieved them (a cosine where vectors "
    "have length 1), those of relevant documents and of others, each as a density (XTR, Figure 2). "
    "Where both lie together at the right end, the score of a token says little about relevance."
)


class Found(NamedTuple):
    """What T query tokens retrieved at K ranks.

    Attributes:
        gold: (T, K) bool, from a relevant document.
        lexical: (T, K) bool, the same token as the query's.
        real: (T, K) bool, something was retrieved at all.
        similarities: (T, K) fp32, by which it was retrieved.
    """

    gold: Tensor
    lexical: Tensor
    real: Tensor
    similarities: Tensor


def hits(
    owners: Tensor, ids: Tensor, similarities: Tensor, query_ids: Tensor, relevant: Tensor
) -> Found:
    """Compares retrieved tokens with the query (XTR §5.1).

    Args:
        owners: (T, K) int64 document numbers, −1 where nothing was retrieved; ids: (T, K) int64.
        similarities: (T, K) fp32. query_ids: (T,) int64, the tokens that retrieved.
        relevant: (R,) int64 document numbers.
    """
    real = owners >= 0
    lexical = (ids == query_ids[:, None]) & real
    return Found(torch.isin(owners, relevant), lexical, real, similarities)


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
        contexts: the number of first queries that are kept with the contexts of what they found.
    """

    name, title = "token_retrieval", "Token retrieval"
    reading = (
        "The probability that the document token at rank k of a query token's neighbours is of a "
        "relevant document (gold), and that it is the same token (lexical)."
    )
    metrics = (
        Metric(
            "gold@#",
            "The probability that the document token at this rank of a query token's neighbours is "
            "of a relevant document.",
        ),
        Metric(
            "lexical@#",
            "The probability that the document token at this rank of a query token's neighbours is "
            "the same token.",
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

    def finish(self) -> Findings:
        """Metrics "gold@k" and "lexical@k", the probabilities at rank k itself."""
        special = {*find_special(self.data)}
        reader = ContextReader(self.model.searcher.store, self.data.tokenizer, special)
        parts, shown = [], {}
        for name, words, rows, found in self._found():
            parts.append(found)
            if len(shown) < self.contexts:
                kept = reader.query(words, rows, found.similarities, found.gold, found.lexical)
                shown[name] = asdict(kept)
        if not parts:
            return Findings()
        found = Found(*map(torch.cat, zip(*parts, strict=True)))
        size = int(found.real.any(0).sum())  # ranks at which anything was retrieved
        curves = {n: by_rank(getattr(found, n), found.real)[:size].tolist() for n in LABELS}
        ranks = [{"rank": k + 1} | {n: curves[n][k] for n in LABELS} for k in range(size)]
        flat = {f"{n}@{k}": curves[n][k - 1] for n in LABELS for k in RANKS if k <= size}
        title = f"{self.data.collection.name}: tokens retrieved by {len(found.real):,} query words"
        bins = histogram(found)
        entry = GalleryEntry("token_retrieval", "What query tokens retrieve", CAPTION)
        similar = GalleryEntry(
            "token_retrieval_similarity", "How similar retrieved tokens are", SIMILARITIES
        )
        return Findings(
            named(self.name, flat),
            {"token_retrieval": ranks, "token_similarity": bins},
            [(retrieval_figure(ranks, title), entry), (similarity_figure(bins, title), similar)],
            {FILE: shown},
        )

    @torch.inference_mode()
    def _found(self) -> Iterator[tuple[str, Tensor, Tensor, Found]]:
        """Of each query: its id, (T,) its words, (T, K) token rows that they retrieved, `Found`."""
        data, index = self.data, self.model.searcher
        table = spread(data.test_queries(data.test_splits[0]), self.queries)
        grades = data.judgements(data.test_splits[0], table)
        special = torch.tensor(find_special(data))
        tokens = NearestTokens(index.store)  # of all documents, none pruned
        neighbours = min(self.neighbours, len(tokens.rows))
        encoded, known = self.model.encoded_queries(table), set(index.store.document_ids)
        for start in track(range(0, len(encoded), _SEARCHED), "retrieving tokens"):
            chosen = []
            for name, query in encoded[start : start + _SEARCHED]:
                judged = grades[name].items()
                relevant = [d for d, grade in judged if grade > 0 and d in known]
                words = query[~torch.isin(query.ids, special)]
                own = [name] if data.drop_identical and name in known else []
                if relevant and len(words):
                    chosen.append((name, words, index.numbers(relevant), index.numbers(own)))
            yield from _retrieved(tokens, chosen, neighbours)


def _retrieved(
    tokens: NearestTokens, chosen: list, neighbours: int
) -> Iterator[tuple[str, Tensor, Tensor, Found]]:
    """Of queries (id, words, relevant documents, documents that are no hits), searched together."""
    if not chosen:
        return
    vectors = [words.vectors if words.keys is None else words.keys for _, words, *_ in chosen]
    most = max(int(tokens.store.counts[own].sum()) for *_, own in chosen)
    searched = min(neighbours + most, len(tokens.rows))
    found = tokens.search(torch.cat(vectors), searched, probes=None)
    sizes = [*map(len, vectors)]
    for query, mine, rows in zip(chosen, *(one.split(sizes) for one in found), strict=True):
        name, words, relevant, own = query
        gone = torch.isin(tokens.store.owners(rows), own)
        order = gone.int().argsort(dim=1, stable=True)[:, :neighbours]  # those that are gone last
        rows, mine = rows.masked_fill(gone, -1).gather(1, order), mine.gather(1, order)
        ids = tokens.store.ids(rows.flatten().clamp(min=0)).view_as(rows)
        yield name, words.ids, rows, hits(tokens.store.owners(rows), ids, mine, words.ids, relevant)


def histogram(found: Found) -> list[Row]:
    """Rows of similarity (a bin's centre) and the densities "gold" and "other" (XTR Figure 2).

    A kind of tokens of which none was retrieved has no density (None).
    """
    kinds = {"gold": found.gold, "other": found.real & ~found.gold}
    values = {kind: found.similarities[chosen].numpy() for kind, chosen in kinds.items()}
    every = found.similarities[found.real]
    ends = float(every.min()), float(every.max())
    density = {
        kind: np.histogram(of, BINS, ends, density=True)[0].tolist() if len(of) else [None] * BINS
        for kind, of in values.items()
    }
    edges = np.histogram_bin_edges(every.numpy(), BINS, ends)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    return [
        {"similarity": centre} | {kind: density[kind][n] for kind in density}
        for n, centre in enumerate(centres)
    ]


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


@styled
def similarity_figure(rows: list[Row], title: str) -> Figure:
    """The two densities of `histogram` over the similarity (XTR Figure 2)."""
    figure = page_figure(title)
    axes = figure.subplots()
    places = [row["similarity"] for row in rows]
    labels = {"gold": LABELS["gold"], "other": "from another document"}
    for (kind, label), colour in zip(labels.items(), COLOURS, strict=False):
        heights = [row[kind] or 0 for row in rows]
        axes.fill_between(places, heights, step="mid", alpha=0.3, color=colour)
        axes.step(places, heights, where="mid", color=colour, label=label)
    axes.set(xlabel="similarity to the query token", ylabel="density", ylim=(0, None))
    axes.grid()
    axes.legend(frameon=False)
    return figure
