"""Retrieval metrics, named "kind@rank" (gr_as_mvdr §5.1); torchmetrics computes most."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import fsum, log2
from typing import Any, NamedTuple

import yaml

from gr_mvdr.measures import OPTIONS, RANKINGS, Metric

METRICS = ("recall@1", "recall@10", "recall@100", "mrr@10", "ndcg@10")
# Our kinds → torchmetrics' names. recall: the share of relevant documents that are retrieved;
# success: 1 if any relevant document is retrieved; mrr: 1 / the rank of the first relevant
# document; ndcg: gain = grade, discount = log2(rank + 1); precision: the share of the first k
# documents that are relevant; map: the mean over relevant documents of the precision at their
# ranks; judged: the share of the documents at the first k ranks that are judged. All but ndcg and
# judged use binary relevance.
_TORCHMETRICS = {
    "recall": "recall",
    "success": "hit_rate",
    "mrr": "reciprocal_rank",
    "precision": "precision",
    "map": "average_precision",
}
# Kind → the options that its name may have, as in ir_measures.
_OPTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(_TORCHMETRICS, ("rel", "judged_only"))
_OPTIONS |= {"ndcg": ("dcg", "judged_only"), "judged": ()}
KINDS = (*_OPTIONS,)
_NAME = re.compile(r"(\w+)(?:\((.+)\))?@([1-9]\d*)")
_OPTION = re.compile(r"rel=[1-9]\d*|judged_only=(true|false)|dcg=(exp-)?log2")
# Names of ir_measures and ranx → our kinds; letter case is ignored.
_OTHERS = {"r": "recall", "hit_rate": "success", "rr": "mrr", "p": "precision", "ap": "map"}
KNOWN = (
    "recall (R), success (hit_rate), mrr (RR), ndcg, precision (P), map (AP), judged @ a rank, "
    "such as recall@10 or nDCG@10, with the options rel, judged_only, dcg as in RR(rel=2)@10"
)


class NamedMetric(NamedTuple):
    """What the name of a metric says.

    Attributes:
        kind: one of `KINDS`.
        rank: the deepest rank that it reads.
        rel: the least grade of a relevant document; None = that of `evaluate`.
        judged_only: whether documents without a judgement are first removed from the ranking.
        dcg: "exp-log2": the gain is 2^grade − 1 instead of the grade.
    """

    kind: str
    rank: int
    rel: int | None = None
    judged_only: bool = False
    dcg: str = "log2"

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        defaults = self._field_defaults
        return {k: v for k, v in self._asdict().items() if v != defaults.get(k, v)}

    @property
    def suffix(self) -> str:
        """What follows the kind in a name: "@10", "(rel=2)@10"."""
        listed = ",".join(f"{key}={value}" for key, value in self.options.items()).lower()
        return (f"({listed})" if listed else "") + f"@{self.rank}"

    @property
    def name(self) -> str:
        """Our name of the metric, under which its values are stored."""
        return self.kind + self.suffix


@lru_cache
def read_metric(name: str) -> NamedMetric:
    """Reads the name of a metric, ours or that of another library; ValueError if it is unknown."""
    if match := _NAME.fullmatch(re.sub(r"[\s'\"]", "", name.lower())):
        kind, listed, rank = match.groups()
        kind = _OTHERS.get(kind, kind)
        options = listed.split(",") if listed else []
        values = {key: yaml.safe_load(v) for key, _, v in (one.partition("=") for one in options)}
        are_options = all(map(_OPTION.fullmatch, options))
        if kind in KINDS and are_options and values.keys() <= {*_OPTIONS[kind]}:
            return NamedMetric(kind, int(rank), **values)
    raise ValueError(f"{name}: must be {KNOWN}")


def find_metric(name: str) -> str | None:
    """Returns our name of a metric: "mrr@10" for ir_measures' "RR@10"; None if it is unknown."""
    with suppress(ValueError):
        return name_metric(name)
    return None


def name_metric(name: str) -> str:
    """Returns our name of a metric; ValueError if it is unknown."""
    return read_metric(name).name


def rank_of(metric: str) -> int:
    """Returns the deepest rank that a metric reads: 10 for "mrr@10"; ValueError if unknown."""
    return read_metric(metric).rank


def ranking_metric(name: str) -> Metric:
    """Returns the declaration of a metric of rankings, by its name: "recall@10"."""
    metric = read_metric(name)
    declared = RANKINGS[metric.kind]
    notes = (OPTIONS[key].replace("#", str(v)) for key, v in metric.options.items())
    label = declared.label.removesuffix("@#") + metric.suffix
    meaning = " ".join([declared.meaning, *notes])
    return replace(declared, name=metric.name, label=label, meaning=meaning)


@lru_cache(maxsize=2**18)  # many queries have the same pattern: one relevant document at rank r
def measure(metric: NamedMetric, by_rank: tuple[int, ...], missed: tuple[int, ...]) -> float:
    """Computes a metric of one query, except `judged`.

    Args:
        metric: with its `rel`.
        by_rank: the grade at each rank, 0 = not relevant.
        missed: the grades of relevant documents that were not retrieved.
    """
    import torch
    from torchmetrics.functional import retrieval

    kind, rank = metric.kind, metric.rank
    if kind == "ndcg":  # torchmetrics sums in fp32: a perfect ranking would not be exactly 1
        gain_of = (lambda grade: 2**grade - 1) if metric.dcg == "exp-log2" else float
        gain, ideal = (
            fsum(gain_of(grade) / log2(place + 1) for place, grade in enumerate(grades[:rank], 1))
            for grades in (by_rank, sorted(by_rank + missed, reverse=True))
        )
        return gain / ideal if ideal else 0.0
    # Irrelevant documents fill the ranks, so that a missed document never enters the top k.
    # Scores are reversed ranks (no ties); torchmetrics counts a score of 0 as not retrieved.
    depth = max(rank, len(by_rank))
    grade = torch.tensor(by_rank + (0,) * (depth - len(by_rank)) + missed)
    relevant = grade >= metric.rel
    score = torch.cat([torch.arange(depth, 0, -1.0), torch.zeros(len(missed))])
    function = getattr(retrieval, f"retrieval_{_TORCHMETRICS[kind]}")
    value = function(score, relevant, top_k=rank)
    if kind == "map":  # torchmetrics averages only over the relevant documents retrieved
        value = value * retrieval.retrieval_recall(score, relevant, top_k=rank)
    return float(value)
