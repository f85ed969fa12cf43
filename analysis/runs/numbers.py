"""The numbers of a run: one table, with a row for each and what a reader needs to know of it.

`metrics.parquet` holds the table, and `metrics.json` is its export: flat, a key for each number. A
row is found by its columns; no key is ever taken apart.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pandas import DataFrame, concat, isna
from pyarrow import parquet

from analysis.runs.settings import read_settings
from gr_mvdr.files import METRICS_FILE, check_file, check_finite, new_file, reading, write_json
from gr_mvdr.measures import COST, RANKED, STUDY, Measured

NUMBERS = "metrics.parquet"
PLACE = ["group", "place", "split", "metric", "part"]  # no two rows of a run agree in all of them
VALUES = ["value", "low", "high", "n"]
# Label: of the row's own column in tables; form: of its metric; chapter, reading: of its group.
TEXTS = ["label", "form", "meaning", "unit", "better", "chapter", "reading"]
COLUMNS = [*PLACE, *VALUES, *TEXTS, "headline"]
DIRECTIONS = {"query_to_document": "q→d", "document_to_query": "d→q"}
MISSING = "–"
_OUTER = (*RANKED, COST.name, STUDY.name)  # the groups whose keys do not begin with "analysis"


def make_frame(rows: Iterable[Measured]) -> DataFrame:
    """Makes the table of some numbers; of several with one place, the last one counts."""
    lines = []
    for row in rows:
        metric, group = row.metric, row.group
        label = row.label or _words(row.part) or metric.form
        place = group.name, row.place, row.split, metric.name, row.part
        values = row.value, row.low, row.high, row.n
        texts = label, metric.form, metric.meaning, metric.unit, metric.better or ""
        lines.append((*place, *values, *texts, group.title, group.reading, metric.headline))
    frame = DataFrame(lines, columns=COLUMNS)
    return add_keys(frame.drop_duplicates(PLACE, keep="last", ignore_index=True))


def add_keys(frame: DataFrame) -> DataFrame:
    """Adds the column `key`, the name of each number in `metrics.json`: "retrieve/mrr@10"."""
    keys = [
        "/".join(filter(None, ("analysis" * (row.group not in _OUTER), *row[1:])))
        for row in frame[PLACE].itertuples()
    ]
    types = dict.fromkeys(VALUES, float) | {"headline": bool}
    return frame.astype(types).assign(key=keys)


def flatten_rows(frame: DataFrame) -> dict[str, float]:
    """Returns the numbers under their keys of `metrics.json`.

    The numbers of a study are not among them: `study.csv` shows them by setting.
    """
    metrics: dict[str, float] = {}
    for row in frame[frame["group"] != STUDY.name].itertuples():
        metrics[row.key] = row.value
        bounds = {f"{row.key}_{end}": getattr(row, end) for end in ("low", "high")}
        metrics |= {name: value for name, value in bounds.items() if not isna(value)}
    return metrics


def write_numbers(run: Path, frame: DataFrame) -> None:
    """Writes a run's table; ValueError if a number is not finite."""
    check_finite(flatten_rows(frame), run / NUMBERS)
    write_table(run / NUMBERS, frame[COLUMNS])


def export_numbers(run: Path, frame: DataFrame) -> None:
    """Writes `metrics.json`, the last file of a run."""
    write_json(run / METRICS_FILE, flatten_rows(frame))


def read_numbers(run: Path) -> DataFrame:
    """Reads a run's table.

    Raises:
        ValueError: the file is damaged, or a number in it is not finite.
    """
    frame = read_table(run, NUMBERS, COLUMNS, PLACE)
    with reading(f"{run / NUMBERS}: must be the table of a run's numbers"):
        texts = frame[[*PLACE, *TEXTS]].fillna("").astype(str)
        frame = add_keys(frame.assign(**texts))
        read_settings(frame)
        if np.isinf(frame[VALUES]).any(axis=None):
            raise ValueError("a number is not finite")
    check_finite(flatten_rows(frame), run / NUMBERS)
    return frame


def write_table(path: Path, frame: DataFrame) -> None:
    """Writes a table as Parquet (temporary name, then renamed)."""
    table = pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    with new_file(path) as partial:
        parquet.write_table(table, partial, compression="zstd", write_statistics=False)


def read_table(run: Path, name: str, columns: Sequence[str], place: Sequence[str]) -> DataFrame:
    """Reads a Parquet table of a run, whose `place` tells its rows apart."""
    path = check_file(run / name, run)
    with reading(f"{path}: must be a table with the columns {', '.join(columns)}"):
        table = parquet.ParquetFile(path).read().to_pandas(ignore_metadata=True)
        if missing := [column for column in columns if column not in table]:
            raise ValueError(f"it has no {', '.join(missing)}")
        if table.duplicated([*place]).any():
            raise ValueError("two rows are about the same thing")
    return table


# What a reader sees -------------------------------------------------------------------------------


def over_seeds(frames: Sequence[DataFrame]) -> DataFrame:
    """Averages the numbers of one system over its seeds.

    Returns:
        The table with further columns: `std`, the sample standard deviation of two or more seeds;
        `seeds`, how many measured the number; `of`, how many there are. Only a single run has
        intervals: over several seeds the deviation says more.
    """
    if len(frames) == 1:
        return frames[0].assign(std=np.nan, seeds=1, of=1)
    groups = concat(frames).groupby(PLACE, sort=False)
    values, first = groups["value"], groups[[*TEXTS, "headline", "key"]].first()
    table = first.assign(value=values.mean(), std=values.std(), seeds=values.count())
    return table.assign(low=np.nan, high=np.nan, n=np.nan, of=len(frames)).reset_index()


def describe(frame: DataFrame) -> DataFrame:
    """Adds `section`, the row where each number stands, and `name`, its name outside its chapter.

    The rows come in the order of pages: searching, reranking, analyses, costs.
    """
    sections, names = [], []
    for row in frame.itertuples():
        if row.group in RANKED:  # splits and forms of reranking are shown as the user types them
            words = row.group, DIRECTIONS.get(row.place, row.place), row.split
        else:
            words = _words(row.group), _words(row.place), row.form if row.part else ""
        sections.append(" ".join(filter(None, words)))
        starts = row.label.startswith(sections[-1])
        names.append(row.label if starts else f"{sections[-1]} {row.label}")
    order = {name: number for number, name in enumerate(RANKED)} | {COST.name: 3}
    place = frame["group"].map(lambda group: order.get(group, 2))
    known = frame["place"].isin(["", *DIRECTIONS]) | frame["group"].isin(RANKED)
    shown = frame["headline"] & known & (frame["part"] == "")  # summaries show no ranges of IDF
    frame = frame.assign(section=sections, name=names, headline=shown)
    return frame.iloc[np.argsort(place.to_numpy(), kind="stable")]


def _words(text: str) -> str:
    for name, sign in DIRECTIONS.items():
        text = text.replace(name, sign)
    return text.replace("_", " ").replace("/", " ")


def find(frame: DataFrame, group: str, metric: str, **place: str) -> Any | None:
    """Returns the row of a number as a named tuple; None if it was not measured."""
    wanted = {"place": "", "split": "", "part": ""} | place | {"group": group, "metric": metric}
    rows = frame
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return next(rows.itertuples(), None)


def format_value(row: Any | None) -> str:
    """Formats a number: "0.812 ± 0.010", "0.5 [0.4, 0.6]", "12.3 MB (2 seeds)"; "–" for None."""
    if row is None:
        return MISSING
    scale, digits, unit = _find_unit(row.unit, abs(row.value))
    value, std, low, high = (
        f"{getattr(row, name, np.nan) / scale:,.{digits}f}"
        for name in ("value", "std", "low", "high")
    )
    if 0 < abs(row.value) < 0.001 and unit == "" and digits == 3:
        value = f"{row.value:.1e}".replace("e-", "e~")
    if not isna(getattr(row, "std", np.nan)):
        value += f" ± {std}"
    if not isna(row.low):
        value += f" [{low}, {high}]"
    few = getattr(row, "seeds", 1) < getattr(row, "of", 1)
    seeds = f" ({row.seeds} seed{'s' * (row.seeds > 1)})" if few else ""
    # A minus sign, but 1.0e-05.
    return f"{value} {unit}".strip().replace("-", "−").replace("e~", "e-") + seeds


def _find_unit(unit: str, value: float) -> tuple[float, int, str]:
    """Returns the divisor of a value, its number of decimals, and the name of its unit."""
    match unit:
        case "bytes":
            power = max(0, min(len(str(int(value))) - 1, 14)) // 3
            return 1000.0**power, int(power > 0), ("B", "kB", "MB", "GB", "TB")[power]
        case "flops" if value >= 1e11:
            return 1e12, int(value < 1e14), "TFLOPs"
        case "flops":
            return 1e6, 3 if value < 1e8 else 0, "MFLOPs"
        case "s" | "ms":
            return 1, int(value < 100), unit
        case "count" | "rounding":
            return 1, 6 * (unit == "rounding"), ""
    return 1, 3 if value < 10 else int(value < 1000), ""
