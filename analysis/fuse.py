"""Fuses the rankings of finished runs: ``python -m analysis.fuse runs='[outputs/a,outputs/b]'``."""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("fuse", "analysis.fuse:main")
    raise SystemExit

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import DictConfig

from analysis.runs.numbers import export_numbers, make_frame, write_numbers
from analysis.runs.queries import METRICS as TESTED
from analysis.runs.queries import keep_queries, tabulate_queries
from analysis.runs.run_folder import Run, named_folders, ranking_file, read_run
from data_modules.tables import short_hash
from gr_mvdr.evaluation.metrics import name_metric
from gr_mvdr.evaluation.ranking import (
    Qrels,
    Ranking,
    evaluate,
    evaluate_queries,
    read_qrels,
    write_qrels,
)
from gr_mvdr.files import VERSION, new_folder, write_json, write_text
from gr_mvdr.progress import track

MAIN = ""  # the main split, whose name a run's file names omit
METHODS = {"rrf": "RRF", "combsum": "CombSUM"}
STEPS = 10  # steps of a weight from 0 to 1 when weights are chosen
SMALLEST = 1e-9  # scores of a smaller range are equal


@dataclass(frozen=True)
class Part:
    """One input of a fusion: the rankings of a finished run, or a TREC file.

    Attributes:
        name: its name in tables.
        path: as the user gave it.
        rankings: split → ranking.
        qrels: split → judgements, for the splits that have some.
        run: None for a TREC file.
    """

    name: str
    path: Path
    rankings: dict[str, Ranking]
    qrels: dict[str, Qrels] = field(default_factory=dict)
    run: Run | None = None


@dataclass(frozen=True)
class Fusion:
    """Fuses several rankings into one by a weighted sum over the parts that found a document.

    Attributes:
        method: "rrf" sums 1 / (k + rank) (Cormack et al., SIGIR 2009); "combsum" sums scores,
            scaled to [0, 1] for each query and part (Fox and Shaw, TREC-2); a single score, or
            equal ones, become 1.
        k: the constant of rrf.
        weights: one for each part; None = 1 each.
        depth: documents kept per query.
    """

    method: str = "rrf"
    k: int = 60
    weights: Sequence[float] | None = None
    depth: int = 100

    def __call__(self, rankings: Sequence[Ranking]) -> Ranking:
        """Fuses rankings into one of all queries that occur in any of them.

        Raises:
            ValueError: a ranking is empty, or there are not as many weights as rankings.
        """
        if len(weights := self.weights or [1.0] * len(rankings)) != len(rankings):
            rule = f"must be {len(rankings)} numbers, one for each of the runs"
            raise ValueError(f"part_weights={list(weights)}: {rule}")
        # Best first; a document with score −inf was not found.
        parts = [
            {(q, d): s for q in one.query_ids for d, s in one.scores(q).items() if isfinite(s)}
            for one in rankings
        ]
        if not all(parts):
            raise ValueError("runs: one of them holds no document")
        columns = list(map(pd.Series, parts))
        if self.method == "rrf":
            columns = [1 / (self.k + one.groupby(level=0).cumcount() + 1) for one in columns]
        scores = pd.concat(columns, axis=1)  # NaN where a part did not find the document
        if self.method == "combsum":
            of_query = scores.groupby(level=0)
            least = of_query.transform("min")
            width = of_query.transform("max") - least
            scores = ((scores - least) / width).mask((width < SMALLEST) & scores.notna(), 1.0)
        rows: dict[str, dict[str, float]] = {q: {} for one in rankings for q in one.query_ids}
        # Rounded as trec_eval does: sums that differ in the order of their terms stay ties.
        sums = (scores * list(weights)).sum(axis=1).astype("float32")
        for (query, document), score in sums.items():
            rows[query][document] = score
        return Ranking(rows).top(self.depth)


def fuse(
    runs: Sequence[Path | str],
    fusion: Fusion,
    output: Path | str | None = None,
    qrels: Path | str | None = None,
    tune: str | None = None,
    metric: str = "mrr@10",
) -> Path:
    """Fuses rankings split by split, writes the fusion like a run, and prints all metrics.

    Args:
        runs: folders of finished runs over one collection, or TREC runs.
        output: the new folder; None = named after the method and the runs, next to them.
        qrels: judgements of the main split, which replace the runs' judgements.
        tune: the split on which weights are chosen, by `metric`.

    Returns:
        The folder. If there are judgements, `analysis.compare` reads it like a run's folder.

    Raises:
        FileNotFoundError, FileExistsError, ValueError: the runs, the options or the output folder
            are not valid.
    """
    parts = read_parts(runs, qrels)
    if output is not None and Path(output).exists():
        raise FileExistsError(f"output={output}: exists, must be a new folder")
    digest = short_hash([part.path.resolve() for part in parts], fusion, tune)[:6]
    folder = Path(output or parts[0].path.parent / f"fusion-{fusion.method}-{digest}")
    if tune is not None:
        fusion = replace(fusion, weights=choose_weights(parts, fusion, tune, metric))
    splits = [split for split in parts[0].rankings if all(split in p.rankings for p in parts)]
    rankings = {split: fusion([part.rankings[split] for part in parts]) for split in splits}
    judged = {split: found for split, found in parts[0].qrels.items() if split in splits}
    fused = Part(name_fusion(parts, fusion), folder, rankings, judged)
    measured = {
        part.name: {
            "/".join(filter(None, ("retrieve", split, name))): value
            for split in judged
            for name, value in evaluate(part.rankings[split], judged[split]).items()
        }
        for part in (*parts, fused)
    }
    with new_folder(folder, replace=output is None) as partial:
        write_fusion(fused, parts, fusion, partial)
        if judged:
            write_json(partial / "metrics.json", measured[fused.name])
    if judged:
        print(pd.DataFrame(measured).to_string(float_format="{:.3f}".format))
    print(f"{folder}: fused, {', '.join(ranking_file('retrieve', split) for split in splits)}")
    return folder


def read_parts(paths: Sequence[Path | str], qrels: Path | str | None = None) -> list[Part]:
    """Reads the runs and TREC files that are to be fused.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: there are fewer than two, a run is unfinished, a file is broken, or the runs
            have different collections or judgements.
    """
    if len(paths) < 2:
        raise ValueError(f"runs=[{', '.join(map(str, paths))}]: must be two or more to be fused")
    parts = [_read_part(Path(path)) for path in paths]
    runs = [part.run for part in parts if part.run]
    if len({(run.setting, run.fingerprint) for run in runs}) > 1:
        settings = "; ".join(dict.fromkeys(run.setting for run in runs))
        raise ValueError(f"runs over different collections or splits cannot be fused: {settings}")
    given = {MAIN: read_qrels(qrels)} if qrels else {}
    judged: dict[str, Qrels] = {}
    for part in reversed(parts):
        for split, found in (part.qrels | given).items():
            if judged.setdefault(split, found) != found:
                raise ValueError(f"runs={part.path}: its judgements differ from another run's")
    names = [part.name for part in parts]
    own = [str(p.path) if names.count(p.name) > 1 else p.name for p in parts]
    return [replace(p, qrels=judged, name=name) for p, name in zip(parts, own, strict=True)]


def _read_part(path: Path) -> Part:
    if not path.exists():
        raise FileNotFoundError(f"runs={path}: no such folder or file")
    if path.is_file():
        return Part(path.stem, path, {MAIN: Ranking.read(path)})
    run = read_run(path)
    splits = [MAIN, *run.splits[1:]]
    files = {split: path / ranking_file("retrieve", split) for split in splits}
    judged = {split: path / ranking_file("retrieve", split, ending="qrels") for split in splits}
    return Part(
        run.system,
        path,
        {split: Ranking.read(file, path) for split, file in files.items()},
        {split: read_qrels(file, path) for split, file in judged.items() if file.exists()},
        run,
    )


def choose_weights(
    parts: Sequence[Part], fusion: Fusion, split: str, metric: str
) -> tuple[float, ...]:
    """Chooses the weights that are best on a validation split: tenths that sum to one.

    Raises:
        ValueError: weights are given, or there is no such split.
    """
    if fusion.weights is not None:
        raise ValueError(f"tune={split}: must be null with part_weights")
    known = [s for s in parts[0].qrels if s != MAIN and all(s in p.rankings for p in parts)]
    if split not in known:
        raise ValueError(
            f"tune={split}: must be a split besides the main one that all runs were tested on "
            f"({', '.join(known) or 'there is no other'}), see data.test_split"
        )
    rankings, name, values = [part.rankings[split] for part in parts], name_metric(metric), {}
    shares = product(range(STEPS + 1), repeat=len(parts))
    simplex = [tuple(share / STEPS for share in one) for one in shares if sum(one) == STEPS]
    for weights in track(simplex, "choosing weights"):
        found = replace(fusion, weights=weights)(rankings)
        values[weights] = evaluate(found, parts[0].qrels[split], [name])[name]
    best = max(values, key=values.__getitem__)
    print(f"part_weights={list(best)}: {name} is {values[best]:.3f} on {split}")
    return best


def name_fusion(parts: Sequence[Part], fusion: Fusion) -> str:
    """The fusion's name in tables: "RRF (BM25 + T5-ColBERT)", "CombSUM (0.3 BM25 + 0.7 DPR)"."""
    weights = [f"{weight:g} " for weight in fusion.weights or ()] or [""] * len(parts)
    named = (weight + part.name for weight, part in zip(weights, parts, strict=True))
    return f"{METHODS[fusion.method]} ({' + '.join(named)})"


def write_fusion(fused: Part, parts: Sequence[Part], fusion: Fusion, folder: Path) -> None:
    """Writes rankings and judgements, configuration and provenance of a finished run."""
    runs = [part.run for part in parts if part.run]
    made = asdict(fusion) | {"runs": [str(part.path) for part in parts]}
    seeds = {run.seed for run in runs if run.is_trained}
    about = {"seed": seeds.pop() if len(seeds) == 1 else None, "fusion": made}
    record = {"system": fused.name, "paradigm": "fusion", "collection": "TREC runs"}
    config: dict[str, Any] = {}
    if runs:
        shared = ("collection", "splits", "sources", "text_fields")
        record |= {key: value for key, value in runs[0].provenance.items() if key in shared}
        config = {k: v for k, v in runs[0].config.items() if k in ("retrieval_depth", "data")}
    for split, ranking in fused.rankings.items():
        ranking.write(folder / ranking_file("retrieve", split), fusion.method)
    for split, judged in fused.qrels.items():
        write_qrels(judged, folder / ranking_file("retrieve", split, ending="qrels"))
        values = evaluate_queries(fused.rankings[split], judged, TESTED)
        keep_queries(folder, tabulate_queries("retrieve", split, values, judged))
    write_text(folder / "config.yaml", yaml.safe_dump(config | about, allow_unicode=True))
    write_json(folder / "provenance.json", record | about | {"version": VERSION})


def main(config: DictConfig) -> None:
    weights = None if config.part_weights is None else list(config.part_weights)
    fusion = Fusion(config.method, config.k, weights, config.retrieval_depth)
    runs = named_folders(config.runs)
    fuse(runs, fusion, config.output, config.qrels, config.tune, config.metric)
