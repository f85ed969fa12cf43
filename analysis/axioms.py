"""Axioms and perturbations: ``python -m analysis.axioms runs='[outputs/a,outputs/b]'``.

Queries and their relevant documents are perturbed (`analysis.perturbations`): what does
that do to the score and the rank of the relevant document, in every run?
"""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("axioms", "analysis.axioms:main")
    raise SystemExit

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig
from pandas import DataFrame

from analysis.evaluation import judge
from analysis.figures import COLOURS, MARKERS, legend_below, page_panels, save_figure, styled
from analysis.perturbations import PERTURBATIONS, Pair, make_pairs, perturb
from analysis.runs.run_folder import named_folders
from analysis.statistics import interval
from analysis.tables.comparison import Comparison, compare_runs, place_tables
from analysis.tables.metric_names import MISSING
from analysis.tables.rows import Cell, Row, Table, format_markdown, read_rows, write_rows
from data_modules.module import RetrievalDataModule
from data_modules.tables import sample_rows, short_hash
from gr_mvdr.files import write_text
from gr_mvdr.progress import track
from gr_mvdr.texts import TextTable
from models.retriever import Retriever

ORIGINAL = "original"
NAMES = [f"{side}: {name}" for side, names in PERTURBATIONS.items() for name in names]
DEPTH = 100  # documents a search finds; one that it does not find has the next rank
METRICS = ("mrr@10", "recall@10")
MEASURES = {
    "holds": "pairs in which an axiom holds, share",
    "shift": "change of the score, in standard deviations over documents",
    "rank": f"change of the rank, at most {DEPTH + 1}",
    "mrr@10": "change of MRR@10",
    "recall@10": "change of R@10",
}
# Axiom → what should have the higher score, and what the lower one.
AXIOMS = {
    "TFC1: one more query term": ("document: rare query term", ORIGINAL),
    "TDC: the rarer query term": ("document: rare query term", "document: common query term"),
    "TDC, terms added to the query": ("query: rare term", "query: common term"),
    "LNC1: no foreign words": (ORIGINAL, "document: foreign words"),
    "the answer": (ORIGINAL, "document: without the answer"),
    "what the question gives": (ORIGINAL, "document: without the given"),
    "negation": (ORIGINAL, "query: negation"),
}


class Sample(NamedTuple):
    """Pairs of a split, what is said in their place, and documents that are not relevant.

    Attributes:
        texts: perturbation → query id → text. others: query id → document ids.
    """

    split: str
    pairs: list[Pair]
    texts: dict[str, dict[str, str]]
    others: dict[str, list[str]]


def draw_sample(data: RetrievalDataModule, split: str, queries: int, others: int) -> Sample:
    """Pairs of a split, and other documents for each pair, drawn at random.

    No system chooses the documents: the scores of its own best ones would lie closer together.
    """
    chosen = sample_rows(data.test_queries(split), queries)
    documents, drawn = data.documents["id"][:], {}
    # One document stays as it is: while the others are exchanged, the index holds it alone.
    pairs = make_pairs(data.collection, split, chosen)[: len(documents) - 1]
    grades = data.judgements(split, chosen)
    texts: dict[str, dict[str, str]] = {name: {} for name in NAMES}
    for pair in track(pairs, "perturbing"):
        for side in PERTURBATIONS:
            for name, text in perturb(pair, side).items():
                texts[f"{side}: {name}"][pair.id] = text
        rest = [name for name in documents if name not in grades[pair.id]]
        drawn[pair.id] = Random(pair.id).sample(rest, min(others, len(rest)))
    return Sample(split, pairs, texts, drawn)


def measure_run(retriever: Retriever, sample: Sample) -> list[Row]:
    """Scores and ranks of every pair under every perturbation.

    Changed documents are scored and searched in an index that holds them in the originals' place.
    A system that scores identifiers sees no changed text: it is asked with changed queries only.
    """
    queries = {pair.id: pair.query for pair in sample.pairs}
    rows = _ask(retriever, sample, ORIGINAL, queries)
    for name, texts in sample.texts.items():
        if name.startswith("query"):
            rows += _ask(retriever, sample, name, texts)
        elif texts and retriever.system.scores_texts:
            with _replaced(retriever, [pair for pair in sample.pairs if pair.id in texts], texts):
                rows += _ask(retriever, sample, name, {query: queries[query] for query in texts})
    return rows


def _ask(retriever: Retriever, sample: Sample, name: str, queries: Mapping[str, str]) -> list[Row]:
    """A row for each query with the scores of its relevant document and of the others."""
    if not queries:
        return []
    gold = {pair.id: pair.document["id"] for pair in sample.pairs}
    wanted = {query: [gold[query], *sample.others[query]] for query in queries}
    scored = retriever.rerank(dict(queries), wanted)
    found = retriever.retrieve(dict(queries), DEPTH)
    judged = judge(found, retriever.data, sample.split, TextTable({"id": [*queries]}), METRICS)
    rows = []
    for query in queries:
        scores = {name: s for name, s in scored.scores(query).items() if isfinite(s)}
        relevant, places = scores.pop(gold[query], float("nan")), found.documents(query)
        others = torch.tensor([*scores.values()], dtype=torch.float64)
        place = places.index(gold[query]) if gold[query] in places else DEPTH
        row = {"split": sample.split, "query": query, "perturbation": name, "score": relevant}
        row |= {"mean": float(others.mean()), "deviation": float(others.std()), "rank": place + 1}
        rows.append(row | {metric: judged[query][metric] for metric in METRICS})
    return rows


@contextmanager
def _replaced(
    retriever: Retriever, pairs: Sequence[Pair], texts: Mapping[str, str]
) -> Iterator[None]:
    """Within it the index holds other texts of the pairs' documents."""
    originals = [dict(pair.document) for pair in pairs]
    changed = [{**pair.document, "text": texts[pair.id]} for pair in pairs]

    def exchange(rows: list[dict[str, str]]) -> None:
        retriever.remove([row["id"] for row in rows])
        retriever.add(rows)

    exchange(changed)
    try:
        yield
    finally:
        exchange(originals)


def find_effects(rows: Iterable[Row]) -> list[Row]:
    """What each perturbation did to each pair, and whether each axiom holds for it.

    A score is compared with the mean of the other documents, as another query moves all scores,
    and counted in their standard deviations under the original query, so that systems compare.

    Args:
        rows: as `measure_run` gives them.

    Returns:
        Rows with split, query, perturbation (or axiom), measure and value; of `ORIGINAL` the rank
        and the metrics themselves, of all others the differences to these.
    """
    pairs: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        pairs[row["split"], row["query"]][row["perturbation"]] = row
    found = []
    for (split, query), said in pairs.items():
        first, shifts = said[ORIGINAL], {}
        effects = [(ORIGINAL, measure, first[measure]) for measure in ("rank", *METRICS)]
        for name, row in said.items():
            if first.get("deviation", 0) > 0 and {"score", "mean"} <= row.keys() & first.keys():
                # The others may be documents of other pairs, changed as well.
                mean = row["mean"] if name.startswith("query") else first["mean"]
                margin = row["score"] - mean - first["score"] + first["mean"]
                shifts[name] = margin / first["deviation"]
            if name != ORIGINAL:
                effects += [(name, m, row[m] - first[m]) for m in ("rank", *METRICS)]
        effects += [(n, "shift", shift) for n, shift in shifts.items() if n != ORIGINAL]
        for axiom, (higher, lower) in AXIOMS.items():
            if {higher, lower} <= shifts.keys():
                effects.append((axiom, "holds", float(shifts[higher] > shifts[lower])))
        known = {"split": split, "query": query}
        found += [known | {"perturbation": n, "measure": m, "value": v} for n, m, v in effects]
    return found


def summarise(runs: Iterable[Iterable[Row]]) -> list[Row]:
    """Means over pairs with their 95 % intervals (bootstrap), a pair's value averaged over runs.

    Args:
        runs: as `measure_run` gives them, of one system, one for each seed.
    """
    keys = ["split", "perturbation", "measure"]
    effects = DataFrame(effect for run in runs for effect in find_effects(run))
    values = effects.groupby([*keys, "query"], sort=False)["value"].mean()
    rows = []
    for key, found in values.groupby(keys, sort=False):
        low, high = map(float, interval(torch.tensor(found.to_numpy())[:, None]))
        row = {"pairs": len(found), "value": found.mean(), "low": low, "high": high}
        rows.append(dict(zip(keys, key, strict=True)) | row)
    return rows


def tabulate(rows: Sequence[Row], split: str, measure: str) -> Table:
    """One measure: perturbations or axioms as rows, systems as columns."""
    chosen = [row for row in rows if (row["split"], row["measure"]) == (split, measure)]
    cells = {
        (row["perturbation"], row["system"]): Cell(
            f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]".replace("-", "−")
        )
        for row in chosen
    }
    systems = list(dict.fromkeys(row["system"] for row in rows))
    names = [n for n in (ORIGINAL, *NAMES, *AXIOMS) if any((n, s) in cells for s in systems)]
    lines = [(n, [cells.get((n, s), Cell(MISSING)) for s in systems]) for n in names]
    return Table(f"{split}: {MEASURES[measure]}", systems, lines, corner="")


@styled
def draw_shifts(rows: Sequence[Row], title: str) -> Figure:
    """The shifts of the score: a panel a split, a marker a system, bars are the intervals."""
    table = DataFrame(rows).query("measure == 'shift'")
    systems = table["system"].unique()
    names = [name for name in NAMES[::-1] if name in set(table["perturbation"])]
    splits = table.groupby("split", sort=False)
    figure, panels = page_panels(title, len(splits), 1.2 + 0.26 * len(names), sharey=True)
    for axes, (split, shifts) in zip(panels, splits, strict=True):
        for number, system in enumerate(systems):
            own = shifts[shifts["system"] == system]
            step = 0.7 * ((len(systems) - 1) / 2 - number) / len(systems)
            axes.errorbar(
                own["value"],
                own["perturbation"].map(names.index) + step,
                xerr=[own["value"] - own["low"], own["high"] - own["value"]],
                linestyle="none",
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                label=system,
            )
        axes.axvline(0, color="#666666", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(split, parse_math=False)
        axes.set_xlabel("change of the score")
        axes.grid(axis="x")
    legend_below(figure, 4)
    return figure


def compare_axioms(
    comparison: Comparison, folder: Path, queries: int, others: int, trust: bool = False
) -> list[Row]:
    """Writes `axioms.csv`, `axioms.md` and the figure of finished runs.

    Args:
        folder: its `values/` keep what each run was asked: the command goes on where it ended.
        queries, others: as of `draw_sample`. trust: as of `Retriever.load`.
    """
    rows, samples = [], {}
    for group in comparison.groups:
        runs = []
        for run in group.runs:
            key = short_hash(run.config, run.metrics, queries, others)[:8]
            path = folder / "values" / f"{run.path.name}-{key}.csv"
            if not path.is_file():
                retriever, found = Retriever.load(run.path, trust=trust), []
                for split in retriever.data.test_splits:
                    if split not in samples:
                        samples[split] = draw_sample(retriever.data, split, queries, others)
                    found += measure_run(retriever, samples[split])
                path.parent.mkdir(parents=True, exist_ok=True)
                write_rows(found, path)
            runs.append(read_rows(path))
        rows += [{"system": group.label} | row for row in summarise(runs)]
    write_rows(rows, folder / "axioms.csv")
    kinds = dict.fromkeys((row["split"], measure) for row in rows for measure in MEASURES)
    tables = [format_markdown(tabulate(rows, *kind)) for kind in kinds]
    write_text(folder / "axioms.md", "\n\n".join("\n".join(lines) for lines in tables) + "\n")
    save_figure(draw_shifts(rows, comparison.sections[0].setting), folder, "axioms")
    return rows


def main(config: DictConfig) -> None:
    comparison = compare_runs(named_folders(config.runs))
    folder = place_tables(comparison, "axioms", config.output)
    compare_axioms(comparison, folder, config.queries, config.others, config.trust)
    print((folder / "axioms.md").read_text(), folder / "axioms.md", folder / "axioms.png", sep="\n")
