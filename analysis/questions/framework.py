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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pandas
import torch
from matplotlib.figure import Figure
from pandas import DataFrame, MultiIndex, Series
from torch import Tensor

from analysis.figures import GalleryEntry, forest_figure
from analysis.questions.analysis import Analysis, Findings, PairAnalysis, Subject
from analysis.runs.evaluation import judge
from analysis.statistics import RANK_CORRELATION, interval, spread
from gr_mvdr.batch import PairBatch, batch_by_length, pad
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.measures import Metric
from gr_mvdr.options import Count, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import DecoderPaths, Explanation
from models.base import Table

# Kinds of path that exist in every layer; the table adds a row with their sum over layers.
LAYERED = ("self_attention", "cross_attention", "feed_forward")
TOTAL = "logit"
# Columns of the table of paths → titles of its figure's panels.
PANELS = {
    "covariance_share": "covariance with the\n{}, over tokens",
    "absolute_share": "absolute size,\nover tokens",
    "pair_mean_share": "covariance with the\n{}, over pairs",
}
_BATCH = 16  # pairs
# A variance below this share of the mean square is rounding error.
_CONSTANT = 1e-12


def tabulate_paths(paths: DecoderPaths, mask: Tensor, first: int) -> DataFrame:
    """Returns a row for each token where mask (B, M) is True: its paths' parts and their total.

    Columns: `pair`, numbered from `first`; the paths; `TOTAL`. fp64.
    """
    both, mask = torch.cat([paths.contributions, paths.logits[:, None]], 1), mask.cpu()
    values = both.cpu().double().transpose(1, 2)[mask].numpy()
    frame = DataFrame(values, columns=[*paths.names, TOTAL])
    return frame.assign(pair=first + mask.nonzero()[:, 0].numpy())


def summarise_paths(frame: DataFrame) -> DataFrame:
    """Computes how much each path contributes to the total, over tokens and over pairs.

    A pair's value is the mean over its tokens, which does not depend on the target's length. The
    pairs' values show what distinguishes pairs.

    Args:
        frame: from `tabulate_paths`, with at least one row; its index is `pair`.

    Returns:
        A row for each path, and for each kind in `LAYERED` the sum over its layers.
    """
    sizes = frame.drop(columns=TOTAL).abs()
    # With the clip, a row of zeros has shares of zero.
    absolute = sizes.div(sizes.sum(axis=1).clip(lower=1e-300), axis=0).mean()
    shares = covariance_shares(frame), absolute, covariance_shares(frame.groupby("pair").mean())
    table = DataFrame(dict(zip(PANELS, shares, strict=True)))
    kinds = table.groupby(path_kind).sum(min_count=1)
    for kind in LAYERED:
        table.loc[f"{kind}_all"] = kinds.loc[kind]
    return table.rename_axis("path")


def covariance_shares(frame: DataFrame) -> Series:
    """Computes path → cov(path, total) / var(total); the shares sum to 1.

    A share is negative if the path works against the others; all are NaN if totals do not vary.
    """
    centred = frame - frame.mean()
    covariance = centred.mul(centred[TOTAL], axis=0).sum()
    varies = covariance[TOTAL] > _CONSTANT * frame[TOTAL].pow(2).sum()
    return covariance.drop(TOTAL) / (covariance[TOTAL] if varies else torch.nan)


def path_kind(name: str) -> str:
    """The kind of a path without its layer: "cross_attention_2" is a "cross_attention"."""
    return name.rstrip("_0123456789")


@part("analysis")
class Framework(PairAnalysis):
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
            "The share of the logits' variance from the last layer's cross-attention (Eq. 14).",
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
        Metric(
            "sum_error",
            "The largest relative difference between a logit and the sum of its parts: rounding.",
        ),
    )

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.store is not None and bool(subject.store.path_names)

    def measure(self, batch: Explanation, first: int) -> Iterator[DataFrame]:
        yield tabulate_paths(batch.decoder, batch.layers[-1].document_mask, first)

    def summarise(self, frame: DataFrame) -> Findings:
        frame = frame.set_index("pair")
        error = frame.drop(columns=TOTAL).sum(axis=1) - frame[TOTAL]
        flat = {"sum_error": (error / frame[TOTAL].abs().clip(lower=1)).abs().max()}
        table = summarise_paths(frame)
        for name, path in _main_paths(table).items():
            flat[f"{name}_share"] = table["covariance_share"][path]
            flat[f"{name}_absolute_share"] = table["absolute_share"][path]
        entry = GalleryEntry("framework", "Where the logits come from", PATHS)
        return report(self, table, flat, entry, "logit")


@part("analysis")
@dataclass
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

    pairs: Count

    name, title, reading = Framework.name, Framework.title, Framework.reading
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

    def finish(self) -> Findings:
        model, frames = self.subject.model, []
        for batch in self.subject.pairs(self.pairs, _BATCH, "changing queries"):
            half = len(batch) // 2
            other = {key: getattr(batch, key).roll(half, 0) for key in ("query_ids", "query_mask")}
            # Neighbouring pairs may share a query.
            changed = (batch.query_ids != other["query_ids"]).any(1, keepdim=True)
            explained = model.explain(batch)
            before, after = explained.decoder, model.explain(replace(batch, **other)).decoder
            sides = ((one.contributions, one.logits) for one in (before, after))
            parts, logits = (one - another for one, another in zip(*sides, strict=True))
            change = replace(before, contributions=parts, logits=logits)
            mask = explained.layers[-1].document_mask & changed
            frames.append(tabulate_paths(change, mask, _BATCH * len(frames)))
        frame = pandas.concat(frames).set_index("pair") if frames else DataFrame()
        if frame.empty:
            return Findings()
        table = summarise_paths(frame)
        shares = table["covariance_share"]
        flat = {f"query_{name}_share": shares[path] for name, path in _main_paths(table).items()}
        entry = GalleryEntry("framework_query", "How a query changes the logits", CHANGES)
        return report(self, table, flat, entry, "change of logit")


def _main_paths(table: DataFrame) -> dict[str, str]:
    """The rows of the last and of all cross-attentions, which metrics are about."""
    *_, last = (name for name in table.index if path_kind(name) == "cross_attention")
    return {"last_layer": last, "cross_attention": "cross_attention_all"}


def report(
    analysis: Analysis,
    table: DataFrame,
    values: Mapping[str, float],
    entry: GalleryEntry,
    total: str,
) -> Findings:
    """Returns numbers, the table of paths under the figure's name, and the figure."""
    figure = share_figure(table.drop(index=[f"{kind}_all" for kind in LAYERED]), total)
    rows = table.reset_index().to_dict("records")
    return analysis.findings(analysis.rows(values), {entry.name: rows}, [(figure, entry)])


PATHS = (
    "Each logit of a target token is the sum of these paths. Left: a path's share of the logits' "
    "variance over tokens, cov(path, logit) / var(logit); negative where it works against the "
    "others. Middle: the mean of |path| / Σ |paths|. Right: as left, but for the means over each "
    "pair's tokens. The values of a panel sum to 1."
)
CHANGES = (
    "The same for the change of these logits after another query. Only cross-attention reads the "
    "query; what other paths add came to them through an earlier cross-attention, which Eq. 14 "
    "leaves out."
)


def share_figure(table: DataFrame, total: str) -> Figure:
    """Draws each path's share in a total: a panel for each column of `PANELS`, a row for a path."""
    panels = {column: title.format(total) for column, title in PANELS.items()}
    points = table.rename(columns=panels)[[*panels.values()]].reset_index()
    points = points.melt("path", var_name="place")
    points = points.assign(low=points["value"], high=points["value"])
    points["name"] = points["path"].str.replace("_", " ")
    return forest_figure(points, "", axis="share")


NAMES = ("last_layer", "all_layers", "logits", "log_prob")


def relevances(explanation: Explanation) -> dict[str, Tensor]:
    """Returns, for each of `NAMES`, (B,) fp64 sums over the target tokens of each pair.

    "last_layer": rel(d, q) of Eq. 14. "all_layers": the sum of Eq. 14 over the cross-attention of
    all layers. "logits": Σ e·h (Eq. 11). "log_prob": log p(d | q) (Eq. 8).
    """
    layers = [pairs.relevance.cpu().double() for pairs in explanation.layers]
    paths = explanation.decoder
    logits, log_probs = (part.cpu().double().sum(1) for part in (paths.logits, paths.log_probs))
    sums = layers[-1], sum(layers), logits, log_probs
    return dict(zip(NAMES, sums, strict=True))


def candidate_batches(
    subject: Subject, queries: Table
) -> Iterator[tuple[list[tuple[int, int]], PairBatch]]:
    """Yields all candidates that the model covers (gr_as_mvdr §6.3), in batches of similar length.

    Yields:
        (query row, document row) of each pair, and the batch of these pairs on the model's device.
    """
    data, model = subject.data, subject.model
    row = {name: number for number, name in enumerate(data.documents["id"][:])}
    candidates = data.evaluation.list_candidates(subject.split, queries)
    passages, ids = model.passages, queries["id"][:]
    named_rows = [(n, row[d]) for n, q in enumerate(ids) for d in passages.of(candidates[q])]
    pairs = [(query, document) for query, document in named_rows if model.covers(document)]
    read, texts = data.template, data.documents["tokens"]
    documents = {d: read.read_document(texts[d], data.document_length) for _, d in pairs}
    sources = [read.read_query(tokens, data.query_length) for tokens in queries["tokens"]]
    lengths = [len(documents[document]) for _, document in pairs]
    for places in track(batch_by_length(lengths, _BATCH), "explaining candidates"):
        group = [pairs[place] for place in places]
        sides = pad([sources[q] for q, _ in group]), pad([documents[d] for _, d in group])
        batch = PairBatch(*sides[0], *sides[1], torch.tensor([d for _, d in group]))
        yield group, batch.to(model.device)


@part("analysis")
@dataclass
class FrameworkRanking(Analysis):
    """How well do Eq. 14, Eq. 11 and log p(d | q) rerank, and how far do they agree?

    Each is taken as the sum over target tokens, as in the paper, and as their mean, since log p
    falls with every further token and sums therefore favour short documents. Only systems that
    generate documents are measured; systems that generate nothing rank by the relevance itself.

    Args:
        queries: the number of rerank queries, evenly spread over the first test split.
    """

    queries: Count

    name, title, reading = Framework.name, Framework.title, Framework.reading
    metrics = RANK_CORRELATION, ranking_metric("mrr@10")

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.model.generates == "document"

    def finish(self) -> Findings:
        model, data, split = self.subject.model, self.subject.data, self.subject.split
        queries = spread(data.evaluation.rerank_queries(split), self.queries)
        ids, documents, parts = queries["id"][:], data.documents["id"][:], []
        for pairs, batch in candidate_batches(self.subject, queries):
            explanation = model.explain(batch)
            last, sums = explanation.layers[-1], relevances(explanation)
            lengths = last.document_mask.sum(1).clamp(min=1).cpu()
            scores = {f"{name}/sum": value for name, value in sums.items()}
            scores |= {f"{name}/mean": value / lengths for name, value in sums.items()}
            scores["score/own"] = last.score
            names = [(ids[q], documents[d]) for q, d in pairs]
            index = MultiIndex.from_tuples(names, names=["query", "document"])
            parts.append(DataFrame({key: s.cpu() for key, s in scores.items()}, index))
        if not parts:
            return Findings()
        by_query, rows = pandas.concat(parts).groupby("query"), []
        correlations = by_query.corr("spearman").groupby(level=1).mean()
        for key, truths in correlations.items():
            ranking = {query: own[key].droplevel(0).to_dict() for query, own in by_query}
            judged = judge(model.passages.rank(Ranking(ranking)), data, split, queries, ["mrr@10"])
            values = torch.tensor([[one["mrr@10"]] for one in judged.values()]).double()
            low, high = interval(values)
            bounds = {"low": low, "high": high, "n": len(values)}
            rows.append(ranking_metric("mrr@10").row(values.mean(), key, **bounds))
            truth = "log_prob/sum" if key.endswith("/sum") else "log_prob/mean"
            if key != truth:
                rows += self.rows({"rank_correlation": truths[truth]}, key)
        return self.findings(rows)
