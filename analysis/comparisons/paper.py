"""A table of a paper as data: the rows that a comparison sets beside our own (conf/paper/)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gr_mvdr.ranking import METRICS

# Where a row's numbers come from: the search, or a form of reranking ("rerank/FORM").
PLACES = ("retrieve", "rerank")
PAPERS = Path(__file__).parents[2] / "conf" / "paper"


@dataclass(frozen=True)
class PaperRow:
    """A row: its name in the paper, and our runs of that kind.

    Attributes:
        systems: of our runs; none for a row that we have no system for.
        values: metric → the paper's value in percent; None where it gives none.
        place: which of our metrics stand beside: "retrieve", the end-to-end search, "rerank", the
            main form of reranking, or "rerank/FORM".
    """

    name: str
    systems: tuple[str, ...]
    values: dict[str, float | None]
    place: str = "retrieve"


@dataclass(frozen=True)
class Paper:
    """A table: its title, the collection of its numbers, its metrics (columns) and rows."""

    title: str
    collection: str
    metrics: tuple[str, ...]
    rows: tuple[PaperRow, ...]


def read_paper(paper: str | Path | Mapping[str, Any]) -> Paper:
    """Reads a paper's table.

    Args:
        paper: the name of a file in `conf/paper`, the path of another one, or its content.

    Raises:
        FileNotFoundError: no such name or path.
        ValueError: a key is missing, a value is no number, or a metric is not one of ours.
    """
    if isinstance(paper, Mapping):
        return _parsed("paper", paper)
    path = Path(paper) if Path(paper).suffix else PAPERS / f"{paper}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in PAPERS.glob("*.yaml")))
        raise FileNotFoundError(f"paper={paper}: must be a YAML file, or one of {known}")
    return _parsed(str(path), OmegaConf.to_container(OmegaConf.load(path)))


def _parsed(source: str, content: Mapping[str, Any]) -> Paper:
    try:
        metrics = tuple(content["metrics"])
        rows = tuple(
            PaperRow(
                row["name"],
                tuple(row["systems"]),
                _numbers(source, row, metrics),
                _place(source, row),
            )
            for row in content["rows"]
        )
        paper = Paper(content["title"], content["collection"], metrics, rows)
    except KeyError as missing:
        raise ValueError(f"{source}: no {missing}") from None
    for metric in metrics:
        if metric not in METRICS:
            raise ValueError(f"{source}: metrics: {metric} must be one of {', '.join(METRICS)}")
    if not rows:
        raise ValueError(f"{source}: rows: must hold at least one")
    return paper


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
    if place not in PLACES and not (isinstance(place, str) and place.startswith("rerank/")):
        raise ValueError(
            f"{source}: rows: {row['name']!r}: place={place} must be retrieve, rerank or "
            "rerank/FORM"
        )
    return place
