"""Short training runs for tests: their configurations, and a tiny collection."""

import json
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pandas
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pytest import MonkeyPatch

from analysis.questions.alignment_store import AlignmentStore, StoreDescription, write_alignments
from analysis.runs.numbers import export_numbers, flatten_rows, make_frame, write_numbers
from gr_mvdr.evaluation.metrics import find_metric, ranking_metric
from gr_mvdr.measures import (
    COST,
    COSTS,
    RERANK,
    RETRIEVE,
    Group,
    Measured,
    Metric,
)
from gr_mvdr.relevance import Explanation

ROOT = Path(__file__).parents[1]
# Two steps of training on fifty documents, every analysis on a few pairs.
SMALL = ("experiment=smoke", "logger=none", "data.n_documents=50")
NO_ANALYSIS = ("analysis=none", "analysis.pairs=0", "analysis.curve_pairs=0")
# A backbone of 32 dimensions, for tests that need a trained system and no good one.
TINY = ("backbone.shape.d_model=32", "backbone.shape.d_kv=8", "backbone.shape.d_ff=64")


def compose_config(name: str, *overrides: str) -> DictConfig:
    """The configuration of a command: `conf/NAME.yaml` under overrides."""
    from conf.composition import register_experiments, register_resolvers

    register_resolvers()
    register_experiments()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, list(overrides))


def small(folder: Path, *overrides: str, name: str = "run") -> DictConfig:
    """What `train` makes a short run of, in `folder/name`."""
    return compose_config("train", *SMALL, f"output={folder}", f"name={name}", *overrides)


def command(*words: str, folder: Path | str = ROOT) -> int | str:
    """What `python WORDS` does, in this process: its exit status, or the line that it ends with.

    For `train.py …` and `-m MODULE …`. That processes start and end well is tested once for each
    command; the others save the imports.
    """
    module, *arguments = words[1:] if words[0] == "-m" else words
    kept = mock.patch.dict(os.environ)  # a sweep that is interrupted leaves its group there
    with MonkeyPatch.context() as patch, warnings.catch_warnings(), kept:
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        patch.chdir(folder)
        patch.setattr(sys, "argv", [module, *arguments])
        handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        try:
            runpy.run_module(module.removesuffix(".py"), run_name="__main__")
        except SystemExit as ended:
            return ended.code or 0
        finally:
            for kind, handler in handlers.items():
                signal.signal(kind, handler)
    return 0


@contextmanager
def undrawn() -> Iterator[None]:
    """Within it figures are made and saved empty: drawing takes most of an analysis' time."""
    from matplotlib.figure import Figure

    from analysis.figures import save_figure

    with MonkeyPatch.context() as patch:
        empty = partial(save_figure, Figure(figsize=(0.1, 0.1)))
        patch.setattr("analysis.figures.save_figure", lambda _, to, name: empty(to, name))
        yield


def write_store(
    folder: Path,
    description: StoreDescription,
    *explanations: Explanation,
    pairs: Sequence[tuple[str, str]] | None = None,
    token: str = "▁w{}",
    special: Sequence[int] = (),
) -> AlignmentStore:
    """A store of alignments; by default query n goes with document n."""
    numbers = range(sum(map(len, explanations)))
    pairs = pairs or [(f"q{n}", f"d{n}") for n in numbers]
    name = lambda tokens: [token.format(n) for n in tokens]  # noqa: E731
    given = folder, description, pairs, explanations, lambda explanation: explanation
    return write_alignments(*given, name, special)


def beir(folder: Path) -> Path:
    """Writes a collection of 12 documents in BEIR layout; returns its folder."""
    fruits = "apple pear plum cherry quince fig grape lemon lime melon peach date".split()
    documents = [
        {"_id": f, "title": f, "text": f"The {f} is a fruit, number {i}."}
        for i, f in enumerate(fruits)
    ]
    queries = [
        {"_id": f"{kind}-{f}", "text": f"{word} {f}?"}
        for f in fruits
        for kind, word in (("a", "what is a"), ("b", "who eats"))
    ]
    pairs = {
        split: [(f"{kind}-{f}", f) for f in fruits]
        for split, kind in (("train", "a"), ("test", "b"))
    }
    return write_beir(folder, documents, queries, pairs)


def write_beir(folder: Path, documents: list, queries: list, qrels: dict) -> Path:
    """Writes rows and pairs of ids by split in BEIR layout; returns the folder."""
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, pairs in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in pairs)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def flat(rows: Iterable[Measured]) -> dict[str, float]:
    """The numbers under their keys of `metrics.json`."""
    return flatten_rows(make_frame(rows))


def read_lines_of(path: Path) -> list[dict]:
    """The rows of a CSV file, without empty cells."""
    table = pandas.read_csv(path, keep_default_na=False, na_values=[""], dtype={"query": str})
    rows = table.astype(object).to_dict("records")
    whole = lambda v: int(v) if isinstance(v, float) and v.is_integer() else v  # noqa: E731
    return [{name: whole(v) for name, v in row.items() if v == v} for row in rows]


def rows_of(metrics: Mapping[str, float], splits: Sequence[str] = ()) -> list[Measured]:
    """Rows from keys of `metrics.json`, as tests write them."""
    groups = {group.name: group for group in (RETRIEVE, RERANK, COST)}
    rows = []
    for key, value in metrics.items():
        name, *where = key.removeprefix("analysis/").split("/")
        part = where.pop() if where[-1].startswith("idf_") else ""
        label = f"IDF {part[4:].replace('_', '-')}" if part else ""
        metric, group = where.pop(), groups.get(name) or Group(name, name.capitalize())
        split = where.pop() if where and where[-1] in splits[1:] else ""
        declared = Metric(metric, headline=name == "retrieve" or metric == "mrr@10")
        if name == "cost":
            declared = COSTS[metric]
        elif find_metric(metric):
            declared = replace(ranking_metric(metric), headline=declared.headline)
        about = {"group": group, "split": split, "label": label}
        rows.append(declared.row(value, "/".join(where), part, **about))
    return rows


def write_metrics(run: Path, metrics: Mapping[str, float], splits: Sequence[str] = ()) -> None:
    """Writes both files of a run's numbers."""
    write_numbers(run, frame := make_frame(rows_of(metrics, splits)))
    export_numbers(run, frame)
