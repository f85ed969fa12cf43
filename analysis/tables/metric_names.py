"""The metrics of a run: what they mean, how they are written, and their order in tables.

Each metric is declared once. An analysis declares its metrics in its class (`Analysis.metrics`);
`metrics.toml` declares those of rankings, costs and identifiers, which are measured in many places.
Tables, figures, pages and the glossary read these declarations.

A key of `metrics.json` is a path: the group, where the metric was measured, its name, and sometimes
a part of it: "analysis/exact_match" / "query_to_document" / "hard" / "idf_2_4".
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from omegaconf import OmegaConf

from gr_mvdr.evaluation.metrics import MACRO
from gr_mvdr.files import read_text
from gr_mvdr.options import TARGET, admitting, find_part

LISTED = Path(__file__).parents[2] / "conf/analysis/full.yaml"
GROUPS = ("retrieve", "rerank", "analysis", "cost")
RANKED = GROUPS[:2]
DIRECTIONS = {"query_to_document": "q→d", "document_to_query": "d→q"}
MISSING = "–"
Unit = Literal["", "count", "bytes", "s", "ms", "flops", "rounding"]


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: its part of a key; "#" stands for a number: "gold@#".
        meaning: what it measures, in a sentence.
        label: its name in tables; "" = `name` with spaces.
        unit: "" = a share or a score.
        better: the better direction; None if no direction is better.
        headline: whether summaries show it.
    """

    name: str
    meaning: str
    label: str = ""
    unit: Unit = ""
    better: Literal["high", "low"] | None = None
    headline: bool = False

    @property
    def form(self) -> str:
        """Its name in tables and in the glossary."""
        return self.label or self.name.replace("_", " ")

    @cached_property
    def pattern(self) -> re.Pattern:
        """Matches a part of a key that is `name`, or begins with `name` and "_"."""
        return re.compile(re.escape(self.name).replace(r"\#", r"(\d+)") + "(?=_|$)")


class Chapter(NamedTuple):
    """What pages show under one heading.

    Attributes:
        reading: how to read the chapter.
        metrics: its metrics, in order.
    """

    title: str
    reading: str = ""
    metrics: tuple[Metric, ...] = ()


_DECLARED = tomllib.loads(read_text(Path(__file__).with_name("metrics.toml")))
RANKINGS, COSTS, IDENTIFIERS = (
    tuple(Metric(**declared) for declared in _DECLARED[kind])
    for kind in ("rankings", "costs", "identifiers")
)


@cache
def all_chapters() -> dict[str, Chapter]:
    """Returns name → chapter: analyses as ordered in `conf/analysis/full.yaml`, then the others."""
    listed = OmegaConf.to_container(OmegaConf.load(LISTED).questions)
    chapters: dict[str, Chapter] = {}
    with admitting(listed):
        for settings in listed.values():
            kind = find_part("analysis", settings[TARGET])
            known = chapters.get(kind.name, Chapter(kind.title, kind.reading))
            chapters[kind.name] = known._replace(metrics=known.metrics + kind.metrics)
    chapters["identifiers"] = Chapter("Identifiers", metrics=IDENTIFIERS)
    chapters["adaptation"] = Chapter("Alignment adaptation")
    return {name: chapter for name, chapter in chapters.items() if chapter.title}


def find_chapter(name: str) -> Chapter:
    """Returns the chapter of a name; an unknown name gives an empty chapter with it as title."""
    return all_chapters().get(name) or Chapter(name.replace("_", " ").capitalize())


def find_figures_chapter(figure: str) -> Chapter:
    """Returns a figure's chapter: "exact_match" for "exact_match_heads"; if unknown, a new one."""
    known = [name for name in all_chapters() if f"{figure}_".startswith(f"{name}_")]
    return find_chapter(max(known, key=len, default=figure))


def all_metrics() -> list[Metric]:
    chapters = (metric for chapter in all_chapters().values() for metric in chapter.metrics)
    return [*RANKINGS, *COSTS, *chapters]


class Key(NamedTuple):
    """A parsed key of `metrics.json`.

    Attributes:
        group: one of `GROUPS`.
        chapter: its heading on pages: "Exact match", "Retrieve", "Cost".
        section: where it was measured, a row of the chapter's table: "exact match q→d".
        label: the column: "hard", "R@1", "training", "IDF 2-4".
        metric: its declaration.
        whole: False for a part of the metric, such as one range of IDF.
        headline: whether summaries show it.
        order: the sort key for tables; metrics with equal keys stay in the order of measurement.
    """

    group: str
    chapter: str
    section: str
    label: str
    metric: Metric
    whole: bool
    headline: bool
    order: tuple

    @property
    def name(self) -> str:
        """Its name outside of its chapter: "retrieve test_unseen R@1"."""
        return self.label if self.label.startswith(self.section) else f"{self.section} {self.label}"


@cache
def read_key(key: str) -> Key:
    """Parses a metric's key; the last part with a declaration is the metric's name."""
    group, *parts = key.split("/") if "/" in key else ("", key)
    chapter, place = Chapter(group.capitalize(), metrics=COSTS), 0
    if in_analysis := group == "analysis" and len(parts) > 1:
        chapter, place = find_chapter(parts[0]), [*all_chapters(), parts[0]].index(parts[0])
    names = [_find_name(part, (*chapter.metrics, *RANKINGS)) for part in parts]
    numbers = [number for number, (metric, *_) in enumerate(names) if metric]
    number = numbers[-1] if numbers else len(parts) - 1
    metric, found_at, label = names[number]
    words = [DIRECTIONS.get(part, part) for part in parts[:-1]]
    if group not in RANKED:  # splits and forms of reranking are shown as the user types them
        words = [word.replace("_", " ") for word in words]
    if number < len(words):
        words[number], label = label, _find_name(parts[-1], ())[2]
    section = " ".join([*([] if in_analysis or not group else [group]), *words])
    whole = number == len(parts) - 1
    exact = bool(whole and metric and metric.pattern.fullmatch(parts[-1].removeprefix(MACRO)))
    if group in RANKED:
        headline = exact and (group == "retrieve" or label == "MRR@10")
    else:
        headline = exact and metric.headline and DIRECTIONS.keys() >= {*parts[in_analysis:-1]}
    rank = GROUPS.index(group) if group in GROUPS else len(GROUPS)
    placed = rank, place, not whole, section if group in RANKED else "", found_at
    metric = metric or Metric(parts[-1], "")
    return Key(group, chapter.title, section, label, metric, whole, headline, placed)


def _find_name(part: str, known: Sequence[Metric]) -> tuple[Metric | None, int, str]:
    """Finds the longest declared name that a part of a key begins with.

    Returns:
        The metric, its place in `known`, and the part's label; without such a name the metric is
        None and its place is after all known ones.
    """
    if part.startswith(MACRO):
        metric, place, label = _find_name(part.removeprefix(MACRO), known)
        return metric, place, f"macro {label}"
    begun = [(m, match) for m in known if (match := m.pattern.match(part))]
    if not begun:
        plain = re.sub(r"^idf_(\d+)_(\d+)", r"IDF \1-\2", part).replace("_", " ")
        return None, len(known), DIRECTIONS.get(part, plain)
    metric, match = max(begun, key=lambda pair: pair[1].end())
    label = metric.form.replace("#", "".join(match.groups()))
    return metric, known.index(metric), label + part[match.end() :].replace("_", " ")


# Values -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistic:
    """A metric's mean over seeds and, for two or more, its sample standard deviation.

    `low` and `high` bound a 95 % interval over queries or pairs, if one was measured. It is a mean
    of `n` values; its row has `of`.
    """

    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 1
    of: int = 1

    @classmethod
    def over(cls, values: Sequence[float], of: int = 0) -> "Statistic":
        """Returns the mean and deviation of one or more values; by default `of` is their number."""
        n = len(values)
        return cls(fmean(values), stdev(values) if n > 1 else None, n=n, of=of or n)

    @property
    def few(self) -> str:
        """Returns " (2 seeds)" of a mean over two seeds in a row of more, else ""."""
        return f" ({self.n} seed{'s' * (self.n > 1)})" * (self.n < self.of)


def join_intervals(metrics: Mapping[str, float]) -> dict[str, Statistic]:
    """Joins each metric of a run with its interval, which the run has as KEY_low and KEY_high."""
    return {
        key: Statistic(value, None, metrics.get(f"{key}_low"), metrics.get(f"{key}_high"))
        for key, value in metrics.items()
        if not (key.endswith(("_low", "_high")) and key.rpartition("_")[0] in metrics)
    }


def format_value(key: str, statistic: Statistic | None) -> str:
    """Formats a value: "0.812 ± 0.010", "0.5 [0.4, 0.6]", "12.3 MB (2 seeds)"; "–" for None."""
    if statistic is None:
        return MISSING
    scale, digits, unit = _find_unit(read_key(key), abs(statistic.mean))
    value, *others = (
        MISSING if number is None else f"{number / scale:,.{digits}f}"
        for number in (statistic.mean, statistic.std, statistic.low, statistic.high)
    )
    if 0 < abs(statistic.mean) < 0.001 and unit == "" and digits == 3:
        value = f"{statistic.mean:.1e}"
    if statistic.std is not None:
        value += f" ± {others[0]}"
    if statistic.low is not None:
        value += f" [{others[1]}, {others[2]}]"
    text = f"{value} {unit}".strip() + statistic.few
    return re.sub("(?<!e)-", "−", text)  # a minus sign, but 1.0e-05


def _find_unit(key: Key, value: float) -> tuple[float, int, str]:
    """Returns the divisor of a value, its number of decimals, and the name of its unit."""
    match key.metric.unit:
        case "bytes":
            power = max(0, min(len(str(int(value))) - 1, 14)) // 3
            return 1000.0**power, int(power > 0), ("B", "kB", "MB", "GB", "TB")[power]
        case "flops" if value >= 1e11:
            return 1e12, int(value < 1e14), "TFLOPs"
        case "flops":
            return 1e6, 3 if value < 1e8 else 0, "MFLOPs"
        case "s" | "ms" as unit:
            return 1, int(value < 100), unit
        case "count" | "rounding" as unit:
            return 1, 6 * (unit == "rounding"), ""
    return 1, 3 if value < 10 or key.group != "analysis" else int(value < 1000), ""
