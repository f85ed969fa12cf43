"""How metrics are named, ordered, formatted and judged in tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from statistics import fmean, stdev

from analysis import chapters
from gr_mvdr.evaluation.metrics import KINDS, MACRO, METRICS, is_metric

GROUPS = ("retrieve", "rerank", "analysis", "cost")
# "recall@1": "R@1"
KIND_LABELS = dict(zip(KINDS, ("R", "Success", "MRR", "nDCG", "P", "MAP"), strict=True))
LABELS = {
    "train_seconds": "training",
    "index_bytes": "index",
    "searched_bytes": "bytes searched",
    "query_ms_p50": "query, median",
    "query_ms_p95": "query, 95th percentile",
    "own_memory_bytes": "own memory",
    "peak_memory_bytes": "peak memory",
    "gpu_memory_bytes": "GPU memory",
    "query_to_document": "q→d",
    "document_to_query": "d→q",
    "model_ms_per_step": "a step, model",
    "constraint_ms_per_step": "a step, constraint",
}
STAGES = ("load", "train", "index", "retrieve", "rerank", "analyse", "report")  # of a run
METRIC_ORDER = [*LABELS, *STAGES]
# What a summary shows of the analysis, so far as it was measured.
HEADLINES = (
    "analysis/exact_match/*_to_*/hard",
    "analysis/exact_match/*_to_*/soft",
    "analysis/low_rank/relative_error*",
    "analysis/framework/cross_attention_share",
    "analysis/framework/last_layer_share",
    "analysis/gold/*_to_*/aer",
    "analysis/search/search_error@10",
    "analysis/search/model_error@10",
)
HIDDEN = ("recall@100", "ndcg@10")
COUNTS = (
    *("queries", "documents", "assigned", "min_length", "max_length", "largest_code_group"),
    *("candidates", "scored_tokens", "document_floats"),
)
MISSING = "–"
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


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


def find_splits(keys: Iterable[str]) -> set[str]:
    """The names of further test splits, in the middle of their metrics' keys."""
    return {k.split("/")[1] for k in keys if k.startswith("retrieve/") and k.count("/") == 2}


def group(key: str) -> str:
    """The first part: "retrieve/test_unseen/recall@1" belongs to "retrieve"."""
    return key.split("/")[0]


def is_bin(key: str) -> bool:
    """Is this one IDF bin of a metric?"""
    return "/idf_" in key


def is_search(key: str) -> bool:
    """Is this a diagnosis of a generative system's search?"""
    return key.startswith("analysis/search/")


def is_memory(key: str) -> bool:
    """Is this the memory of one stage of a run?"""
    return key.startswith("cost/") and "_memory_bytes/" in key


def table(key: str) -> str:
    """What shares a table in its group: each analysis, IDF bins, a search's parts, the memory."""
    if is_search(key):
        return section(key)
    return f"{chapter(key)}, {'bins' if is_bin(key) else 'memory' if is_memory(key) else ''}"


def chapter(key: str) -> str:
    """What a page shows under one heading: "Retrieve", "Exact match", "Cost"."""
    if group(key) == "analysis" and key.count("/") > 1:
        return chapters.title(chapters.of_metric(key))
    return group(key).capitalize()


def section(key: str) -> str:
    """The heading of a metric: "retrieve test_unseen", "exact match q→d"."""
    first, *middle = key.split("/")[:-1]
    if first == "analysis":
        return " ".join(map(_word, middle))
    return " ".join([first, *map(_name, middle)])


def label(key: str) -> str:
    """The metric's own name, short: "R@1", "hard", "IDF 2-4", "training"."""
    return _word(key.split("/")[-1])


def full_label(key: str) -> str:
    """The metric's name where it has no heading: "retrieve test_unseen R@1"."""
    return label(key) if is_search(key) else f"{section(key)} {label(key)}"


def column_label(key: str) -> str:
    """A column's name in a study's table, where metrics of the search have no group."""
    return full_label(key) if "/" in key else label(key)


def _word(part: str) -> str:
    if part.startswith("idf_"):
        return "IDF " + part.removeprefix("idf_").replace("_", "-")
    return _name(part).replace("_", " ")


def _name(part: str) -> str:
    """Splits and forms are shown as the user types them."""
    if part.startswith(MACRO):
        return f"macro {_name(part.removeprefix(MACRO))}"
    kind, _, rank = part.partition("@")
    return f"{KIND_LABELS[kind]}@{rank}" if is_metric(part) else LABELS.get(part, part)


def order(key: str) -> tuple:
    """Sorts metrics: by group, the main split before others, recall before MRR."""
    parts = key.split("/")
    rank = GROUPS.index(parts[0]) if parts[0] in GROUPS else len(GROUPS)
    if parts[0] == "analysis":
        measured = rank, chapters.place(parts[1])
        if is_search(key):
            return *measured, len(parts), parts[2:-1], *_search_place(parts[-1]), key
        return *measured, parts[1], int(is_bin(key)), min(map(_place, parts)), key
    return rank, len(parts), "/".join(parts[:-1]), _place(parts[-1]), key


def _place(part: str) -> tuple[int, int]:
    """Kinds of metrics in their order, each by rank; then the other names."""
    part = part.removeprefix(MACRO)
    kind, _, rank = part.partition("@")
    if is_metric(part):
        return KINDS.index(kind), int(rank)
    place = METRIC_ORDER.index(part) if part in METRIC_ORDER else len(METRIC_ORDER)
    return len(KINDS) + place, 0


def _search_place(name: str) -> tuple:
    """Depth by depth, the errors after the recall; steps as numbers."""
    kind, _, number = name.partition("@") if "@" in name else name.rpartition("_")
    return not number.isdigit(), int(number) if number.isdigit() else 0, _place(name), kind


def best(key: str, means: list[float]) -> float | None:
    """The best of several means: high for quality, low for cost, None where neither is better."""
    chosen = {"retrieve": max, "rerank": max, "cost": min}.get(group(key))
    if "_error@" in key:
        chosen = min
    return chosen(means) if chosen and len(means) > 1 else None


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
    name = key.split("/")[-1]
    match group(key):
        case "retrieve":
            return is_metric(name.removeprefix(MACRO))
        case "rerank":
            return name == "mrr@10" and not splits.intersection(key.split("/")[1:-1])
        case "analysis":
            return any(
                fnmatch(key, known) and key.count("/") == known.count("/") for known in HEADLINES
            )
        case _:
            return name in ("train_seconds", "index_bytes", "query_ms_p50", "peak_memory_bytes")


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
    if key.endswith("_bytes") or is_memory(key):
        power = max(0, min(len(str(int(value))) - 1, 14)) // 3
        return 1000.0**power, 1 if power else 0, BYTE_UNITS[power]
    if key.endswith("/bytes_per_token"):
        return 1, 1, "B"
    if "_flops" in key:
        return 1e6, 3 if value < 1e8 else 0, "MFLOPs"
    if key.endswith("_seconds"):
        return 1, 0 if value >= 100 else 1, "s"
    if "_ms" in key:
        return 1, 1, "ms"
    if "/lost_rank/" in key or key.split("/")[-1] in COUNTS:
        return 1, 0, ""
    if key.endswith("/score_difference"):
        return 1, 6, ""
    if group(key) == "analysis" and abs(value) >= 2:
        return 1, 0 if value == int(value) or abs(value) >= 1000 else 1 + (abs(value) < 100), ""
    return 1, 3, ""
