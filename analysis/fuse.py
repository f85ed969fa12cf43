"""Fuses the rankings of finished runs: ``python -m analysis.fuse runs='[outputs/a,outputs/b]'``."""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("fuse", "analysis.fuse:main")
    raise SystemExit

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import DictConfig

from analysis.runs.run_folder import Run, named_folders, ranking_file, read_run
from analysis.tables import metric_names
from gr_mvdr.evaluation.metrics import METRICS, is_metric, name_metric
from gr_mvdr.evaluation.ranking import Qrels, Ranking, evaluate, read_qrels, write_qrels
from gr_mvdr.files import VERSION, new_folder, write_json, write_text
from gr_mvdr.progress import track

MAIN = ""  # the main split, as the names of a run's files leave it out
MERGE = "merge"
# What ranx calls a method, and what tables call it. The first two look at ranks, whatever the norm.
METHODS = {
    "rrf": ("rrf", "RRF"),
    "isr": ("isr", "ISR"),
    "combsum": ("sum", "CombSUM"),
    "combmnz": ("mnz", "CombMNZ"),
    "combmax": ("max", "CombMAX"),
    "weighted": ("wsum", ""),
}
BY_RANK = ("rrf", "isr")
STEPS = 10  # of a weight from 0 to 1 where weights are chosen


@dataclass(frozen=True)
class Part:
    """What is fused: the rankings of a finished run, or a TREC file.

    Attributes:
        name: what it is called. path: as the user gave it.
        rankings: by split. qrels: by split, as far as there are some. run: None of a file.
    """

    name: str
    path: Path
    rankings: dict[str, Ranking]
    qrels: dict[str, Qrels] = field(default_factory=dict)
    run: Run | None = None


@dataclass(frozen=True)
class Fusion:
    """How rankings become one.

    Attributes:
        method: one of `METHODS`, or `MERGE`. norm: of the scores, as ranx has it; None = none.
        k: of rrf. weights: of "weighted", one for each part. depth: documents kept of a query.
    """

    method: str = "rrf"
    norm: str | None = "min-max"
    k: int = 60
    weights: Sequence[float] | None = None
    depth: int = 100

    def __call__(self, rankings: Sequence[Ranking]) -> Ranking:
        """One ranking of all queries that any of the given ones has.

        Raises:
            ValueError: a document of two shards; weights that are missing, or not as many as parts.
        """
        if self.method == MERGE:
            return _merge(rankings).top(self.depth)
        options = self._options(len(rankings))
        queries = list(dict.fromkeys(query for one in rankings for query in one.query_ids))
        found = [_found(one, queries) for one in rankings]
        norm = None if self.method in BY_RANK else self.norm
        with uncompiled_ranx() as ranx:
            runs = list(map(ranx.Run, found))
            fused = ranx.fuse(runs, norm, METHODS[self.method][0], options).run
            rows = {q: {str(d): float(s) for d, s in fused[q].items()} for q in queries}
        return Ranking(rows).top(self.depth)

    def _options(self, parts: int) -> dict[str, Any]:
        if self.method == "rrf":
            return {"k": self.k}
        if self.method != "weighted":
            return {}
        if self.weights is None or len(self.weights) != parts:
            given = None if self.weights is None else list(self.weights)
            rule = f"must be {parts} numbers, one for each of the runs, or tune=SPLIT chooses them"
            raise ValueError(f"part_weights={given}: {rule}")
        return {"weights": list(map(float, self.weights))}


@contextmanager
def uncompiled_ranx() -> Iterator[Any]:
    """The library ranx as plain Python, unless it was imported before with numba's compiler on.

    numba compiles for a minute at the first use; 7,000 queries of 100 documents are then fused in
    more than a minute, without it in 15 s. Other code's numba is as it was outside the block.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import numba

        before = numba.config.DISABLE_JIT
        known = getattr(sys.modules.get("ranx.fusion.rrf"), "_rrf_score", None)
        numba.config.DISABLE_JIT = before if hasattr(known, "py_func") else 1
        try:
            import ranx

            yield ranx
        finally:
            numba.config.DISABLE_JIT = before
    except ImportError:
        raise ValueError("method: needs ranx: pip install 'gr-mvdr[fusion]'") from None


def _found(ranking: Ranking, queries: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each query the documents that were found: those of a score −inf were not."""
    rows = {q: {d: s for d, s in ranking.scores(q).items() if isfinite(s)} for q in queries}
    if not any(rows.values()):
        raise ValueError("runs: one of them holds no document")
    return rows


def _merge(rankings: Sequence[Ranking]) -> Ranking:
    """The rankings of parts of one corpus as that of the whole, by their scores."""
    merged: dict[str, dict[str, float]] = {}
    for ranking in rankings:
        for query in ranking.query_ids:
            found, scores = merged.setdefault(query, {}), ranking.scores(query)
            if both := found.keys() & scores.keys():
                raise ValueError(
                    f"method=merge: {min(both)!r} is in two runs, must be in one shard"
                )
            found |= scores
    return Ranking(merged)


def fuse(
    runs: Sequence[Path | str],
    fusion: Fusion,
    output: Path | str | None = None,
    qrels: Path | str | None = None,
    tune: str | None = None,
    metric: str = "mrr@10",
    metrics: Sequence[str] | None = None,
) -> Path:
    """Fuses rankings split by split, writes them like a run, and prints the parts and the fusion.

    Args:
        runs: folders of finished runs over one collection, or TREC runs.
        output: the new folder; None = named after the method and the runs, next to them.
        qrels: judgements of the main split, in the place of those that the runs left.
        tune: the split on which the weights of "weighted" are chosen, by `metric`.
        metrics: of the table; None = those that the runs were measured by.

    Returns:
        The folder. With judgements `analysis.compare` reads it like any run's.

    Raises:
        FileNotFoundError, FileExistsError, ValueError: runs, options or a place that do not fit.
    """
    parts = read_parts(runs, qrels)
    if fusion.method == MERGE:
        check_shards(parts)
    folder = place_fusion(parts, fusion, tune, output)
    if tune is not None:
        fusion = replace(fusion, weights=choose_weights(parts, fusion, tune, metric))
    splits = [split for split in parts[0].rankings if all(split in p.rankings for p in parts)]
    rankings = {split: fusion([part.rankings[split] for part in parts]) for split in splits}
    judged = {split: found for split, found in parts[0].qrels.items() if split in splits}
    fused = Part(name_fusion(parts, fusion), folder, rankings, judged)
    known = [key.removeprefix("retrieve/") for p in parts if p.run for key in p.run.metrics]
    asked = metrics or list(dict.fromkeys(filter(is_metric, known))) or METRICS
    measured = {p.name: measure(p, judged, list(map(name_metric, asked))) for p in (*parts, fused)}
    write_fusion(fused, parts, fusion, measured[fused.name], replaced=output is None)
    if judged:
        print(pd.DataFrame(measured).to_string(float_format="{:.3f}".format))
    print(f"{folder}: fused, {', '.join(ranking_file('retrieve', split) for split in splits)}")
    return folder


def read_parts(paths: Sequence[Path | str], qrels: Path | str | None = None) -> list[Part]:
    """Reads what is to be fused.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: fewer than two, an unfinished run, a broken file, runs over different
            collections or judgements.
    """
    if len(paths) < 2:
        raise ValueError(f"runs=[{', '.join(map(str, paths))}]: must be two or more to be fused")
    parts = [_read_part(Path(path)) for path in paths]
    runs = [part.run for part in parts if part.run]
    if len({(run.setting, run.fingerprint) for run in runs}) > 1:
        settings = "; ".join(dict.fromkeys(run.setting for run in runs))
        raise ValueError(f"runs over different collections or splits cannot be fused: {settings}")
    judged = {MAIN: read_qrels(qrels)} if qrels else {}
    for part in reversed(parts):
        for split, found in part.qrels.items():
            if qrels and split == MAIN:
                continue
            if judged.setdefault(split, found) != found:
                raise ValueError(f"runs={part.path}: was judged on other queries than the others")
    names = [part.name for part in parts]
    own = [str(p.path) if names.count(p.name) > 1 else p.name for p in parts]
    return [replace(p, qrels=judged, name=name) for p, name in zip(parts, own, strict=True)]


def _read_part(path: Path) -> Part:
    if not path.exists():
        raise FileNotFoundError(f"runs={path}: no such folder or file")
    if path.is_file():
        return Part(path.stem, path, {MAIN: Ranking.read(path)})
    run = read_run(path)
    splits = [MAIN, *sorted(metric_names.find_splits(run.metrics))]
    files = {split: path / ranking_file("retrieve", split) for split in splits}
    judged = {split: path / ranking_file("retrieve", split, ending="qrels") for split in splits}
    return Part(
        run.system,
        path,
        {split: Ranking.read(file, path) for split, file in files.items()},
        {split: read_qrels(file, path) for split, file in judged.items() if file.exists()},
        run,
    )


def check_shards(parts: Sequence[Part]) -> None:
    """Raises ValueError unless the parts are all shards of one corpus, searched by one system.

    A system whose scores need the whole corpus cannot be searched over a shard in the first place
    (`System.scores_need`). Of TREC files nothing is known, which a line says.

    Raises:
        ValueError: runs that are not of shards, not of all, or that differ in more.
    """
    runs = [part.run for part in parts if part.run]
    if not runs:
        print("method=merge: of TREC files nothing tells whether their scores can be compared")
        return
    shards = [(run.config.get("data") or {}).get("shard") for run in runs]
    pairs = [tuple(map(int, shard.split("/"))) for shard in shards if shard]
    if len(runs) < len(parts) or sorted(pairs) != [(n, len(parts)) for n in range(len(parts))]:
        rule = f"must be runs of all shards of a corpus, data.shard=0/{len(parts)} and so on"
        raise ValueError(f"method=merge: {rule}, is of {', '.join(map(str, shards))}")
    for one, other in pairwise(run.choices for run in runs):
        for key in sorted({*one, *other} - {"data.shard"}):
            if one.get(key) != other.get(key):
                found = f"{one.get(key)} and {other.get(key)}"
                raise ValueError(f"method=merge: {key} is {found}, must be one in all shards")


def place_fusion(
    parts: Sequence[Part], fusion: Fusion, tune: str | None, output: Path | str | None
) -> Path:
    """The folder of a fusion: the user's, or one that the same command finds again."""
    if output is not None:
        if Path(output).exists():
            raise FileExistsError(f"output={output}: exists, must be a new folder")
        return Path(output)
    asked = repr(([str(part.path.resolve()) for part in parts], fusion, tune))
    digest = hashlib.sha256(asked.encode()).hexdigest()[:6]
    return parts[0].path.parent / f"fusion-{fusion.method}-{digest}"


def choose_weights(
    parts: Sequence[Part], fusion: Fusion, split: str, metric: str
) -> tuple[float, ...]:
    """The weights, in steps of a tenth that sum to one, that are best on a validation split.

    Raises:
        ValueError: another method; no such split; weights that are given as well.
    """
    if fusion.method != "weighted" or fusion.weights is not None:
        raise ValueError(f"tune={split}: must be null but for method=weighted without part_weights")
    known = [s for s in parts[0].qrels if s != MAIN and all(s in p.rankings for p in parts)]
    if split not in known:
        raise ValueError(
            f"tune={split}: must be a split besides the main one that all runs were tested on "
            f"({', '.join(known) or 'there is no other'}), see data.test_split"
        )
    rankings, name, values = [part.rankings[split] for part in parts], name_metric(metric), {}
    # Stars and bars: all whole shares that add up to `STEPS`.
    bars = combinations(range(1, STEPS + len(parts)), len(parts) - 1)
    edges = [(0, *places, STEPS + len(parts)) for places in bars]
    simplex = [tuple((b - a - 1) / STEPS for a, b in pairwise(one)) for one in edges]
    for weights in track(simplex, "choosing weights"):
        found = replace(fusion, weights=weights)(rankings)
        values[weights] = evaluate(found, parts[0].qrels[split], [name])[name]
    best = max(values, key=values.__getitem__)
    print(f"part_weights={list(best)}: {name} is {values[best]:.3f} on {split}")
    return best


def name_fusion(parts: Sequence[Part], fusion: Fusion) -> str:
    """What tables call it: "RRF (BM25 + T5-ColBERT)", "0.3 BM25 + 0.7 T5-ColBERT"."""
    if fusion.method == MERGE:
        return parts[0].run.system if parts[0].run else "merged"
    if fusion.method == "weighted":
        pairs = zip(fusion.weights or (), parts, strict=True)
        return " + ".join(f"{weight:g} {part.name}" for weight, part in pairs)
    return f"{METHODS[fusion.method][1]} ({' + '.join(part.name for part in parts)})"


def measure(part: Part, qrels: Mapping[str, Qrels], names: Sequence[str]) -> dict[str, float]:
    """Flat metrics of a part's rankings, "retrieve/mrr@10", "retrieve/SPLIT/mrr@10"."""
    return {
        "/".join(filter(None, ("retrieve", split, name))): value
        for split, judged in qrels.items()
        for name, value in evaluate(part.rankings[split], judged, names).items()
    }


def write_fusion(
    fused: Part,
    parts: Sequence[Part],
    fusion: Fusion,
    metrics: Mapping[str, float],
    replaced: bool = False,
) -> None:
    """Writes rankings and judgements, and what makes the folder one of a finished run.

    Args:
        metrics: with none, there are no judgements, and no `metrics.json`.
        replaced: whether a folder that is there is taken for an earlier result of the same command.
    """
    first = next((part.run for part in parts if part.run), None)
    made = {"method": fusion.method, "runs": [str(part.path) for part in parts]}
    made |= {"norm": fusion.norm, "k": fusion.k, "retrieval_depth": fusion.depth}
    made |= {"weights": None if fusion.weights is None else list(fusion.weights)}
    seeds = {part.run.seed for part in parts if part.run}
    seed = seeds.pop() if len(seeds) == 1 else None
    record = {"system": fused.name, "paradigm": "fusion", "collection": "TREC runs"}
    names = ("collection", "splits", "sources", "text_fields")
    record |= {k: first.provenance[k] for k in names if first and k in first.provenance}
    config: dict[str, Any] = {"seed": seed, "fusion": made}
    if fusion.method == MERGE and first:  # the system's own run, over all documents
        record |= {"paradigm": first.provenance.get("paradigm", "")}
        config = first.config | {"data": first.config["data"] | {"shard": None}, "fusion": made}
    with new_folder(fused.path, replace=replaced) as folder:
        for split, ranking in fused.rankings.items():
            ranking.write(folder / ranking_file("retrieve", split), fusion.method)
        for split, judged in fused.qrels.items():
            write_qrels(judged, folder / ranking_file("retrieve", split, ending="qrels"))
        write_text(folder / "config.yaml", yaml.safe_dump(config, allow_unicode=True))
        record |= {"seed": seed, "version": VERSION, "fusion": made}
        write_json(folder / "provenance.json", record)
        if metrics:
            write_json(folder / "metrics.json", dict(metrics))


def main(config: DictConfig) -> None:
    weights = None if config.part_weights is None else list(config.part_weights)
    fusion = Fusion(config.method, config.norm, config.k, weights, config.retrieval_depth)
    metrics = None if config.metrics is None else list(config.metrics)
    runs = named_folders(config.runs)
    fuse(runs, fusion, config.output, config.qrels, config.tune, config.metric, metrics)
