"""The metrics of each test query, in a run's `queries.parquet`: what comparisons are tested on.

The table has a row for each query of each ranking: `ranking` ("retrieve",
"rerank/leak_free_mean"), `split` ("" is the first one), `query`, `judgements` (a checksum of the
query's judgements), and a column for each metric.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pandas import DataFrame, concat, read_parquet

from analysis.runs.run_folder import Run
from gr_mvdr.files import check_file, new_file, reading

QUERIES = "queries.parquet"
# What every run keeps besides data.metrics: comparisons and claims are tested on these.
METRICS = ("mrr@10", "recall@1", "recall@10", "ndcg@10")
PLACE = ["ranking", "split", "query"]
JUDGEMENTS = "judgements"


def tabulate_queries(
    ranking: str,
    split: str,
    values: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
) -> DataFrame:
    """Makes the rows of one ranking from query id → metric → value."""
    table = DataFrame.from_dict(values, orient="index").rename_axis("query").reset_index()
    judged = ([[d, int(grade)] for d, grade in sorted(qrels[q].items())] for q in table["query"])
    checksums = [zlib.crc32(json.dumps(pairs).encode()) for pairs in judged]
    table.insert(0, "ranking", ranking)
    table.insert(1, "split", split)
    table.insert(3, JUDGEMENTS, checksums)
    return table


def keep_queries(run: Path, rows: DataFrame) -> None:
    """Adds the rows of one ranking to a run's table, in place of earlier rows of this ranking."""
    if (run / QUERIES).exists():
        kept, (ranking, split) = read_table(run), rows.loc[0, PLACE[:2]]
        others = (kept["ranking"] != ranking) | (kept["split"] != split)
        rows = concat([kept[others], rows], ignore_index=True)
    with new_file(run / QUERIES) as partial:
        rows.to_parquet(partial, engine="pyarrow", index=False)


def read_table(run: Path) -> DataFrame:
    """Reads a run's `queries.parquet`; the table is empty if the run was not tested.

    Raises:
        ValueError: the file is damaged or lacks a column.
    """
    if not (run / QUERIES).exists():
        return DataFrame(columns=[*PLACE, JUDGEMENTS, *METRICS])
    path = check_file(run / QUERIES, run)
    with reading(f"{path}: must be the table of a run's queries"):
        table = read_parquet(path, engine="pyarrow")
        numbers = table[[*METRICS, JUDGEMENTS]].to_numpy(float)
        if not np.isfinite(numbers).all() or table.duplicated(PLACE).any():
            raise ValueError("a value is missing, or a query occurs twice in a ranking")
    return table


@dataclass
class JudgedQueries:
    """The metrics of one group's runs, query by query.

    Attributes:
        runs: one for each seed.
        place: the ranking: "retrieve", "rerank", "rerank/document_to_query".
        split: a further test split; "" is the first one.
    """

    runs: Sequence[Run]
    place: str = "retrieve"
    split: str = ""

    @cached_property
    def seeds(self) -> list[DataFrame]:
        """The rows of each run, in the order of their query ids."""
        tables = (read_table(run.path) for run in self.runs)
        places = {"ranking": self.place, "split": self.split}
        own = (table[(table[[*places]] == [*places.values()]).all(axis=1)] for table in tables)
        return [table.set_index("query").sort_index() for table in own]

    @cached_property
    def judgements(self) -> dict[str, int] | None:
        """Query → checksum; None if a run lacks the ranking or two runs' judgements differ."""
        first, *others = (table[JUDGEMENTS].to_dict() for table in self.seeds)
        return first if first and all(other == first for other in others) else None

    @property
    def missing(self) -> str:
        """Why there are no judgements."""
        name = f"{self.place} {self.split}".strip()
        return f"a run has no {name} in {QUERIES}, or the judgements of its seeds differ"

    def by_seed(self, metric: str) -> np.ndarray:
        """Returns (seeds, Q), in the order of `judgements`."""
        return np.stack([table[metric] for table in self.seeds])

    def values(self, metrics: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns metric → (Q,), averaged over seeds."""
        return {name: self.by_seed(name).mean(axis=0) for name in metrics}
