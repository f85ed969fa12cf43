"""What the framework's simplifications cost in reranking (gr_as_mvdr §8, Appendix A).

The paper goes from log p(d | q) (Eq. 8) to the sum of logits (Eq. 11) and on to the last layer's
cross-attention (Eq. 14). Each of these ranks the same candidates here.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from analysis.analysis import Findings
from analysis.evaluation import QueryMetrics, average_metrics, judge
from analysis.experiments.framework_ranking_figure import CAPTION, ranking_bars
from analysis.figures import GalleryEntry
from analysis.statistics import interval, pearson, spearman, spread
from analysis.tables import Row
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.parts import part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation
from gr_mvdr.tokenizers import EOS_ID

NAMES = ("last_layer", "all_layers", "logits", "log_prob")
FORMS = ("sum", "mean")
QUALITY = ("mrr@10", "recall@1", "recall@10")
# Pairs explained at once.
_BATCH = 16

# Query id → {document id: value}.
Scores = dict[str, dict[str, float]]


def relevances(explanation: Explanation) -> dict[str, Tensor]:
    """Each name of `NAMES` → (B,) fp64, a sum over the target tokens of each pair.

    "last_layer": rel(d, q) of Eq. 14. "all_layers": the same of every layer's cross-attention,
    added up. "logits": Σ e·h (Eq. 11). "log_prob": log p(d | q) (Eq. 8).
    """
    layers = [pairs.relevance.double() for pairs in explanation.layers]
    paths = explanation.decoder
    sums = layers[-1], sum(layers), paths.logits.double().sum(1), paths.log_probs.double().sum(1)
    return dict(zip(NAMES, sums, strict=True))


@part("experiment")
def measure_framework_ranking(model: Any, data: Any, queries: int) -> Findings:
    """Reranks by Eq. 14, Eq. 11 and log p(d | q), and correlates them; generative systems only.

    Each is taken as the sum over target tokens, as in the paper, and as their mean: log p falls
    with every further token, so that sums favour short documents. The metrics are of the means.
    Other systems rank by the relevance itself: there is nothing to find.

    Args:
        model: a system with `explain`; data: a `RetrievalDataModule`.
        queries: how many rerank queries of the first test split, evenly spread.
    """
    if model.paradigm != "generative" or queries < 1:
        return Findings()
    split = data.test_splits[0]
    chosen = spread(data.rerank_queries(split), queries)
    pairs = _candidate_pairs(model, data, split, chosen)
    if not pairs:
        return Findings()
    scores = _scores(model, data, chosen, pairs)
    rows = []
    for name, form in scores:
        ranking = Ranking(scores[name, form])
        rows.append(_row(name, form, scores, judge(ranking, data, split, chosen, QUALITY)))
    entry = GalleryEntry("framework_ranking", "Ranking by parts of the logit", CAPTION)
    return Findings(
        metrics=_metrics(rows),
        tables={"framework_ranking": rows},
        figures=[(ranking_bars(rows), entry)],
    )


def _candidate_pairs(model: Any, data: Any, split: str, queries: Any) -> list[tuple[int, int]]:
    """(row of the query, row of the document) of all candidates that the model knows."""
    row = {identifier: number for number, identifier in enumerate(data.documents["id"][:])}
    candidates = data.list_candidates(split, queries)
    found = [(n, row[name]) for n, q in enumerate(queries["id"][:]) for name in candidates[q]]
    return [(query, document) for query, document in found if model.covers(document)]


def _scores(
    model: Any, data: Any, queries: Any, pairs: Sequence[tuple[int, int]]
) -> dict[tuple[str, str], Scores]:
    """(name, form) → scores of every pair; the model's own score has the form "own"."""
    keys = [(name, form) for form in FORMS for name in NAMES] + [("score", "own")]
    scores: dict[tuple[str, str], Scores] = {key: {} for key in keys}
    query_ids, document_ids = queries["id"][:], data.documents["id"][:]
    for batch, values in _explained(model, data, queries, pairs):
        for key, column in values.items():
            for (query, document), value in zip(batch, column, strict=True):
                scores[key].setdefault(query_ids[query], {})[document_ids[document]] = value
    return scores


@torch.inference_mode()
def _explained(
    model: Any, data: Any, queries: Any, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[Sequence[tuple[int, int]], dict[tuple[str, str], list[float]]]]:
    """Batches of pairs of like length, and what `_scores` keeps of each."""
    model.eval()
    texts = data.documents["tokens"]
    documents = {
        document: cut(texts[document], data.document_length, EOS_ID) for _, document in pairs
    }
    sources = [cut(tokens, data.query_length, EOS_ID) for tokens in queries["tokens"]]
    ordered = sorted(pairs, key=lambda pair: (len(documents[pair[1]]), pair))
    starts = range(0, len(ordered), _BATCH)
    for start in track(starts, "explaining candidates", total=len(starts)):
        group = ordered[start : start + _BATCH]
        batch = PairBatch(
            *pad([sources[query] for query, _ in group]),
            *pad([documents[document] for _, document in group]),
            torch.tensor([document for _, document in group]),
        )
        yield group, _values(model.explain(batch.to(model.device)))


def _values(explanation: Explanation) -> dict[tuple[str, str], list[float]]:
    pairs = explanation.layers[-1]
    counts = pairs.document_mask.sum(1).clamp(min=1)
    found = {("score", "own"): pairs.score.tolist()}
    for name, value in relevances(explanation).items():
        found |= {(name, "sum"): value.tolist(), (name, "mean"): (value / counts).tolist()}
    return found


def _row(
    name: str, form: str, scores: Mapping[tuple[str, str], Scores], found: QueryMetrics
) -> Row:
    """A row of the table; correlations are with log p of the same form, the score's with means."""
    own = scores[name, form]
    truth = scores["log_prob", form if form in FORMS else "mean"]
    columns = [_aligned(own[query], truth[query]) for query in own]
    by_query = [spearman(*pair) for pair in columns]
    numbers = [value for value in by_query if isfinite(value)]
    quality = average_metrics(found)
    mrr = torch.tensor([[values["mrr@10"]] for values in found.values()])
    low, high = interval(mrr, torch.ones_like(mrr))
    return {
        "score": name,
        "form": form,
        **{metric: quality[metric] for metric in QUALITY},
        **{"mrr@10_low": float(low[0]), "mrr@10_high": float(high[0])},
        "correlation": pearson(*(torch.cat(part) for part in zip(*columns, strict=True))),
        "rank_correlation": sum(numbers) / len(numbers) if numbers else float("nan"),
        "queries": len(found),
        "pairs": sum(map(len, own.values())),
    }


def _aligned(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    names = list(first)
    values = ([side[name] for name in names] for side in (first, second))
    return tuple(torch.tensor(column, dtype=torch.float64) for column in values)


def _metrics(rows: Sequence[Row]) -> dict[str, float]:
    """MRR@10 of each, and all but log p's own rank correlation with log p.

    The equations are sums over target tokens; the means are what is left of them when documents
    differ in length.
    """
    flat = {}
    for row in rows:
        key = f"analysis/framework/{row['score']}/{row['form']}"
        for end in ("", "_low", "_high"):
            flat[f"{key}/mrr@10{end}"] = row[f"mrr@10{end}"]
        if row["score"] != "log_prob":
            flat[f"{key}/rank_correlation"] = row["rank_correlation"]
    return {key: value for key, value in flat.items() if isfinite(value)}
