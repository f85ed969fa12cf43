"""A table of a paper as data: the rows that a comparison sets beside our own (conf/paper/)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gr_mvdr.evaluation.metrics import rank_of

# Where a row's numbers come from: the search, a form of reranking ("rerank/FORM"), or what was
# measured of the alignments ("analysis/…", whose metrics have names of their own).
PLACES = ("retrieve", "rerank")
PAPERS = Path(__file__).parents[2] / "conf" / "paper"


@dataclass(frozen=True)
class PaperRow:
    """A row: its name in the paper, and our runs of that kind.

    Attributes:
        systems: of our runs; none for a row that we have no system for.
        values: metric → the paper's value in percent; None where it gives none.
        place: which of our metrics stand beside: "retrieve", the end-to-end search, "rerank", the
            main form of reranking, "rerank/FORM", or "analysis/…".
        where: key of a run's configuration → its value there ("FirstTokens(k=28)" for a part), or
            a list of values: only such runs are of the row.
        study: column → value of the row of a run's `study.csv` that holds the metrics; nothing:
            they are the run's own.
    """

    name: str
    systems: tuple[str, ...]
    values: dict[str, float | None]
    place: str = "retrieve"
    where: dict[str, Any] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """A table: its title, the collection of its numbers, its metrics (columns) and rows.

    `across`: its rows are of several collections, so that runs over all of them share a table.
    """

    title: str
    collection: str
    metrics: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    across: bool = False


def read_paper(paper: str | Path | Mapping[str, Any]) -> Paper:
    """Reads a paper's table.

    `systems`, `place` and `where` beside the rows hold for every row that does not say otherwise.
    A `grid` stands for many rows: `rows`, value of the configuration's key `key` → a number for
    each of `columns`, which are values of the column `study` of the runs' studies. Its key
    "collection" says that the rows are of several collections.

    Args:
        paper: the name of a file in `conf/paper`, the path of another one, or its content.

    Raises:
        FileNotFoundError: no such name or path.
        ValueError: a key is missing, a value is no number, or a metric is not one of ours.
    """
    if isinstance(paper, Mapping):
        plain = OmegaConf.to_container(paper) if OmegaConf.is_config(paper) else paper
        return _parsed("paper", plain)
    path = Path(paper) if Path(paper).suffix else PAPERS / f"{paper}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PAPERS.glob("*.yaml")))
        raise FileNotFoundError(f"paper={paper}: must be a YAML file, or one of {known}")
    return _parsed(str(path), OmegaConf.to_container(OmegaConf.load(path)))


def _parsed(source: str, content: Mapping[str, Any]) -> Paper:
    try:
        metrics = tuple(content["metrics"])
        shared = {key: content[key] for key in ("systems", "place") if key in content}
        given = _grid_rows(source, content) if "grid" in content else content["rows"]
        rows = tuple(_row(source, shared | row, content, metrics) for row in given)
        across = content.get("grid", {}).get("key") == "collection"
        paper = Paper(content["title"], content["collection"], metrics, rows, across)
    except KeyError as missing:
        raise ValueError(f"{source}: no {missing}") from None
    measured = all(row.place.startswith("analysis/") for row in rows) and rows
    for metric in metrics if not measured else ():
        try:
            rank_of(metric)
        except ValueError as error:
            raise ValueError(f"{source}: metrics: {error}") from None
    if not rows:
        raise ValueError(f"{source}: rows: must hold at least one")
    return paper


def _row(
    source: str, row: Mapping[str, Any], content: Mapping[str, Any], metrics: tuple[str, ...]
) -> PaperRow:
    return PaperRow(
        row["name"],
        tuple(row["systems"]),
        _numbers(source, row, metrics),
        _place(source, row),
        {**content.get("where", {}), **row.get("where", {})},
        dict(row.get("study", {})),
    )


def _grid_rows(source: str, content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that a grid stands for, line by line."""
    grid, (metric,) = content["grid"], content["metrics"]
    columns = grid["columns"]
    for name, values in grid["rows"].items():
        if len(values) != len(columns):
            raise ValueError(
                f"{source}: grid: {name} has {len(values)} numbers, must have {len(columns)}"
            )
        for column, value in zip(columns, values, strict=True):
            yield {
                "name": f"{name}, {column}",
                "where": {grid["key"]: name},
                "study": {grid["study"]: column},
                metric: value,
            }


def _numbers(
    source: str, row: Mapping[str, Any], metrics: tuple[str, ...]
) -> dict[str, float | None]:
    for metric in metrics:
        if not isinstance(row[metric], int | float | None):
            raise ValueError(
                f"{source}: rows: {row['name']!r}: {metric}={row[metric]} must be a number or null"
            )
    return {metric: None if row[metric] is None else float(row[metric]) for metric in metrics}


def _place(source: str, row: Mapping[str, Any]) -> str:
    place = row.get("place", "retrieve")
    # A form belongs to reranking: a search has one result.
    known = isinstance(place, str) and place.startswith(("rerank/", "analysis/"))
    if place not in PLACES and not known:
        raise ValueError(
            f"{source}: rows: {row['name']!r}: place={place} must be retrieve, rerank, "
            "rerank/FORM or analysis/…"
        )
    return place
