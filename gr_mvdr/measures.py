"""A number is a row where it is measured: what was measured, where, and its value.

A metric is declared once, by whoever measures it; `measures.toml` declares those of rankings, costs
and identifiers, which are measured in many places. Nothing reads a fact about a number from its
name.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

Unit = Literal["", "count", "bytes", "s", "ms", "flops", "rounding"]


class Group(NamedTuple):
    """What was done, such as a search or an analysis: a chapter of a page.

    Attributes:
        name: the first part of its keys: "retrieve", "exact_match".
        title: its heading.
        reading: how to read its numbers.
    """

    name: str
    title: str
    reading: str = ""


RETRIEVE, RERANK = Group("retrieve", "Retrieve"), Group("rerank", "Rerank")
COST, STUDY = Group("cost", "Cost"), Group("study", "Study")
IDENTIFIED = Group("identifiers", "Identifiers")
RANKED = RETRIEVE.name, RERANK.name
UNNAMED = Group("", "")


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: its name in files.
        meaning: what it measures, in a sentence.
        label: its name in tables; by default `name` with spaces.
        unit: "" = a share or a score.
        better: the better direction; None if no direction is better.
        headline: whether summaries show it.
    """

    name: str
    meaning: str = ""
    label: str = ""
    unit: Unit = ""
    better: Literal["high", "low"] | None = None
    headline: bool = False

    def at(self, number: int | str) -> "Metric":
        """Returns the metric at a rank or size, which "#" stands for in a declaration."""
        name, label = (text.replace("#", str(number)) for text in (self.name, self.form))
        return replace(self, name=name, label=label)

    @property
    def form(self) -> str:
        """Its name in tables and in the glossary."""
        return self.label or self.name.replace("_", " ")

    def row(self, value: Any, place: str = "", part: str = "", **others: Any) -> "Measured":
        """Returns a measured value; `others` are further attributes of `Measured`."""
        return Measured(self, float(value), place, part, **others)


@dataclass(frozen=True)
class Measured:
    """A measured number.

    Attributes:
        place: where in the group it was measured: a form of reranking, "query_to_document".
        part: the part of the metric, such as a range of IDF.
        split: a test split other than the first.
        low, high: a 95 % interval.
        n: the number of queries or pairs that the value is a mean of, if it is known.
        label: its name in tables; by default that of the part, or of the metric.
    """

    metric: Metric
    value: float
    place: str = ""
    part: str = ""
    group: Group = UNNAMED
    split: str = ""
    low: float | None = None
    high: float | None = None
    n: int | None = None
    label: str = ""


def keep_finite(rows: Iterable[Measured], group: Group) -> list[Measured]:
    """Returns a group's rows; what could not be measured is left out."""
    bounded = lambda bound: None if bound is None or not isfinite(bound) else float(bound)  # noqa: E731
    return [
        replace(row, group=group, low=bounded(row.low), high=bounded(row.high))
        for row in rows
        if isfinite(row.value)
    ]


_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RANKINGS, COSTS, IDENTIFIERS = (
    {name: Metric(**{"name": name} | one) for name, one in _DECLARED[kind].items()}
    for kind in ("rankings", "costs", "identifiers")
)
OPTIONS: dict[str, str] = _DECLARED["options"]  # of a metric's name → their meanings


def macro(metric: Metric) -> Metric:
    """Returns the mean over groups of queries of a metric's mean in each group (xtr Table 3)."""
    return replace(metric, name=f"macro_{metric.name}", label=f"macro {metric.form}")


def costs(values: Mapping[str, float]) -> list[Measured]:
    """Returns the rows of some costs, by the names of their declarations."""
    return [COSTS[name].row(value, group=COST) for name, value in values.items()]
