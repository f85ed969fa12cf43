"""Does the framework hold? What each path of the decoder adds to a logit (gr_as_mvdr §8).

The paper reads rel(d, q) off the last layer's cross-attention alone (Eq. 5, 11–14) and drops the
rest. With the layer norms' scales held at their values the logit is an exact sum over paths, so
that what was dropped can be weighed. A path's share is its direct one: what self-attention and
feed-forward layers pass on of an earlier cross-attention counts as theirs.

One rule for tokens: every real target token counts, the end token too, since the system predicts
and scores it. The tables have the same without special tokens ("not_special" in column `tokens`).

What the simplifications cost in reranking (Appendix A): the paper goes from log p(d | q) (Eq. 8) to
the sum of logits (Eq. 11) and on to the last layer's cross-attention (Eq. 14). `FrameworkRanking`
ranks the same candidates by each of them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean
from typing import ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from analysis.analysis import Analysis, Findings, Subject, named
from analysis.evaluation import QueryMetrics, average_metrics, judge
from analysis.figures import COLOURS, HATCHES, GalleryEntry, legend_below, page_figure, styled
from analysis.statistics import interval, pearson, spearman, spread
from analysis.tables.metric_names import Metric
from analysis.tables.rows import Row
from data_modules.module import RetrievalDataModule
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.cross_attention import CONSTANTS
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import DecoderPaths, Explanation, PairAlignment
from models.base import System, Table

# Of path kinds with one path a layer, the sum over layers has a row of its own.
SUMMED = ("self_attention", "cross_attention", "feed_forward")
SHARES = ("covariance_share", "absolute_share", "pair_covariance_share", "pair_mean_share", "mean")
PATHS = (
    "Every logit of a target token is the sum of what these paths of the decoder add to it, top to "
    "bottom as in the model. Left: how much of what tells tokens' logits apart comes through a "
    "path, cov(path, logit) / var(logit); negative where it works against the others. Middle: the "
    "same of the means over each pair's tokens, which is what tells pairs apart. Right: the mean "
    "size of a path among the sizes of all. The bars of a panel sum to 1. The framework of Eq. 14 "
    "is the last layer's cross-attention alone; what other layers pass on of an earlier "
    "cross-attention counts as theirs."
)
PANELS = {
    "covariance_share": "covariance with\nthe {total}, over tokens",
    "pair_mean_share": "covariance with\nthe {total}, over pairs",
    "absolute_share": "absolute size,\nover tokens",
}
KINDS = ("embedding", "self_attention", "cross_attention", "feed_forward", *CONSTANTS)
_BATCH = 16  # pairs at once
ROW_HEIGHT = 0.19  # inches a path takes
NUMBER_ROOM = 0.22  # of the bars' range, for the numbers at their ends
CHANGES = (
    "The logits of the same target tokens after their own query and after another one: what of the "
    "change comes through each path of the decoder, as shares that sum to 1 in every panel. Left "
    "and middle: covariance with the change, over tokens and over the means of pairs. Right: the "
    "mean size. Cross-attentions read the query; what the other paths add they got from an earlier "
    "cross-attention, which Eq. 14 leaves out."
)
# Totals whose variance is this small against their size do not vary, but for rounding.
_CONSTANT = 1e-12


def path_sum_error(contributions: Tensor, logits: Tensor) -> Tensor:
    """(B,) greatest |Σ_p c_p − logit| / max(1, |logit|) over the tokens of each pair.

    Args:
        contributions: (B, P, M), zero at padding; logits: (B, M), zero at padding.
    """
    difference = (contributions.double().sum(1) - logits.double()).abs()
    return (difference / logits.double().abs().clamp(min=1)).amax(1)


def head_contributions(pairs: PairAlignment) -> Tensor:
    """(B, H, M) Σ_j S^h_ij A^h_ij, what each head of a layer adds to the logit of token i."""
    return (pairs.similarity * pairs.alignment).sum(-1)


def path_kind(name: str) -> str:
    """The kind of a path without its layer: "cross_attention_2" is a "cross_attention"."""
    return re.sub(r"_\d+$", "", name)


class PathShares:
    """How much of a total comes through each of the P parts that it is the sum of.

    Takes in n totals at a time and keeps sums only, in fp64.
    """

    def __init__(self, parts: int):
        self._count, self._totals, self._squares = 0, 0.0, 0.0
        self._parts, self._products, self._absolute = (
            torch.zeros(parts, dtype=torch.float64) for _ in range(3)
        )

    def update(self, parts: Tensor, totals: Tensor) -> None:
        """Takes in parts (n, P) and their totals (n,), any float dtype."""
        parts, totals = parts.double().cpu(), totals.double().cpu()
        self._count += len(totals)
        self._totals += float(totals.sum())
        self._squares += float(totals @ totals)
        self._parts += parts.sum(0)
        self._products += parts.T @ totals
        size = parts.abs()
        # A total of which every part is zero has no shares: it counts as zero for each.
        self._absolute += (size / size.sum(1, keepdim=True).clamp(min=1e-300)).sum(0)

    @property
    def mean(self) -> Tensor:
        """(P,) mean of each part; NaN without totals."""
        return self._parts / (self._count or torch.nan)

    @property
    def covariance(self) -> Tensor:
        """(P,) cov(part, total) / var(total); they sum to 1.

        How much of what tells totals apart comes through the part. It is negative where a part
        works against the others, and above 1 where these work against it. NaN where totals do
        not vary.
        """
        count = self._count or torch.nan
        variance = self._squares - self._totals**2 / count
        if not variance > _CONSTANT * self._squares:
            return torch.full_like(self._parts, torch.nan)
        return (self._products - self._parts * (self._totals / count)) / variance

    @property
    def absolute(self) -> Tensor:
        """(P,) mean of |part| / Σ_p |part|; they sum to 1; NaN without totals."""
        return self._absolute / (self._count or torch.nan)


class TokenAndPairShares:
    """Shares of P parts in the logits of tokens, and in what pairs sum and average of them.

    - `covariance_share`: cov(part, logit) / var(logit) over the target tokens of all pairs.
    - `absolute_share`: mean over those tokens of |part| / Σ |parts|.
    - `pair_covariance_share`: the first over pairs, of sums over a pair's tokens (Eq. 11). Where
      targets differ in length, so do the sums, and mean contributions decide.
    - `pair_mean_share`: the same of means over a pair's tokens, free of length.
    - `mean`: of the part over tokens.

    All of them add up: a group of paths has the sum of its paths' values.
    """

    def __init__(self, parts: int):
        self.tokens, self.sums, self.means = (PathShares(parts) for _ in range(3))

    def update(self, parts: Tensor, logits: Tensor, mask: Tensor) -> None:
        """Takes in parts (B, P, M) and logits (B, M) where mask (B, M) is True."""
        self.tokens.update(parts.transpose(1, 2)[mask], logits[mask])
        counts = mask.sum(1)
        some = counts > 0
        sums = (parts.double() * mask[:, None]).sum(2)[some]
        totals, counts = (logits.double() * mask).sum(1)[some], counts[some]
        self.sums.update(sums, totals)
        self.means.update(sums / counts.unsqueeze(1), totals / counts)

    def values(self) -> dict[str, Tensor]:
        """Each of `SHARES` → (P,) fp64."""
        tokens = self.tokens
        pairs = self.sums.covariance, self.means.covariance
        found = tokens.covariance, tokens.absolute, *pairs, tokens.mean
        return dict(zip(SHARES, found, strict=True))


def path_rows(names: Sequence[str], values: Mapping[str, Tensor]) -> Iterator[Row]:
    """A row for each path, then one for all layers' paths of each kind of `SUMMED`.

    Args:
        names: P paths; values: column → (P,) what adds up over paths.
    """
    groups = {name: [number] for number, name in enumerate(names)}
    kinds = [path_kind(name) for name in names]
    for kind in SUMMED:
        groups[f"{kind}_all"] = [number for number, found in enumerate(kinds) if found == kind]
    for name, numbers in groups.items():
        yield {"path": name} | {key: float(part[numbers].sum()) for key, part in values.items()}


@part("analysis")
class Framework(Analysis):
    """What does each path of the decoder add to the target tokens' logits? (§8)"""

    name, title = "framework", "Does the framework hold?"
    reading = (
        "Which share of the decoder's own logits comes from cross-attention, which is all that the "
        "equation of relevance sees; the rest comes from self-attention, feed-forward layers and "
        "embeddings."
    )
    metrics = (
        Metric(
            "cross_attention_share",
            "The share of the logits' variance that comes through cross-attention, all layers "
            "together.",
            headline=True,
        ),
        Metric(
            "last_layer_share",
            "The share of the logits' variance that comes through the last layer's "
            "cross-attention, which is all that Eq. 14 sees.",
            headline=True,
        ),
        Metric(
            "cross_attention_absolute_share",
            "The share of cross-attention in the absolute sizes of all parts of a logit.",
        ),
        Metric(
            "last_layer_absolute_share",
            "The share of the last layer's cross-attention in the absolute sizes of all parts of a "
            "logit.",
        ),
        Metric(
            "sum_error",
            "How far the parts' sum is from the model's own logits: rounding alone.",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.store is not None and bool(subject.store.path_names)

    def __init__(self, subject: Subject):
        store = subject.store
        self.names, self.layers, self.heads = store.path_names, store.layers, store.heads
        self.special = subject.texts.kinds.special
        self.error = 0.0
        self.paths = {name: TokenAndPairShares(len(self.names)) for name in ("all", "not_special")}
        self.by_head = PathShares(self.layers * self.heads)

    def update(self, batch: Explanation, first: int) -> None:
        paths, pairs = batch.decoder, batch.layers[-1]
        real = pairs.document_mask
        error = path_sum_error(paths.contributions * real[:, None], paths.logits * real)
        self.error = max(self.error, float(error.max()))
        counted = real & ~self.special[pairs.document_ids]
        for name, mask in (("all", real), ("not_special", counted)):
            self.paths[name].update(paths.contributions, paths.logits, mask)
        heads = torch.cat([head_contributions(layer) for layer in batch.layers], 1)
        self.by_head.update(heads.transpose(1, 2)[real], paths.logits[real])

    def finish(self) -> Findings:
        """Metrics and tables of paths and heads, and a figure."""
        rows = [
            {"tokens": tokens} | row
            for tokens, shares in self.paths.items()
            for row in path_rows(self.names, shares.values())
        ]
        by_path = {row["path"]: row for row in rows if row["tokens"] == "all"}
        flat = {"sum_error": self.error}
        paths = {"last_layer": f"cross_attention_{self.layers}"}
        for name, path in (paths | {"cross_attention": "cross_attention_all"}).items():
            flat[f"{name}_share"] = by_path[path]["covariance_share"]
            flat[f"{name}_absolute_share"] = by_path[path]["absolute_share"]
        entry = GalleryEntry("framework", "Where the logits come from", PATHS)
        tables = {"framework": rows, "framework_heads": list(self._head_rows())}
        figures = [(share_bars([by_path[name] for name in self.names]), entry)]
        return Findings(named(self.name, flat), tables, figures)

    def _head_rows(self) -> Iterator[Row]:
        """`absolute_share` is a head's among all heads, the others are of the logit."""
        found = self.by_head.covariance, self.by_head.absolute, self.by_head.mean
        for number, shares in enumerate(torch.stack(found, 1).tolist()):
            layer, head = divmod(number, self.heads)
            names = ("covariance_share", "absolute_share", "mean")
            yield {"layer": layer + 1, "head": head + 1} | dict(zip(names, shares, strict=True))


@part("analysis")
class QueryPaths(Analysis):
    """Through which paths does a query change the logits? (gr_as_mvdr §8)

    Most of a logit says how well a token follows the tokens before it, whatever the query. The
    same targets after another query tell the rest: the difference of a token's logits is the sum
    of the differences of its paths, each with the layer norms' scales of its own pass.

    Args:
        pairs: how many test pairs of the first test split. Each gets the query of the pair half a
            batch further as its other one; a batch of one pair has none.
    """

    name = "framework"
    metrics = (
        Metric(
            "query_cross_attention_share",
            "The share of cross-attention in the change of the logits when the query is exchanged.",
        ),
        Metric(
            "query_last_layer_share",
            "The share of the last layer's cross-attention in the change of the logits when the "
            "query is exchanged.",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "generates", None) == "document"

    def __init__(self, subject: Subject, pairs: Count):
        self.model, self.data, self.pairs = subject.model, subject.data, pairs

    def finish(self) -> Findings:
        names, shares = self._shares()
        if shares is None:
            return Findings()
        rows = list(path_rows(names, shares.values()))
        by_path = {row["path"]: row["covariance_share"] for row in rows}
        last = [name for name in names if name.startswith("cross_attention")][-1]
        flat = {
            "query_last_layer_share": by_path[last],
            "query_cross_attention_share": by_path["cross_attention_all"],
        }
        entry = GalleryEntry("framework_query", "How a query changes the logits", CHANGES)
        figures = [(share_bars(rows[: len(names)], "change of logit"), entry)]
        return Findings(named(self.name, flat), {"framework_query": rows}, figures)

    @torch.inference_mode()
    def _shares(self) -> tuple[tuple[str, ...], TokenAndPairShares | None]:
        model, names, shares = self.model.eval(), (), None
        _, batches = self.data.test_pairs(
            self.data.test_splits[0], self.pairs, batch_size=_BATCH, covers=model.covers
        )
        for batch in track([batch for batch in batches if len(batch) > 1], "changing queries"):
            half = len(batch) // 2
            sides = {
                name: getattr(batch, name).roll(half, 0) for name in ("query_ids", "query_mask")
            }
            explanation = model.explain(batch.to(model.device))
            own = explanation.decoder
            other: DecoderPaths = model.explain(replace(batch, **sides).to(model.device)).decoder
            names = own.names
            shares = shares or TokenAndPairShares(len(names))
            parts, logits = own.contributions - other.contributions, own.logits - other.logits
            # Questions about one document are neighbours; a text may be asked twice.
            changed = (batch.query_ids != sides["query_ids"]).any(1)
            mask = explanation.layers[-1].document_mask & changed[:, None].to(logits.device)
            shares.update(parts, logits, mask)
        return names, shares


@styled
def share_bars(rows: Sequence[Row], total: str = "logit") -> Figure:
    """One bar a path, three panels of shares in a total: rows of the table `framework`."""
    figure = page_figure(height=0.9 + ROW_HEIGHT * len(rows))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (share, title) in zip(panels, PANELS.items(), strict=True):
        _bars(axes, rows, share)
        axes.set(title=title.format(total=total), xlabel="share")
    panels[0].set_yticks(range(len(rows)), [_label(row["path"]) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)  # the model's input above, as people read
    return figure


def _bars(axes: Axes, rows: Sequence[Row], share: str) -> None:
    for place, row in enumerate(rows):
        kind = KINDS.index(path_kind(row["path"]))
        axes.barh(place, row[share], color=COLOURS[kind], hatch=HATCHES[kind], edgecolor="black")
        if row[share] == row[share]:
            _write(axes, row[share], place)
    values = [0.0, *(row[share] for row in rows if row[share] == row[share])]
    low, high = min(values), max(values)
    room = NUMBER_ROOM * ((high - low) or 1.0)
    axes.set_xlim(low - room * (low < 0), high + room)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(axis="x")


def _write(axes: Axes, value: float, place: int) -> None:
    """A bar's number at its end."""
    shown = round(value, 2) + 0.0  # no minus sign before a zero
    side, at = (2, "left") if shown >= 0 else (-2, "right")
    end = value if shown else max(value, 0)
    how = dict(textcoords="offset points", ha=at, va="center", fontsize=7)
    axes.annotate(f"{shown:.2f}", (end, place), (side, 0), **how)


def _label(path: str) -> str:
    kind = path_kind(path)
    return kind.replace("_", "-") + path.removeprefix(kind).replace("_", " ")


NAMES = ("last_layer", "all_layers", "logits", "log_prob")
FORMS = ("sum", "mean")
QUALITY = ("mrr@10", "recall@1", "recall@10")
RANKING_CAPTION = (
    "Candidates ranked by ever more of the model: Eq. 14 of the last layer's cross-attention, of "
    "all layers', the sum of logits (Eq. 11), and log p(d | q) itself (Eq. 8), each as a sum over "
    "target tokens and as their mean. Left: MRR@10 of the reranking. Right: Spearman's correlation "
    "with log p within a query's candidates, averaged over queries. Where that is low, what the "
    "framework leaves out decides the model's order; MRR says which order is better. The last bar "
    "is what the system itself ranks by."
)
RANKING_LABELS = {
    "last_layer": "Eq. 14,\nlast layer",
    "all_layers": "Eq. 14,\nall layers",
    "logits": "Σ e·h\n(Eq. 11)",
    "log_prob": "log p(d|q)\n(Eq. 8)",
    "score": "own\nscore",
}
RANKING_PANELS = {"mrr@10": "MRR@10", "rank_correlation": "rank correlation with log p(d|q)"}
BAR = 0.38

# The row of a query, and that of a document.
CandidatePair = tuple[int, int]
# (name, form) → query id → {document id: value}; the model's own score has the form "own".
Scores = dict[tuple[str, str], dict[str, dict[str, float]]]


def relevances(explanation: Explanation) -> dict[str, Tensor]:
    """Each name of `NAMES` → (B,) fp64, a sum over the target tokens of each pair.

    "last_layer": rel(d, q) of Eq. 14. "all_layers": the same of every layer's cross-attention,
    added up. "logits": Σ e·h (Eq. 11). "log_prob": log p(d | q) (Eq. 8).
    """
    layers = [pairs.relevance.double() for pairs in explanation.layers]
    paths = explanation.decoder
    sums = layers[-1], sum(layers), paths.logits.double().sum(1), paths.log_probs.double().sum(1)
    return dict(zip(NAMES, sums, strict=True))


def candidate_pairs(
    model: System, data: RetrievalDataModule, split: str, queries: Table
) -> list[CandidatePair]:
    """All candidates of queries that the model knows (gr_as_mvdr §6.3)."""
    row = {identifier: number for number, identifier in enumerate(data.documents["id"][:])}
    candidates, ids = data.list_candidates(split, queries), queries["id"][:]
    found = [(number, row[name]) for number, query in enumerate(ids) for name in candidates[query]]
    return [(query, document) for query, document in found if model.covers(document)]


def candidate_batches(
    data: RetrievalDataModule, queries: Table, pairs: Sequence[CandidatePair]
) -> Iterator[tuple[Sequence[CandidatePair], PairBatch]]:
    """Pairs of like length, and their batch."""
    texts, read, length = (
        data.documents["tokens"],
        data.template.read_document,
        data.document_length,
    )
    documents = {row: read(texts[row], length) for _, row in pairs}
    sources = [data.template.read_query(text, data.query_length) for text in queries["tokens"]]
    ordered = sorted(pairs, key=lambda pair: (len(documents[pair[1]]), pair))
    starts = range(0, len(ordered), _BATCH)
    for start in track(starts, "explaining candidates", total=len(starts)):
        group = ordered[start : start + _BATCH]
        asked, rows = zip(*group, strict=True)
        sides = pad([sources[query] for query in asked]), pad([documents[row] for row in rows])
        yield group, PairBatch(*sides[0], *sides[1], torch.tensor(rows))


@part("analysis")
class FrameworkRanking(Analysis):
    """How well do Eq. 14, Eq. 11 and log p(d | q) rerank, and how far do they agree?

    Each is taken as the sum over target tokens, as in the paper, and as their mean: log p falls
    with every further token, so that sums favour short documents. Other systems than generative
    ones rank by the relevance itself: there is nothing to find.

    Args:
        queries: how many rerank queries of the first test split, evenly spread.
    """

    name = "framework"
    metrics = (
        Metric(
            "rank_correlation",
            "Do two scores order the candidates alike? 1: in the same order, 0: without relation.",
        ),
    )
    words: ClassVar[dict[str, str]] = {
        "all layers": "Ranked by the cross-attention of all layers (Eq. 14).",
        "last layer": "Ranked by the last layer's cross-attention (Eq. 14).",
        "logits": "Ranked by the sum of the logits (Eq. 11).",
        "score own": "Ranked by the system's own score.",
    }

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return getattr(subject.model, "generates", None) == "document"

    def __init__(self, subject: Subject, queries: Count):
        self.model, self.data = subject.model, subject.data
        self.split = self.data.test_splits[0]
        self.queries = spread(self.data.rerank_queries(self.split), queries)

    def finish(self) -> Findings:
        pairs = candidate_pairs(self.model, self.data, self.split, self.queries)
        if not pairs:
            return Findings()
        scores, rows = self._scores(pairs), []
        for (name, form), values in scores.items():
            found = judge(Ranking(values), self.data, self.split, self.queries, QUALITY)
            truth = scores["log_prob", form if form in FORMS else "mean"]
            rows.append({"score": name, "form": form} | _columns(values, truth, found))
        entry = GalleryEntry("framework_ranking", "Ranking by parts of the logit", RANKING_CAPTION)
        figures = [(ranking_bars(rows), entry)]
        return Findings(named(self.name, _metrics(rows)), {"framework_ranking": rows}, figures)

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[CandidatePair]) -> Scores:
        model, data = self.model.eval(), self.data
        keys = [(name, form) for form in FORMS for name in NAMES] + [("score", "own")]
        scores: Scores = {key: defaultdict(dict) for key in keys}
        query_ids, document_ids = self.queries["id"][:], data.documents["id"][:]
        for group, batch in candidate_batches(data, self.queries, pairs):
            explanation = model.explain(batch.to(model.device))
            last = explanation.layers[-1]
            counts = last.document_mask.sum(1).clamp(min=1)
            values = {("score", "own"): last.score}
            for name, value in relevances(explanation).items():
                values |= {(name, "sum"): value, (name, "mean"): value / counts}
            for key, column in values.items():
                for (query, document), value in zip(group, column.tolist(), strict=True):
                    scores[key][query_ids[query]][document_ids[document]] = value
        return scores


def _columns(
    own: Mapping[str, Mapping[str, float]],
    truth: Mapping[str, Mapping[str, float]],
    found: QueryMetrics,
) -> Row:
    """The measures of a row: quality, and correlation with log p of the same form."""
    columns = [
        torch.tensor([[values[d], truth[query][d]] for d in values], dtype=torch.float64).unbind(1)
        for query, values in own.items()
    ]
    by_query = [value for value in (spearman(*pair) for pair in columns) if isfinite(value)]
    quality = average_metrics(found)
    mrr = torch.tensor([[values["mrr@10"]] for values in found.values()])
    low, high = interval(mrr, torch.ones_like(mrr))
    return {
        **{metric: quality[metric] for metric in QUALITY},
        **{"mrr@10_low": float(low[0]), "mrr@10_high": float(high[0])},
        "correlation": pearson(*(torch.cat(part) for part in zip(*columns, strict=True))),
        "rank_correlation": fmean(by_query) if by_query else float("nan"),
        "queries": len(found),
        "pairs": sum(map(len, own.values())),
    }


def _metrics(rows: Sequence[Row]) -> dict[str, float]:
    """MRR@10 of each, and all but log p's own rank correlation with log p.

    The equations are sums over target tokens; the means are what is left of them when documents
    differ in length.
    """
    flat = {}
    for row in rows:
        key = f"{row['score']}/{row['form']}"
        flat |= {f"{key}/mrr@10{end}": row[f"mrr@10{end}"] for end in ("", "_low", "_high")}
        if row["score"] != "log_prob":
            flat[f"{key}/rank_correlation"] = row["rank_correlation"]
    return flat


@styled
def ranking_bars(rows: Sequence[Row]) -> Figure:
    """Two panels of bars, one group a score, one bar a form: the table `framework_ranking`."""
    figure = page_figure()
    forms = ("sum", "mean", "own")
    for axes, (measure, title) in zip(
        figure.subplots(1, len(RANKING_PANELS)), RANKING_PANELS.items(), strict=True
    ):
        for number, form in enumerate(forms):
            values = {row["score"]: row[measure] for row in rows if row["form"] == form}
            shift = 0 if form == "own" else (number - 0.5) * BAR
            bars = axes.bar(
                [place + shift for place, name in enumerate(RANKING_LABELS) if name in values],
                [values[name] for name in RANKING_LABELS if name in values],
                BAR,
                color=COLOURS[number],
                hatch=HATCHES[number],
                edgecolor="black",
                label="the system's own" if form == "own" else f"{form} over target tokens",
            )
            axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
        axes.set_xticks(range(len(RANKING_LABELS)), RANKING_LABELS.values())
        axes.set_title(title)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.12)
        axes.grid(axis="y")
    legend_below(figure, 3)
    return figure
