"""Does the framework hold? What each path of the decoder adds to a logit (gr_as_mvdr §8).

The paper derives rel(d, q) from the last layer's cross-attention alone (Eq. 5, 11–14) and drops the
rest. If the scales of the layer norms are held fixed, the logit is an exact sum over paths, so the
dropped part can be measured. A path's share is its direct contribution: what later layers pass on
from an earlier cross-attention is attributed to the later layers.

Every real target token counts, including the end token, which the system predicts and scores.

`FrameworkRanking` measures what these simplifications cost in reranking (Appendix A): the paper
replaces log p(d | q) (Eq. 8) by the sum of logits (Eq. 11), and then by the last layer's
cross-attention (Eq. 14).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.evaluation import judge
from analysis.figures import COLOURS, GalleryEntry, page_figure, styled
from analysis.statistics import RANK_CORRELATION, mean_table, spread
from analysis.tables.metric_names import Metric
from data_modules.module import RetrievalDataModule
from gr_mvdr.batch import PairBatch, batch_by_length, pad
from gr_mvdr.cross_attention import CONSTANTS
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation
from models.base import System, Table

# Kinds of path that exist in every layer; the table adds a row with their sum over layers.
LAYERED = ("self_attention", "cross_attention", "feed_forward")
KINDS = ("embedding", *LAYERED, *CONSTANTS)
PANELS = {
    "covariance_share": "covariance with the\n{}, over tokens",
    "pair_mean_share": "covariance with the\n{}, over pairs",
    "absolute_share": "absolute size,\nover tokens",
}
_BATCH = 16  # pairs
# A variance below this share of the mean square is rounding error.
_CONSTANT = 1e-12


class PathShares:
    """Measures how much each path contributes to the logits, over tokens and over pairs.

    A pair's value is the mean over its tokens, which does not depend on the target's length. The
    pairs' values show what distinguishes pairs.
    """

    def __init__(self) -> None:
        self.tokens: list[Tensor] = []  # per batch: (n, P + 1) fp64 paths and logit of each token
        self.pairs: list[Tensor] = []

    def update(self, paths: Tensor, logits: Tensor, mask: Tensor) -> None:
        """Adds paths (B, P, M) and logits (B, M) where mask (B, M) is True."""
        both, mask = torch.cat([paths, logits[:, None]], 1).double().cpu(), mask.cpu()
        self.tokens.append(both.transpose(1, 2)[mask])
        means = (both * mask[:, None]).sum(2) / mask.sum(1, keepdim=True)
        self.pairs.append(means[mask.any(1)])

    def table(self, names: Sequence[str]) -> DataFrame | None:
        """Returns a row for each path, and for each kind in `LAYERED` the sum over its layers;
        None if there is no token.
        """
        tokens, pairs = torch.cat(self.tokens), torch.cat(self.pairs)
        if not len(tokens):
            return None
        shares = covariance_shares(tokens), absolute_shares(tokens), covariance_shares(pairs)
        columns = "covariance_share", "absolute_share", "pair_mean_share"
        table = DataFrame(torch.stack(shares, 1).numpy(), names, columns)
        kinds = table.groupby(list(map(path_kind, names))).sum(min_count=1)
        for kind in LAYERED:
            table.loc[f"{kind}_all"] = kinds.loc[kind]
        return table.rename_axis("path")


def covariance_shares(both: Tensor) -> Tensor:
    """(P,) cov(part, total) / var(total) of (n, P + 1) parts and their total; they sum to 1.

    A share is negative if the part works against the others; all are NaN if totals do not vary.
    """
    centred = both - both.mean(0)
    covariance = centred.T @ centred[:, -1]
    varies = covariance[-1] > _CONSTANT * both[:, -1].square().sum()
    return (covariance / covariance[-1])[:-1] if varies else covariance[:-1] * torch.nan


def absolute_shares(both: Tensor) -> Tensor:
    """(P,) mean of |part| / Σ |parts| of (n, P + 1) parts and their total; they sum to 1."""
    sizes = both[:, :-1].abs()
    # With the clamp, a row of zeros has shares of zero.
    return sizes.div(sizes.sum(1, keepdim=True).clamp(min=1e-300)).mean(0)


def path_kind(name: str) -> str:
    """The kind of a path without its layer: "cross_attention_2" is a "cross_attention"."""
    return name.rstrip("_0123456789")


@part("analysis")
class Framework(Analysis):
    """What does each path of the decoder add to the target tokens' logits? (§8)"""

    name, title = "framework", "Does the framework hold?"
    reading = (
        "How much of the decoder's own logits comes from cross-attention, which is all that the "
        "equation of relevance sees; the rest comes from self-attention, feed-forward layers and "
        "embeddings."
    )
    metrics = (
        Metric(
            "cross_attention_share",
            "The share of the logits' variance that comes through all layers' cross-attention.",
            headline=True,
        ),
        Metric(
            "last_layer_share",
            "The share of the logits' variance that comes through the last cross-attention: Eq. 14",
            headline=True,
        ),
        Metric(
            "cross_attention_absolute_share",
            "The share of cross-attention in the absolute sizes of a logit's parts.",
        ),
        Metric(
            "last_layer_absolute_share",
            "The share of the last cross-attention in the absolute sizes of a logit's parts.",
        ),
        Metric("sum_error", "The distance of the parts' sum from the model's logits: rounding."),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.store is not None and bool(subject.store.path_names)

    def __init__(self, subject: Subject):
        self.names = subject.store.path_names
        self.last = f"cross_attention_{subject.store.layers}"
        self.error, self.paths = 0.0, PathShares()

    def update(self, batch: Explanation, first: int) -> None:
        paths, real = batch.decoder, batch.layers[-1].document_mask
        logits = paths.logits.double() * real
        error = (paths.contributions.double() * real[:, None]).sum(1) - logits
        self.error = max(self.error, float((error.abs() / logits.abs().clamp(min=1)).max()))
        self.paths.update(paths.contributions, paths.logits, real)

    def finish(self) -> Findings:
        table = self.paths.table(self.names)
        flat = {"sum_error": self.error}
        for name, path in (("last_layer", self.last), ("cross_attention", "cross_attention_all")):
            flat[f"{name}_share"] = table["covariance_share"][path]
            flat[f"{name}_absolute_share"] = table["absolute_share"][path]
        bars = share_bars(table.loc[list(self.names)], "logit")
        entry = GalleryEntry("framework", "Where the logits come from", PATHS)
        tables = {"framework": table.reset_index().to_dict("records")}
        return Findings(named(self.name, flat), tables, [(bars, entry)])


@part("analysis")
class QueryPaths(Analysis):
    """Through which paths does a query change the logits? (gr_as_mvdr §8)

    Most of a logit says how well a token follows the tokens before it, whatever the query is.
    Scoring the same target after another query isolates the rest: the difference of a token's two
    logits is the sum of the differences of its paths, where each pass uses its own layer norms'
    scales.

    Args:
        pairs: the number of test pairs of the first test split. A pair's other query comes from the
            pair half a batch later.
    """

    name = "framework"
    metrics = (
        Metric(
            "query_cross_attention_share",
            "The share of cross-attention in the change of the logits when the query changes.",
        ),
        Metric("query_last_layer_share", "The share of the last cross-attention in this change."),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.model.generates == "document"

    def __init__(self, subject: Subject, pairs: Count):
        self.model, self.data, self.pairs = subject.model, subject.data, pairs

    @torch.inference_mode()
    def finish(self) -> Findings:
        model, data, shares, names = self.model.eval(), self.data, PathShares(), ()
        _, batches = data.test_pairs(data.test_splits[0], self.pairs, _BATCH, covers=model.covers)
        for batch in track(batches, "changing queries"):
            half = len(batch) // 2
            other = {key: getattr(batch, key).roll(half, 0) for key in ("query_ids", "query_mask")}
            # Neighbouring pairs may share a query.
            changed = (batch.query_ids != other["query_ids"]).any(1, keepdim=True)
            explained = model.explain(batch.to(model.device))
            before = explained.decoder
            after = model.explain(replace(batch, **other).to(model.device)).decoder
            mask = explained.layers[-1].document_mask & changed.to(model.device)
            parts, names = before.contributions - after.contributions, before.names
            shares.update(parts, before.logits - after.logits, mask)
        if not batches or (table := shares.table(names)) is None:
            return Findings()
        last = [name for name in names if path_kind(name) == "cross_attention"][-1]
        flat = {
            "query_last_layer_share": table["covariance_share"][last],
            "query_cross_attention_share": table["covariance_share"]["cross_attention_all"],
        }
        bars = share_bars(table.loc[list(names)], "change of logit")
        entry = GalleryEntry("framework_query", "How a query changes the logits", CHANGES)
        tables = {"framework_query": table.reset_index().to_dict("records")}
        return Findings(named(self.name, flat), tables, [(bars, entry)])


PATHS = (
    "Each logit of a target token is the sum of these paths. Left: a path's share of the logits' "
    "variance over tokens, cov(path, logit) / var(logit); negative where it works against the "
    "others. Middle: the same for the means over each pair's tokens. Right: the mean of |path| / "
    "Σ |paths|. The bars of a panel sum to 1."
)
CHANGES = (
    "The same for the change of these logits after another query. Only cross-attention reads the "
    "query; what other paths add came to them through an earlier cross-attention, which Eq. 14 "
    "leaves out."
)


@styled
def share_bars(table: DataFrame, total: str) -> Figure:
    """Draws three panels of `PathShares.table` with a bar for each path's share in a total."""
    figure = page_figure(height=0.9 + 0.19 * len(table))
    colours = [COLOURS[KINDS.index(path_kind(name))] for name in table.index]
    for axes, (share, title) in zip(
        figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True
    ):
        places = [name.replace("_", " ") for name in table.index]
        bars = axes.barh(places, table[share], color=colours, edgecolor="black")
        axes.bar_label(bars, fmt="{:z.2f}", padding=2, fontsize=7)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=title.format(total), xlabel="share")
        axes.margins(x=0.22, y=0.02)  # room for the numbers
        axes.grid(axis="x")
    axes.invert_yaxis()  # the model's input at the top
    return figure


NAMES = ("last_layer", "all_layers", "logits", "log_prob")


def relevances(explanation: Explanation) -> dict[str, Tensor]:
    """Returns, for each of `NAMES`, (B,) fp64 sums over the target tokens of each pair.

    "last_layer": rel(d, q) of Eq. 14. "all_layers": the sum of Eq. 14 over the cross-attention of
    all layers. "logits": Σ e·h (Eq. 11). "log_prob": log p(d | q) (Eq. 8).
    """
    layers = [pairs.relevance.double() for pairs in explanation.layers]
    paths = explanation.decoder
    sums = layers[-1], sum(layers), paths.logits.double().sum(1), paths.log_probs.double().sum(1)
    return dict(zip(NAMES, sums, strict=True))


def candidate_batches(
    model: System, data: RetrievalDataModule, split: str, queries: Table
) -> Iterator[tuple[list[tuple[int, int]], PairBatch]]:
    """Yields all candidates that the model covers (gr_as_mvdr §6.3), in batches of similar length.

    Yields:
        (query row, document row) of each pair, and the batch of these pairs.
    """
    row = {name: number for number, name in enumerate(data.documents["id"][:])}
    candidates = data.list_candidates(split, queries)
    named_rows = [(n, row[d]) for n, q in enumerate(queries["id"][:]) for d in candidates[q]]
    pairs = [(query, document) for query, document in named_rows if model.covers(document)]
    read, texts = data.template, data.documents["tokens"]
    documents = {d: read.read_document(texts[d], data.document_length) for _, d in pairs}
    sources = [read.read_query(tokens, data.query_length) for tokens in queries["tokens"]]
    lengths = [len(documents[document]) for _, document in pairs]
    for places in track(batch_by_length(lengths, _BATCH), "explaining candidates"):
        group = [pairs[place] for place in places]
        sides = pad([sources[q] for q, _ in group]), pad([documents[d] for _, d in group])
        yield group, PairBatch(*sides[0], *sides[1], torch.tensor([d for _, d in group]))


@part("analysis")
class FrameworkRanking(Analysis):
    """How well do Eq. 14, Eq. 11 and log p(d | q) rerank, and how far do they agree?

    Each is taken as the sum over target tokens, as in the paper, and as their mean, since log p
    falls with every further token and sums therefore favour short documents. Only systems that
    generate documents are measured; systems that generate nothing rank by the relevance itself.

    Args:
        queries: the number of rerank queries, evenly spread over the first test split.
    """

    name = "framework"
    metrics = (RANK_CORRELATION,)
    words: ClassVar[dict[str, str]] = {
        "all layers": "Ranked by the cross-attention of all layers (Eq. 14).",
        "last layer": "Ranked by the last layer's cross-attention (Eq. 14).",
        "logits": "Ranked by the sum of the logits (Eq. 11).",
        "score own": "Ranked by the system's own score.",
    }

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.model.generates == "document"

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data = subject.model, subject.data
        self.split = self.data.test_splits[0]
        self.queries = spread(self.data.rerank_queries(self.split), queries)

    def finish(self) -> Findings:
        scores = self._scores()
        if scores is None:
            return Findings()
        by_query = scores.groupby("query")
        columns = list(scores.columns[2:])
        correlations = by_query[columns].corr("spearman").groupby(level=1).mean()
        judged, flat = [], {}
        for key in columns:
            ranking = {q: dict(zip(g["document"], g[key], strict=True)) for q, g in by_query}
            values = judge(Ranking(ranking), self.data, self.split, self.queries, ["mrr@10"])
            mrr = [one["mrr@10"] for one in values.values()]
            judged.append(DataFrame({"pair": range(len(mrr)), "score": key, "mrr@10": mrr}))
            truth = "log_prob/sum" if key.endswith("/sum") else "log_prob/mean"
            if key != truth:
                flat[f"{key}/rank_correlation"] = correlations.loc[key, truth]
        table = pandas.concat(judged).assign(queries=1.0)
        for row in mean_table(table, ["score"], ["mrr@10"], "queries").to_dict("records"):
            flat |= {f"{row['score']}/{name}": row[name] for name in row if "@" in name}
        return Findings(named(self.name, flat))

    @torch.inference_mode()
    def _scores(self) -> DataFrame | None:
        """Returns a row for each candidate: query, document, and the scores "NAME/FORM"."""
        model, data, parts = self.model.eval(), self.data, []
        queries, documents = self.queries["id"][:], data.documents["id"][:]
        for pairs, batch in candidate_batches(model, data, self.split, self.queries):
            explanation = model.explain(batch.to(model.device))
            last, sums = explanation.layers[-1], relevances(explanation)
            lengths = last.document_mask.sum(1).clamp(min=1)
            scores = {f"{name}/sum": value for name, value in sums.items()}
            scores |= {f"{name}/mean": value / lengths for name, value in sums.items()}
            scores["score/own"] = last.score
            names = {"query": [queries[q] for q, _ in pairs]}
            names["document"] = [documents[d] for _, d in pairs]
            parts.append(DataFrame(names | {key: s.cpu() for key, s in scores.items()}))
        return pandas.concat(parts, ignore_index=True) if parts else None
