"""The papers' claims, on any finished runs: ``python -m analysis.claims runs='[outputs/a,…]'``.

A claim compares two sides (rankings, searches of a study, stored alignments) whose
queries and seeds are paired (`analysis.statistics.pair_seeds`).

A claim is confirmed or contradicted if its p against the bound is significant after Holm's
correction over the paper's claims on a collection, and every trained system has at least three
seeds; two are enough to contradict a claim. Otherwise it is undecided. Interval and p come from one
model, with queries and seeds as crossed effects (`analysis.statistics.estimate_mean`).
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("claims", "analysis.claims:main")
    raise SystemExit

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from omegaconf import DictConfig
from pandas import DataFrame, Series, concat

from analysis.compare.groups import (
    LEVEL,
    SEEDS,
    Comparison,
    Group,
    Section,
    compare_runs,
    find_common_folder,
    name_comparison,
)
from analysis.figures import COLOURS, MARKERS, forest_figure, save_figure
from analysis.runs.queries import JudgedQueries, read_queries
from analysis.runs.run_folder import Run, named_folders
from analysis.runs.settings import find_setting, read_settings
from analysis.runs.tables import Cell, Table, format_markdown, pivot, write_csv, write_tables
from analysis.statistics import estimate_mean, holm, pair_seeds
from gr_mvdr.evaluation.metrics import find_metric, ranking_metric
from gr_mvdr.files import read_text
from gr_mvdr.measures import RANKED, RERANK

BEST = "best form"
MVDR = "T5-ColBERT"
ESTIMATES = ("effect", "low", "high", "p", "units", "trainings")


class Missing(Exception):
    """Raised if the runs lack something that a claim needs."""


@dataclass(frozen=True)
class Side:
    """One of the two sides that a claim compares.

    Attributes:
        system: its name in the runs.
        group: where it was measured: "retrieve", "rerank", "low_rank", "study".
        place: a form of reranking; "best form" is the form that ranks best, "" the main one.
        study: what a study varies, for readers.
        setting: of a study; see `find_setting`.
    """

    system: str
    group: str = "retrieve"
    place: str = ""
    study: str = ""
    setting: Mapping[str, str | float] = field(default_factory=dict)

    def __str__(self) -> str:
        how = ", ".join(f"{key}={value}" for key, value in self.setting.items())
        return f"{self.system} {how or '/'.join(filter(None, (self.group, self.place)))}"


@dataclass(frozen=True)
class Claim:
    """A paper's claim that the first side minus the second is above a bound, or below it.

    Attributes:
        name: the claim in a few words.
        source: the paper, and the place in it.
        second: None = the claim is about the first side's own value.
        metric: a metric of queries (`analysis.runs.queries`).
        sign: 1 = above the bound, −1 = below it.
        note: how the paper's sentence is turned into numbers.
    """

    name: str
    source: str
    first: Side
    second: Side | None = None
    metric: str = "mrr@10"
    sign: int = 1
    bound: float = 0.0
    note: str = ""

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.first, self.second) if side]

    def __str__(self) -> str:
        """The comparison as a formula."""
        sides = " − ".join(map(str, self.sides))
        label = self.metric.replace("_", " ")
        if find_metric(self.metric):
            label = ranking_metric(self.metric).label
        return f"{sides}, {label} {'<>'[self.sign > 0]} {self.bound:g}"


def estimate(claim: Claim, groups: Sequence[Group], split: str = "") -> dict[str, Any]:
    """Estimates the `effect` that a claim is about: first side minus second.

    The row also holds the 95 % interval from `low` to `high`, the `p`-value against the bound, the
    number of `units`, such as queries, and the `trainings`: the fewest seeds of a trained side, 0
    if none is trained.

    Args:
        groups: the runs of each side, one for each seed.
        split: a further test split; "" = the main one.

    Raises:
        Missing: a file or a row is missing, or the sides were measured on different queries.
    """
    sides = [
        _read_values(side, group.runs, claim.metric, split)
        for side, group in zip(claim.sides, groups, strict=True)
    ]
    if concat(dict(enumerate(sides)), axis=1).isna().any(axis=None):
        raise Missing("its sides were measured on different queries")
    values = pair_seeds(*sides) if len(sides) == 2 else sides[0]
    trained = [side.shape[1] for side, group in zip(sides, groups, strict=True) if group.is_trained]
    found = *estimate_mean(values, claim.bound), len(values), min(trained, default=0)
    return dict(zip(ESTIMATES, found, strict=True))


def _read_values(side: Side, runs: Sequence[Run], metric: str, split: str) -> DataFrame:
    """Returns query → a side's value in each run that was studied or analysed."""
    if side.group in RANKED:
        queries = JudgedQueries(runs, side.group, side.place, split)
        if queries.judgements is None:
            raise Missing(f"{side.system}: {queries.missing}")
        if metric not in queries.metrics:
            raise Missing(f"{side.system}: a run has no {metric} of its queries")
        return queries.by_seed(metric)
    seeds = {
        run.seed: values for run in runs if (values := _read_run(side, run, metric)) is not None
    }
    if not seeds:
        what = f"{side.study} {side.group}".strip()
        raise Missing(f"{side}: no run has a {what} with values of {metric}")
    table = DataFrame(seeds)
    if table.isna().any(axis=None):
        raise Missing(f"{side.system}: its seeds were measured on different queries")
    return table


def _read_run(side: Side, run: Run, metric: str) -> Series | None:
    """Returns query → its value in an analysis, or under a setting of a study; None if missing."""
    part = find_setting(read_settings(run.numbers), side.setting) if side.setting else ""
    rows = JudgedQueries([run], side.group, part=part or "").seeds[0]
    return None if part is None or metric not in rows else rows[metric]


def _choose_form(side: Side, runs: Sequence[Run], metric: str, split: str) -> Side:
    """Replaces `BEST` by the form of reranking that has the best mean of the metric."""
    if side.place != BEST:
        return side
    table = read_queries(runs[0].path)
    places = table[table["group"] == RERANK.name]["place"].unique()
    forms = [JudgedQueries(runs, RERANK.name, place, split) for place in places]
    judged = [f for f in forms if f.judgements is not None and metric in f.metrics]
    best = max(judged, key=lambda form: form.values([metric])[metric].mean(), default=None)
    return replace(side, place=best.place if best else "")


def read_claims(file: Path) -> tuple[Claim, ...]:
    """Reads the claims of a TOML file: a table `[[claim]]` with the attributes of each."""
    declared = tomllib.loads(read_text(file))["claim"]
    for claim in declared:
        claim |= {side: Side(**claim[side]) for side in ("first", "second") if side in claim}
    return tuple(Claim(**claim) for claim in declared)


CLAIMS = read_claims(Path(__file__).with_suffix(".toml"))
# Columns of `claims.csv`.
ABOUT = ["place", "claim", "source", "compared", "systems", "seeds"]
COLUMNS = [*ABOUT, *ESTIMATES, "corrected", "verdict", "missing"]
# Verdict → its colour and marker in the figure.
LOOKS = {
    "confirmed": (COLOURS[0], MARKERS[0]),
    "contradicted": (COLOURS[5], MARKERS[1]),
    "undecided": (COLOURS[7], MARKERS[2]),
}


def judge_claims(comparison: Comparison, claims: Sequence[Claim] = CLAIMS) -> DataFrame:
    """Judges every claim on every collection and split, for each pair of systems that it names.

    Returns:
        One row per judgement: `COLUMNS`, `bound` and `sign`. `place` is the collection and split;
        `compared` a formula; `systems` the runs' labels; `seeds` the seeds of each side;
        `corrected` is p after Holm's correction over the paper's claims on a collection; `missing`
        says why there is no effect. The other columns are those of `estimate`, and the `verdict`.
    """
    tables = []
    names = [section.groups[0].runs[0].provenance["collection"] for section in comparison.sections]
    for section, name in zip(comparison.sections, names, strict=True):
        title = name if names.count(name) == 1 else section.setting
        rows = [row for claim in claims for row in _judge(claim, section, title)]
        table = DataFrame(rows, columns=[*COLUMNS, "bound", "sign"], dtype=object)
        for _, family in table[table["p"].notna()].groupby(table["source"].str.split().str[0]):
            table.loc[family.index, "corrected"] = holm(family["p"].tolist())
        tables.append(table)
    table = concat(tables, ignore_index=True)
    above = count_from_bound(table)
    agrees = above["effect"] > 0
    certain = table["corrected"].astype(float) < LEVEL
    certain &= (table["trainings"] == 0) | (
        table["trainings"] >= np.where(agrees, SEEDS, SEEDS - 1)
    )
    verdicts = np.where(agrees, "confirmed", "contradicted")
    return table.assign(verdict=np.where(certain, verdicts, "undecided"))


def count_from_bound(table: DataFrame) -> DataFrame:
    """Measures effect and interval from the bound, so that values above 0 agree with the claim."""
    values = table[["effect", "low", "high"]].astype(float)
    bound, sign = table["bound"].astype(float), table["sign"].astype(int)
    return values.sub(bound, axis=0).mul(sign, axis=0)


def _judge(claim: Claim, section: Section, title: str) -> Iterator[dict[str, Any]]:
    first, *further = section.groups[0].runs[0].splits or [""]
    if claim.first.group not in RANKED:
        further = []
    row = {"claim": claim.name, "source": claim.source, "missing": ""}
    row |= {"bound": claim.bound, "sign": claim.sign, "systems": "", "seeds": ""}
    named = {s.system: [g for g in section.groups if _name(g) == s.system] for s in claim.sides}
    if missing := [system for system, groups in named.items() if not groups]:
        place = f"{title} {first}".strip()
        missed = f"no run of {', '.join(missing)}"
        yield row | {"place": place, "compared": str(claim), "missing": missed}
    for chosen in product(*named.values()):  # two sides of one system share a group
        groups = [dict(zip(named, chosen, strict=True))[side.system] for side in claim.sides]
        row["systems"] = " − ".join(group.label for group in groups)
        row["seeds"] = "; ".join(dict.fromkeys(group.seeds for group in groups))
        for split in ["", *further]:
            sides = [
                _choose_form(side, group.runs, claim.metric, split)
                for side, group in zip(claim.sides, groups, strict=True)
            ]
            asked = replace(claim, **dict(zip(("first", "second"), sides, strict=False)))
            row |= {"place": f"{title} {split or first}".strip(), "compared": str(asked)}
            try:
                yield row | estimate(asked, groups, split)
            except Missing as missed:
                yield row | {"missing": str(missed)}


def _name(group: Group) -> str:
    """The system's name; an XTR without its training alignment is T5-ColBERT (`xtr_k`)."""
    run = group.runs[0]
    untrained = run.config.get("model", {}).get("training_alignment", True) is None
    return MVDR if run.system == "XTR" and untrained else run.system


SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?"}


def tabulate_claims(runs: str | Sequence[str], papers: Sequence[str] = ()) -> str:
    """Makes a Markdown table of verdicts: a row for each claim, a column for each collection.

    Args:
        runs: folders of records, or of runs.
        papers: the papers whose claims are shown; by default all.

    Raises:
        ValueError, FileNotFoundError: as `compare_runs`.
    """
    claims = [c for c in CLAIMS if not papers or c.source.split()[0] in papers]
    table = tabulate_verdicts(judge_claims(compare_runs(named_folders(runs)), claims))
    return "\n".join(format_markdown(table)[2:])  # without the heading


def tabulate_verdicts(table: DataFrame) -> Table:
    """Tabulates judged claims: a row for each, a column for each collection and split."""
    cells, judged = {}, table[table["missing"] == ""]
    for name, row in zip(name_claims(judged), judged.itertuples(), strict=True):
        few = 0 < row.trainings < SEEDS
        text = f"{row.effect:+.2f} [{row.low:.2f}, {row.high:.2f}]"
        text = text if few and row.verdict == "undecided" else f"{SIGNS[row.verdict]} {text}"
        name += f" ({row.bound:+g})" * bool(row.bound)
        key = name.replace("-0", "−0"), row.place
        cells[key] = Cell(text.replace("-", "−"), weak=few)
    signs = ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
    notes = [f"{signs}; italic: fewer than {SEEDS} seeds."]
    if missing := table["claim"].nunique() - judged["claim"].nunique():
        notes.append(f"{missing} of {table['claim'].nunique()} claims lack runs.")
    return pivot(cells, "The papers' claims", corner="claim", note=" ".join(notes))


def name_claims(table: DataFrame) -> Series:
    """Returns each row's claim, with the systems if several of one name are judged."""
    several = table.groupby("claim")["systems"].transform("nunique") > 1
    return table["claim"].where(~several, table["claim"] + ": " + table["systems"])


def draw_claims(table: DataFrame, title: str) -> Figure:
    """Draws a forest plot of effects from the bound; values right of 0 agree with the claim."""
    shown = table[table["missing"] == ""]
    heading = f"{title}: distance of each effect from its bound; right of 0 agrees with the claim"
    effects = count_from_bound(shown)
    marks = {"place": shown["place"].str.replace(" (", "\n(", n=1, regex=False)}
    marks |= {"name": name_claims(shown), "series": shown["verdict"], "value": effects["effect"]}
    marks |= {"low": effects.min(axis=1), "high": effects.max(axis=1)}
    return forest_figure(DataFrame(marks), heading, LOOKS)


EXPLAINED = (
    f"Effect: the first side minus the second, averaged over seeds and queries, with a 95 % "
    f"interval; both are paired by query and by seed, and vary at random with both. p: against the "
    f"bound, from the same model, corrected over the claims of a paper on a collection (Holm) and "
    f"listed in `claims.csv`. Confirmed: p < {LEVEL}, and at least {SEEDS} seeds of every trained "
    f"system. Contradicted: the same with {SEEDS - 1}."
)


def write_claims(comparison: Comparison, folder: Path) -> None:
    """Writes `claims.csv`, `claims.md` and the figure."""
    table = judge_claims(comparison)
    title = "; ".join(section.setting for section in comparison.sections)
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(table[COLUMNS], folder / "claims.csv")
    notes = [f"{claim.name}: {claim}. {claim.note}".strip() for claim in CLAIMS]
    missing = table[table["missing"] != ""].itertuples()
    notes += [f"missing ({row.place}): {row.claim}: {row.missing}" for row in missing]
    write_tables(folder / "claims.md", title, [tabulate_verdicts(table), EXPLAINED, *notes])
    if (figure := draw_claims(table, title)).axes:
        save_figure(figure, folder, "claims")


def main(config: DictConfig) -> None:
    comparison = compare_runs(named_folders(config.runs))
    name = name_comparison(comparison).replace("comparison", "claims", 1)
    folder = Path(config.output) if config.output else find_common_folder(comparison) / name
    write_claims(comparison, folder)
    print((folder / "claims.md").read_text(), *comparison.notes, sep="\n")
    print(folder / "claims.md", *folder.glob("claims.png"), sep="\n")
