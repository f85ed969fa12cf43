"""The values of each query, in a run's `queries.parquet`: what differences are tested on.

The table has a row for each query of each ranking, analysis and setting of a study: `group`,
`place` and `split` as in `analysis.runs.numbers`, `part` (a study's setting), `query`,
`judgements` (a checksum of a ranking's judgements of the query; else 0), and a column for each
metric.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pandas import DataFrame, MultiIndex, concat

from analysis.runs.numbers import read_table, write_table
from analysis.runs.run_folder import Run
from gr_mvdr.files import reading

QUERIES = "queries.parquet"
# What every run keeps besides data.metrics: comparisons and claims are tested on these.
KEPT = ("mrr@10", "recall@1", "recall@10", "ndcg@10")
WHERE = ["group", "place", "split", "part"]
PLACE = [*WHERE, "query"]
JUDGEMENTS = "judgements"


def tabulate_queries(
    group: str,
    values: DataFrame | Mapping[str, Mapping[str, float]],
    place: str = "",
    split: str = "",
    part: str = "",
    qrels: Mapping[str, Mapping[str, int]] | None = None,
) -> DataFrame:
    """Makes rows of one place from query id → metric → value, or a table with this index."""
    if not isinstance(values, DataFrame):
        values = DataFrame.from_dict(values, orient="index")
    table = values.rename_axis("query").reset_index()
    sums = [0] * len(table)
    if qrels is not None:
        judged = (
            [[d, int(grade)] for d, grade in sorted(qrels[q].items())] for q in table["query"]
        )
        sums = [zlib.crc32(json.dumps(pairs).encode()) for pairs in judged]
    where = dict(zip(WHERE, (group, place, split, part), strict=True))
    return table.assign(**where, **{JUDGEMENTS: sums})[[*PLACE, JUDGEMENTS, *values]]


def keep_queries(run: Path, tables: Iterable[DataFrame]) -> None:
    """Adds rows to a run's table; all earlier rows of their places go, whatever the queries."""
    if tables := [*tables]:
        new, earlier = concat(tables, ignore_index=True), read_queries(run)
        again = MultiIndex.from_frame(earlier[WHERE]).isin(MultiIndex.from_frame(new[WHERE]))
        every = concat([earlier[~again], new], ignore_index=True)
        rows = every.drop_duplicates(PLACE, keep="last", ignore_index=True)
        write_table(run / QUERIES, rows.astype({JUDGEMENTS: np.uint32}))


def read_queries(run: Path) -> DataFrame:
    """Reads a run's `queries.parquet`; the table is empty if nothing was measured by query.

    Raises:
        ValueError: the file is damaged or lacks a column.
    """
    if not (run / QUERIES).exists():
        return DataFrame(columns=[*PLACE, JUDGEMENTS])
    table = read_table(run, QUERIES, [*PLACE, JUDGEMENTS], PLACE)
    with reading(f"{run / QUERIES}: must be the table of a run's queries"):
        numbers = table.drop(columns=PLACE).to_numpy(float)
        if np.isinf(numbers).any() or table[[*PLACE, JUDGEMENTS]].isna().any(axis=None):
            raise ValueError("a value is missing or not finite")
    return table


@dataclass
class JudgedQueries:
    """The values of one system's runs, query by query.

    Attributes:
        runs: one for each seed.
        group, place, split, part: where they were measured.
    """

    runs: Sequence[Run]
    group: str = "retrieve"
    place: str = ""
    split: str = ""
    part: str = ""

    @cached_property
    def seeds(self) -> list[DataFrame]:
        """The rows of each run, in the order of their query ids."""
        own = [self.group, self.place, self.split, self.part]
        tables = (read_queries(run.path) for run in self.runs)
        kept = (table[(table[WHERE] == own).all(axis=1)].drop(columns=WHERE) for table in tables)
        own_rows = (table.set_index("query").sort_index() for table in kept)
        return [t.loc[:, t.notna().any() | (t.columns == JUDGEMENTS)] for t in own_rows]

    @property
    def metrics(self) -> list[str]:
        """The metrics that every run has."""
        return [m for m in self.seeds[0] if m != JUDGEMENTS and all(m in t for t in self.seeds)]

    @cached_property
    def judgements(self) -> dict[str, int] | None:
        """Query → checksum; None if a run lacks these rows or two runs' judgements differ."""
        first, *others = (table[JUDGEMENTS].to_dict() for table in self.seeds)
        return first if first and all(other == first for other in others) else None

    @property
    def missing(self) -> str:
        """Why there are no judgements."""
        name = " ".join(filter(None, (self.group, self.place, self.split, self.part)))
        return f"a run has no {name} in {QUERIES}, or the judgements of its seeds differ"

    def by_seed(self, metric: str) -> DataFrame:
        """Returns the values of a metric: a row for each query, a column for each run's seed."""
        columns = [table[metric] for table in self.seeds]
        return concat(columns, axis=1, keys=[run.seed for run in self.runs])

    def values(self, metrics: Sequence[str]) -> DataFrame:
        """Returns the metrics of each query, averaged over seeds."""
        return DataFrame({name: self.by_seed(name).mean(axis=1) for name in metrics})
