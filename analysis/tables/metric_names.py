"""What the metrics of a run mean, how they are written, and in which order they are read.

A metric is declared once, beside what measures it: an analysis lists its own
(`Analysis.metrics`), this file those of rankings, costs and identifiers. Tables, figures, pages and
the glossary read these declarations.

A key of `metrics.json` is a path: a chapter, where it was measured, the metric, and sometimes a
part of it: "analysis/exact_match" / "query_to_document" / "hard" / "idf_2_4".
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from omegaconf import OmegaConf

from gr_mvdr.evaluation.metrics import KINDS, MACRO, METRICS, is_metric
from gr_mvdr.options import TARGET, admitting, find_part

LISTED = Path(__file__).parents[2] / "conf/analysis/full.yaml"
GROUPS = ("retrieve", "rerank", "analysis", "cost")
STAGES = ("load", "train", "index", "retrieve", "rerank", "analyse", "report")  # of a run
DIRECTIONS = {"query_to_document": "q→d", "document_to_query": "d→q"}
KIND_LABELS = dict(zip(KINDS, ("R", "Success", "MRR", "nDCG", "P", "MAP"), strict=True))
HIDDEN = ("recall@100", "ndcg@10")  # of the default metrics of a search, in summaries
MISSING = "–"
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
Unit = Literal["", "count", "bytes", "B", "s", "ms", "flops", "rounding"]


@dataclass(frozen=True)
class Metric:
    """What a number of a run is.

    Attributes:
        name: its part of a key; "#" stands for a number: "gold@#".
        meaning: what it says, in a sentence.
        label: what tables call it; "" = its name, with spaces.
        unit: "" = a share or a score. better: None where no value is better than another.
        headline: whether summaries show it, at rank 10 if it is "…@#".
    """

    name: str
    meaning: str
    label: str = ""
    unit: Unit = ""
    better: Literal["high", "low"] | None = None
    headline: bool = False

    @property
    def form(self) -> str:
        """Its label as a term of the glossary."""
        return self.label or self.name.replace("_", " ")


class Chapter(NamedTuple):
    """What pages show under one heading.

    Attributes:
        reading: how to read it. metrics: in their order. words: further words of their names.
    """

    title: str
    reading: str = ""
    metrics: tuple[Metric, ...] = ()
    words: Mapping[str, str] = {}


COSTS = (
    Metric("train_seconds", "Seconds that training took.", "training", "s", headline=True),
    Metric("index_bytes", "Bytes of the index on disk.", "index", "bytes", headline=True),
    Metric("searched_bytes", "Bytes of the index that a search reads.", "bytes searched", "bytes"),
    Metric(
        "query_ms_p50",
        "Milliseconds of a single query, encoding included: half of the queries are faster.",
        *("query, median", "ms"),
        headline=True,
    ),
    Metric(
        "query_ms_p95",
        "Milliseconds of a single query: 95 of 100 are faster.",
        *("query, 95th percentile", "ms"),
    ),
    Metric("query_ms", "Milliseconds of a single query.", unit="ms"),
    Metric("query_cpu_ms", "Milliseconds of computing time of a single query.", unit="ms"),
    Metric("search_ms", "Milliseconds of a query's search without encoding.", unit="ms"),
    Metric("stage_ms", "Milliseconds of a stage of the pipeline.", unit="ms"),
    Metric(
        "own_memory_bytes",
        "The peak memory without mapped files, which the system takes back if it needs room.",
        *("own memory", "bytes"),
    ),
    Metric(
        "peak_memory_bytes",
        "The most main memory that the run, or a stage of it, held at a time, mapped files "
        "included.",
        *("peak memory", "bytes"),
        headline=True,
    ),
    Metric(
        "gpu_memory_bytes",
        "The most memory that tensors held on a GPU at a time.",
        *("GPU memory", "bytes"),
    ),
    Metric("index_seconds", "Seconds that indexing took.", unit="s"),
    Metric("bytes_per_token", "Bytes of the index for each stored token.", unit="B"),
    Metric("head_bytes", "Memory of the output table and of its logits for a batch.", unit="bytes"),
    Metric("document_floats", "Numbers that are stored for a document.", unit="count"),
    Metric("candidates", "Documents that a query's search scores.", unit="count"),
    Metric("scored_tokens", "Tokens of documents that a query's search scores.", unit="count"),
    Metric(
        "scoring_flops",
        "Operations of scoring a query's candidates, counted as in XTR.",
        unit="flops",
    ),
    Metric(
        "joint_flops",
        "Operations that need both texts, for a query's candidates.",
        unit="flops",
    ),
    Metric("encoder_calls", "Texts that the encoder reads.", unit="count"),
)
RECALL_OF_EXACT = Metric(
    "recall_of_exact@#",
    "The share of the exact search's first documents that this approximate search finds.",
    better="high",
)
IDENTIFIERS = (
    Metric("documents", "How many documents there are.", unit="count"),
    Metric("assigned", "How many documents have an identifier.", unit="count"),
    Metric("collision_rate", "The share of documents that share their identifier with another."),
    Metric("mean_length", "The mean length of an identifier, in tokens."),
    Metric("min_length", "The length of the shortest identifier, in tokens.", unit="count"),
    Metric("max_length", "The length of the longest identifier, in tokens.", unit="count"),
    Metric("branching", "How many tokens can follow a beginning of an identifier, on average."),
    Metric("code_usage", "The share of a level's codes that some document has."),
    Metric(
        "code_entropy",
        "Entropy of a level's codes over the documents, in bits: even use has log₂ of their "
        "number.",
    ),
    Metric(
        "code_collision_rate",
        "The share of documents whose codes another document has, too, before a number is added.",
    ),
    Metric("largest_code_group", "The most documents that have the same codes.", unit="count"),
    Metric("reconstruction_error", "The share of the vectors' variance that their codes lose."),
)
# Chapters that are no analysis', and figures whose name does not begin with their chapter's.
_OTHERS = {
    "identifiers": Chapter("Identifiers", metrics=IDENTIFIERS),
    "adaptation": Chapter("Alignment adaptation", metrics=COSTS),
    "study": Chapter("Study"),
}
_FIGURES = {"alignment_curve": "curve"}
# Words of metrics that several chapters have.
WORDS = {
    "cost": "What the system takes: time, memory, disk.",
    "pairs": "How many pairs were measured.",
    "queries": "How many queries were measured.",
    "document": "One text of the collection; as a label of the analysis: tokens of the document.",
    "query": "What is searched for; as a label of the analysis: tokens of the query.",
    "identifiers": "What documents are called, see docid.",
    "own": "As the system itself aligns, not as systems are made comparable.",
    "mean": "As a mean over the tokens.",
    "sum": "As a sum over the tokens.",
    "recall": "The share of what is right that was found: of relevant documents, or of the tokens "
    "that answer the question.",
}


@cache
def all_chapters() -> dict[str, Chapter]:
    """Name → chapter: the analyses in the order of `conf/analysis/full.yaml`, then the others."""
    listed = OmegaConf.to_container(OmegaConf.load(LISTED).questions)
    found: dict[str, Chapter] = {}
    with admitting(listed):
        for settings in listed.values():
            kind = find_part("analysis", settings[TARGET])
            known = found.get(kind.name, Chapter(kind.title, kind.reading))
            metrics, words = known.metrics + kind.metrics, {**known.words, **kind.words}
            found[kind.name] = known._replace(metrics=metrics, words=words)
    return {name: chapter for name, chapter in found.items() if chapter.title} | _OTHERS


def find_chapter(name: str) -> Chapter:
    """A chapter by its name; an unknown one is called by its name."""
    words = name.replace("_", " ")
    return all_chapters().get(name) or Chapter(words[:1].upper() + words[1:])


def find_figures_chapter(name: str) -> Chapter:
    """A figure's chapter: "exact_match" of "exact_match_heads"; an unknown figure has its own."""
    found = [known for known in all_chapters() if name == known or name.startswith(f"{known}_")]
    return find_chapter(_FIGURES.get(name) or max(found, key=len, default=name))


def place_chapter(name: str) -> int:
    """A chapter's number in the order of pages; unknown ones come last."""
    known = list(all_chapters())
    return known.index(name) if name in known else len(known)


# A metric by its key ------------------------------------------------------------------------------


def group(key: str) -> str:
    """The first part: "retrieve/test_unseen/recall@1" belongs to "retrieve"."""
    return key.split("/")[0]


@cache
def find_metric(key: str) -> tuple[int, int, Metric]:
    """The metric of a key: its place in the order of its chapter, the part of the key that names
    it, and its declaration. A name begins with a declared one, "hard_matched" with "hard"."""
    parts = key.split("/")
    known = _declared(key)
    for number in reversed(range(len(parts))):
        part = parts[number].removeprefix(MACRO)
        if is_metric(part):
            better = "high" if group(key) in ("retrieve", "rerank") else None
            place = KINDS.index(part.partition("@")[0]) - len(KINDS)  # before all others
            return place, number, Metric(part, "", better=better)
        exact = [n for n, metric in enumerate(known) if _as_pattern(metric.name).fullmatch(part)]
        begun = [n for n, metric in enumerate(known) if part.startswith(f"{metric.name}_")]
        if exact or begun:
            place = exact[0] if exact else max(begun, key=lambda n: len(known[n].name))
            return place, number, known[place]
    return len(known), len(parts) - 1, Metric(parts[-1], "")


def _declared(key: str) -> tuple[Metric, ...]:
    parts = key.split("/")
    if parts[0] == "analysis" and len(parts) > 1:
        return find_chapter(parts[1]).metrics
    return (RECALL_OF_EXACT, *COSTS) if parts[0] in ("cost", "retrieve") or len(parts) == 1 else ()


def _as_pattern(name: str) -> re.Pattern:
    return re.compile(re.escape(name).replace(r"\#", r"\d+"))


def has_part(key: str) -> bool:
    """Whether a key is a part of its metric: one range of IDF, one stage of a run."""
    return find_metric(key)[1] < key.count("/")


def table(key: str) -> tuple[str, bool, str]:
    """What shares a table: a chapter's metrics; those by parts have others, one for each unit."""
    return chapter(key), has_part(key), find_metric(key)[2].unit if has_part(key) else ""


def chapter(key: str) -> str:
    """The heading of a key's chapter: "Retrieve", "Exact match", "Cost"."""
    if group(key) == "analysis" and key.count("/") > 1:
        return find_chapter(key.split("/")[1]).title
    return group(key).capitalize()


def section(key: str) -> str:
    """What a row of a chapter's table is called: "retrieve test_unseen", "exact match q→d"."""
    first, *middle = key.split("/")[:-1]
    if first == "analysis":
        return " ".join(map(_word, middle))
    return " ".join([first, *map(_name, middle)])


def label(key: str) -> str:
    """What a column is called: "R@1", "hard", "IDF 2-4", "training"."""
    return _word(key.split("/")[-1])


def full_label(key: str) -> str:
    """A metric's name where it has no heading: "retrieve test_unseen R@1"."""
    if "/" not in key or key.startswith("analysis/search/"):  # "search error@10"
        return label(key)
    return f"{section(key)} {label(key)}"


def _word(part: str) -> str:
    if part.startswith("idf_"):
        return "IDF " + part.removeprefix("idf_").replace("_", "-")
    return _name(part).replace("_", " ")


def _name(part: str) -> str:
    """Splits and forms of reranking are shown as the user types them."""
    if part.startswith(MACRO):
        return f"macro {_name(part.removeprefix(MACRO))}"
    kind, _, rank = part.partition("@")
    return f"{KIND_LABELS[kind]}@{rank}" if is_metric(part) else _labels().get(part, part)


@cache
def _labels() -> dict[str, str]:
    return DIRECTIONS | {metric.name: metric.label for metric in all_metrics() if metric.label}


def all_metrics() -> list[Metric]:
    chapters = (metric for chapter in all_chapters().values() for metric in chapter.metrics)
    return [RECALL_OF_EXACT, *COSTS, *chapters]


def order(key: str) -> tuple:
    """Sorts metrics: by group and chapter, the main split first, then as they are declared."""
    parts, (place, number, _) = key.split("/"), find_metric(key)
    rank = GROUPS.index(parts[0]) if parts[0] in GROUPS else len(GROUPS)
    if parts[0] == "analysis":
        where = [list(DIRECTIONS).index(part) for part in parts if part in DIRECTIONS]
        names = place_chapter(parts[1]), has_part(key), where, place
    else:
        names = has_part(key), number, "/".join(parts[1:number]), place
    return rank, *names, *_natural(key)


def _natural(key: str) -> list[tuple[int, int, str]]:
    """Numbers in a text count as numbers; a run's stages come in their own order."""
    stage = key.rpartition("/")[2]
    own = [(0, STAGES.index(stage), "")] if stage in STAGES else []
    found = re.split(r"(\d+)", key)
    return own + [(0, int(t), "") if t.isdigit() else (1, 0, t) for t in found]


def find_splits(keys: Iterable[str]) -> set[str]:
    """The names of further test splits, in the middle of their metrics' keys."""
    return {k.split("/")[1] for k in keys if k.startswith("retrieve/") and k.count("/") == 2}


def best(key: str, means: list[float]) -> float | None:
    """The best of several means; None where no value is better than another."""
    better = "low" if group(key) == "cost" else find_metric(key)[2].better
    return {"high": max, "low": min}[better](means) if better and len(means) > 1 else None


def heading(key: str, splits: set[str]) -> tuple[str, str]:
    """A table's heading and the form of reranking: ("rerank test_unseen", "leak_free")."""
    if group(key) != "rerank":
        return section(key), ""
    middle = key.split("/")[1:-1]
    split = [part for part in middle if part in splits]
    return " ".join(["rerank", *split]), " ".join(_name(p) for p in middle if p not in splits)


def headlines(keys: list[str], splits: set[str]) -> list[str]:
    """The metrics that a summary shows: of a search's default ones all but two, others always."""
    searched = {key.split("/")[-1] for key in keys if group(key) == "retrieve"}
    hidden = HIDDEN if searched >= set(METRICS) >= set(filter(is_metric, searched)) else ()
    return [key for key in keys if _is_headline(key, splits) and key.split("/")[-1] not in hidden]


def _is_headline(key: str, splits: set[str]) -> bool:
    *middle, name = key.split("/")[1:]
    match group(key):
        case "retrieve":
            return is_metric(name.removeprefix(MACRO))
        case "rerank":
            return name == "mrr@10" and not splits.intersection(middle)
        case "analysis":
            middle = middle[1:]
    _, number, metric = find_metric(key)
    whole = number == key.count("/") and _as_pattern(metric.name).fullmatch(name)
    at_ten = "@" not in name or name.endswith("@10")
    return bool(metric.headline and whole and at_ten and DIRECTIONS.keys() >= set(middle))


# Values -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistic:
    """A metric over seeds: mean, and the sample's standard deviation of two or more.

    `low` and `high` are a 95 % interval over queries or pairs, where one was measured.
    """

    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def over(cls, values: Sequence[float]) -> "Statistic":
        """Mean and deviation of one value or more."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


def bounds(key: str) -> tuple[str, str]:
    """The metrics that hold the ends of a metric's interval, where it has one."""
    return f"{key}_low", f"{key}_high"


def drop_bounds(keys: Iterable[str]) -> list[str]:
    """The metrics without those that are an end of another's interval."""
    keys = list(keys)
    ends = {end for key in keys if set(bounds(key)) <= set(keys) for end in bounds(key)}
    return [key for key in keys if key not in ends]


def join_intervals(metrics: Mapping[str, float]) -> dict[str, Statistic]:
    """The metrics of one run, each with its interval."""
    return {
        key: Statistic(metrics[key], None, *map(metrics.get, bounds(key)))
        for key in drop_bounds(metrics)
    }


def text(key: str, statistic: Statistic | None) -> str:
    """A value for people: "0.812 ± 0.010", "0.5 [0.4, 0.6]", "12.3 MB", and "–" for none."""
    if statistic is None:
        return MISSING
    scale, digits, unit = _unit(key, statistic.mean)
    value = f"{statistic.mean / scale:,.{digits}f}"
    if group(key) == "analysis" and 0 < abs(statistic.mean) < 0.001 and digits == 3:
        value = f"{statistic.mean:.1e}"
    if statistic.std is not None:
        value += f" ± {statistic.std / scale:,.{digits}f}"
    if statistic.low is not None and statistic.high is not None:
        value += f" [{statistic.low / scale:,.{digits}f}, {statistic.high / scale:,.{digits}f}]"
    return f"{value} {unit}".strip()


def _unit(key: str, value: float) -> tuple[float, int, str]:
    """What a value is divided by, its decimals, and the name of its unit."""
    match find_metric(key)[2].unit:
        case "bytes":
            power = max(0, min(len(str(int(value))) - 1, 14)) // 3
            return 1000.0**power, int(power > 0), BYTE_UNITS[power]
        case "B":
            return 1, 1, "B"
        case "flops":
            return 1e6, 3 if value < 1e8 else 0, "MFLOPs"
        case "s":
            return 1, 0 if value >= 100 else 1, "s"
        case "ms":
            return 1, 1, "ms"
        case "count":
            return 1, 0, ""
        case "rounding":
            return 1, 6, ""
    if group(key) == "analysis" and abs(value) >= 2:
        return 1, 0 if value == int(value) or abs(value) >= 1000 else 1 + (abs(value) < 100), ""
    return 1, 3, ""
