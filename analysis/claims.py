"""The papers' claims, on any finished runs: ``python -m analysis.claims runs='[outputs/a,…]'``.

A claim compares two sides query by query (rankings, searches of a study, stored alignments), or
asks for the sign of a trend over token types. Seeds of one system are averaged first.

Confirmed or contradicted: the 95 % interval leaves out the claim's bound, and so does a paired test
after Holm's correction over the claims of a collection. Everything else is undecided.
"""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("claims", "analysis.claims:main")
    raise SystemExit

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig
from torch.linalg import matrix_norm

from analysis.alignment_store import MANIFEST, AlignmentStore
from analysis.exact_match import OF_A
from analysis.figures import COLOURS, MARKERS, legend_below, page_panels, save_figure, styled
from analysis.low_rank import composite_norm, equal_rows_residual, real_entries
from analysis.runs.run_folder import STUDY, Run, named_folders
from analysis.statistics import NORMAL, holm, interval, randomisation_test
from analysis.tables import metric_names
from analysis.tables.comparison import LEVEL, Comparison, Group, Section, compare_runs, place_tables
from analysis.tables.rows import (
    Cell,
    Row,
    Table,
    escape_markdown,
    format_markdown,
    read_rows,
    write_rows,
)
from analysis.tables.significance import JudgedQueries
from gr_mvdr.files import write_text

STUDIED, ALIGNED, MEASURED = "study=", "alignments", "analysis/"
QUERIES = "study_queries.csv"
TABLES, KEPT = (STUDY, QUERIES), (f"{ALIGNED}/{MANIFEST}",)  # of a study, of alignments
RATES = "exact_match.csv"
WHOLE = {"definition": "all", "tokens": "all", "idf_bin": "all"}  # a row of it
VALUES = 2**23  # of similarities in a batch of stored pairs
Values = dict[str, float]  # query → value


class Missing(Exception):
    """What a claim needs and the runs did not leave."""


@dataclass(frozen=True)
class Side:
    """What a claim looks at.

    Attributes:
        system: as runs name it.
        place: a ranking ("retrieve", "rerank", "rerank/FORM"), a study ("study=pruning"),
            `ALIGNED`, or, of a trend, where the run's metrics have it
            ("analysis/exact_match/query_to_document").
        setting: of a study: column → value; of several rows the one with most neighbours counts.
    """

    system: str
    place: str = "retrieve"
    setting: Mapping[str, str | float] = field(default_factory=dict)

    def __str__(self) -> str:
        how = [f"{key}={value}" for key, value in self.setting.items()]
        return f"{self.system} {', '.join(how) or self.place.removeprefix(MEASURED)}"


@dataclass(frozen=True)
class Claim:
    """What a paper says: that the first side minus the second is above a bound, or below it.

    Attributes:
        name: in a few words. source: paper and place.
        second: None: the first side's own value.
        metric: of a query; of `ALIGNED` as `_measure_pairs` has it; of a trend the metric's name.
        sign: 1 = above, −1 = below. note: how the claim is put in numbers.
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
        """What is compared, as a formula."""
        sides = " − ".join(map(str, self.sides))
        return f"{sides}, {metric_names.label(self.metric)} {'<>'[self.sign > 0]} {self.bound:g}"


@dataclass(frozen=True)
class Estimate:
    """An effect, its 95 % interval, its p-value against the bound, and the number of units."""

    effect: float
    low: float
    high: float
    p: float
    units: int


def estimate(claim: Claim, groups: Sequence[Group], split: str = "") -> Estimate:
    """The effect that a claim is about: first side minus second.

    Args:
        groups: the runs of each side, one for each seed. split: a further test split.

    Raises:
        Missing: a file or a row is not there, or the sides were measured on different queries.
    """
    if claim.first.place.startswith(MEASURED):
        return estimate_trend(claim, groups[0].runs)
    sides = [
        _read_values(side, group.runs, claim.metric, split)
        for side, group in zip(claim.sides, groups, strict=True)
    ]
    if any(side.keys() != sides[0].keys() for side in sides):
        raise Missing("its sides were measured on different queries")
    columns = [np.array([side[query] for query in sorted(side)]) for side in sides]
    differences = columns[0] - (columns[1] if len(columns) > 1 else 0)
    low, high = map(float, interval(torch.from_numpy(differences)[:, None]))
    p = randomisation_test(differences, np.full_like(differences, claim.bound))
    return Estimate(float(differences.mean()), low, high, p, len(differences))


def estimate_trend(claim: Claim, runs: Sequence[Run]) -> Estimate:
    """Spearman's ρ over token types, its mean over analysed seeds, Bonett and Wright's interval.

    Seeds see the same tokens: their number does not add to the units (2000, Psychometrika 65).
    """
    key, counts = f"{claim.first.place}/{claim.metric}", []
    wanted = (WHOLE | {"direction": claim.first.place.rpartition("/")[2]}).items()
    runs = [run for run in runs if key in run.metrics and (run.path / RATES).is_file()]
    if not runs:
        raise Missing(f"{claim.first.system}: no {key} or no {RATES}")
    for run in runs:
        rows = read_rows(run.path / RATES, run.path)
        counts += [row["token_types"] for row in rows if wanted <= row.items()][:1]
    rho, units = fmean(run.metrics[key] for run in runs), min(counts, default=0)
    if units <= 3:
        raise Missing(f"{claim.first.system}: {units} token types say nothing of a trend")
    z = math.atanh(min(max(rho, -1 + 1e-9), 1 - 1e-9))
    error = math.sqrt((1 + rho**2 / 2) / (units - 3))
    low, high = (math.tanh(z + sign * NORMAL * error) for sign in (-1, 1))
    return Estimate(rho, low, high, math.erfc(abs(z) / error / math.sqrt(2)), units)


def _read_values(side: Side, runs: Sequence[Run], metric: str, split: str) -> Values:
    """A side's value of every query, the mean over seeds (that were studied or analysed)."""
    if side.place != ALIGNED and not side.place.startswith(STUDIED):
        queries = JudgedQueries(runs, side.place, split)
        if queries.judgements is None:
            raise Missing(f"{side.system}: no {queries.file} with its qrels, or seeds judged apart")
        values = queries.values([metric])[metric].tolist()
        return dict(zip(sorted(queries.judgements), values, strict=True))
    files, read = (KEPT, _read_alignments) if side.place == ALIGNED else (TABLES, _read_study)
    runs = [run for run in runs if all((run.path / file).is_file() for file in files)]
    if not runs:
        raise Missing(f"{side.system}: no {' with '.join(files)} ({side.place})")
    found = [read(side, run, metric) for run in runs]
    if any(one.keys() != found[0].keys() for one in found):
        raise Missing(f"{side.system}: its seeds were measured on different queries")
    return {query: fmean(one[query] for one in found) for query in found[0]}


def _read_study(side: Side, run: Run, metric: str) -> Values:
    """The values under a side's setting, of a study that kept those of every query."""
    fitting = [
        (_count(row.get("neighbours")), number)
        for number, row in enumerate(read_rows(run.path / STUDY, run.path))
        if side.setting.items() <= row.items()
    ]
    if not fitting:
        raise Missing(f"{side}: no such row in {STUDY}")
    column, found = f"{max(fitting)[1]}/{metric}", read_rows(run.path / QUERIES, run.path)
    if not all(column in row for row in found):
        raise Missing(f"{side.system}: no column {column} in {QUERIES}")
    return {str(row["query"]): row[column] for row in found}


def _count(neighbours: Any) -> float:
    """A number of neighbours; one that the search chose itself ("auto") is below all."""
    return neighbours if isinstance(neighbours, int | float) else 0


def _read_alignments(side: Side, run: Run, metric: str) -> Values:
    """A measure of the stored pairs' last layer: mean over heads, and over a query's pairs."""
    store, values = AlignmentStore(run.path / ALIGNED), defaultdict(list)
    for (query, _), value in zip(store.pairs, _measure_pairs(store, metric), strict=True):
        values[query].append(value)
    return {query: fmean(found) for query, found in values.items()}


def _measure_pairs(store: AlignmentStore, metric: str) -> Iterator[float]:
    """Of every pair, the mean over the last layer's heads.

    `relative_error`: ‖A − R‖_F / ‖A‖_F; `norm_ratio`: ‖A − R‖ / ‖W‖ in the lemma's norm (gr_as_mvdr
    Lemma 5.1). R is the best matrix of equal rows.
    """
    for batch in store.explanations(store.batch_size(VALUES, 64)):
        last, heads = batch.layers[-1], batch.layers[-1].alignment.shape[1]
        sides = last.document_mask, last.query_mask
        masks = [mask.repeat_interleave(heads, 0) for mask in sides]
        matrices = real_entries(last.alignment.flatten(0, 1), *masks)
        residuals = equal_rows_residual(matrices, *masks)
        if metric == "norm_ratio":
            norms = composite_norm(residuals).view(-1, heads)
            found = norms / batch.decoder.projection_norms[-1].double()
        else:
            found = torch.div(*map(matrix_norm, (residuals, matrices))).view(-1, heads)
        yield from found.mean(1).tolist()


MVDR, GR = "T5-ColBERT", "T5-SEAL"
FORWARD, BACKWARD = Side(MVDR, "rerank"), Side(MVDR, "rerank/document_to_query")
BY_GR = Side(GR, "rerank")
MATCH = f"{MEASURED}exact_match"
PRUNING, RETRIEVAL = f"{STUDIED}pruning", f"{STUDIED}token_retrieval"
ALL_TOKENS = Side("ALIGNER", PRUNING, {"keep_query": 1.0, "keep_document": 1.0})
POINT = "A point (0.01) is how we read"
# gr_as_mvdr's in the order of its sections, then those of the other papers.
CLAIMS = (
    Claim("MVDR (q→d) reranks better than MVDR (q←d)", "gr_as_mvdr Table 5", FORWARD, BACKWARD),
    Claim("MVDR (q→d) reranks better than GR", "gr_as_mvdr Table 5", FORWARD, BY_GR),
    Claim("MVDR (q←d) reranks better than GR", "gr_as_mvdr Table 5", BACKWARD, BY_GR),
    Claim("Rare query tokens match themselves less (MVDR)", "gr_as_mvdr Figure 2",
          Side(MVDR, f"{MATCH}/query_to_document"), metric="hard_idf_correlation", sign=-1,
          note="Spearman's ρ of a token type's hard exact match with its IDF is below 0."),
    *(Claim(f"Rare document tokens match themselves more ({name})", "gr_as_mvdr Figure 3",
            Side(system, f"{MATCH}/document_to_query"), metric=f"{soft}_idf_correlation",
            note="Spearman's ρ of a token type's soft exact match with its IDF is above 0; soft: "
            "of the softmax of A, which cross-attention's A is already.")
      for name, system, soft in (("MVDR", MVDR, OF_A), ("GR", GR, "soft"))),
    *(Claim(f"{name}, R@{rank}", "gr_as_mvdr Table 6", Side(one), Side(other), f"recall@{rank}")
      for name, one, other, ranks in (
          ("PAWA improves DSI", "DSI-PAWA", "DSI", (1, 10)),
          ("NP improves GENRE", "T5-GENRE-NP", "T5-GENRE", (1, 10)),
          ("MVDR stays above PAWA", MVDR, "DSI-PAWA", (10,)),
          ("MVDR stays above NP", MVDR, "T5-GENRE-NP", (10,)))
      for rank in ranks),
    Claim("‖A − R‖ is below ‖W‖ (GR)", "gr_as_mvdr Figure 4a, Lemma 5.1", Side(GR, ALIGNED),
          metric="norm_ratio", sign=-1, bound=1,
          note="‖A − R‖ / ‖W‖ of the last layer's heads, in the lemma's norm, R of equal rows."),
    Claim("GR's alignment is nearly of rank one", "gr_as_mvdr Figure 4b, Lemma 5.1",
          Side(GR, ALIGNED), metric="relative_error", sign=-1, bound=0.5,
          note="‖A − R‖ / ‖A‖ (Frobenius) of the last layer's heads, R of equal rows as in the "
          "lemma. Below 0.5 R holds over three quarters of ‖A‖²; the paper says “relatively low”."),
    Claim("MVDR finds more than GR", "gr_as_mvdr Table 8", Side(MVDR), Side(GR)),
    Claim("MVDR finds more than BM25", "gr_as_mvdr Table 8", Side(MVDR), Side("BM25")),
    Claim("50 % of query and 40 % of document tokens keep MRR@10", "aligner Figure 6",
          Side("ALIGNER", PRUNING, {"keep_query": 0.5, "keep_document": 0.4}), ALL_TOKENS,
          bound=-0.01, note=f"{POINT} “performs similarly”; the paper loses 0.007."),
    Claim("50 % of query and 20 % of document tokens keep nDCG@10", "aligner §1",
          Side("ALIGNER", PRUNING, {"keep_query": 0.5, "keep_document": 0.2}), ALL_TOKENS,
          "ndcg@10", bound=-0.01, note="The paper: “less than 1 point decrease”."),
    *(Claim(name, "xtr Table 5",
            Side(system, RETRIEVAL, {"mode": "impute", "imputation": "last"}),
            Side(system, RETRIEVAL, {"mode": "gather"}), sign=sign, bound=-0.01,
            note=f"At the largest k'. {POINT} {words}.")
      for name, system, sign, words in (
          ("XTR loses little without gathering", "XTR", 1, "“minimal performance losses”"),
          ("T5-ColBERT loses much without gathering", MVDR, -1, "“much worse”: more than that"))),
    Claim("XTR keeps up with T5-ColBERT on its own collection", "xtr Table 2",
          Side("XTR"), Side(MVDR), "ndcg@10", bound=-0.01, note=f"{POINT} “competitive”."),
    Claim("MVA reranks better than a dual encoder", "mva Table 5",
          Side("MVA", "rerank"), Side("DPR", "rerank")),
    Claim("A cross-encoder reranks better than MVA", "mva Table 5",
          Side("Cross-encoder", "rerank"), Side("MVA", "rerank")),
)  # fmt: skip


# Verdict → its colour and marker in the figure.
LOOKS = {
    "confirmed": (COLOURS[0], MARKERS[0]),
    "contradicted": (COLOURS[5], MARKERS[1]),
    "undecided": (COLOURS[7], MARKERS[2]),
}


@dataclass
class Finding:
    """What the runs of a collection say of a claim.

    Attributes:
        place: the collection and the split. systems: the runs' labels; seeds: of each side.
        found: None where something is missing, which `missing` names.
        corrected: p after Holm's correction over the collection's findings.
    """

    claim: Claim
    place: str
    systems: str = ""
    seeds: str = ""
    found: Estimate | None = None
    missing: str = ""
    corrected: float = 1.0

    @property
    def support(self) -> list[float]:
        """Effect and both ends of its interval, counted from the bound; above 0 as claimed."""
        claim, found = self.claim, self.found
        values = (found.effect, found.low, found.high)
        return [claim.sign * (value - claim.bound) for value in values]

    @property
    def verdict(self) -> str:
        """ "confirmed", "contradicted" or "undecided"."""
        if self.found is None:
            return "undecided"
        effect, *ends = self.support
        if self.corrected >= LEVEL or min(ends) <= 0 <= max(ends):
            return "undecided"
        return "confirmed" if effect > 0 else "contradicted"

    @property
    def row(self) -> Row:
        """For `claims.csv`."""
        claim = self.claim
        row: Row = {"place": self.place, "claim": claim.name, "source": claim.source}
        row |= {"compared": str(claim), "systems": self.systems, "seeds": self.seeds}
        row |= asdict(self.found) | {"corrected": self.corrected} if self.found else {}
        return row | {"verdict": self.verdict, "missing": self.missing}


def judge_claims(comparison: Comparison, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Every claim on every collection and split; each pair of systems of its names by itself."""
    findings = []
    names = [section.setting.partition(" (")[0] for section in comparison.sections]
    for section, name in zip(comparison.sections, names, strict=True):
        title = name if names.count(name) == 1 else section.setting
        judged = [finding for claim in claims for finding in _judge(claim, section, title)]
        tested = [finding for finding in judged if finding.found]
        corrected = holm([finding.found.p for finding in tested])
        for finding, p in zip(tested, corrected, strict=True):
            finding.corrected = p
        findings += judged
    return findings


def _judge(claim: Claim, section: Section, title: str) -> Iterator[Finding]:
    splits = section.groups[0].runs[0].provenance.get("splits") or [""]
    first = splits[0] if isinstance(splits, list) else ""
    further = [] if claim.first.place.startswith((STUDIED, ALIGNED, MATCH)) else section.splits
    named = {s.system: [g for g in section.groups if _name(g) == s.system] for s in claim.sides}
    if missing := [system for system, groups in named.items() if not groups]:
        place = f"{title} {first}".strip()
        yield Finding(claim, place, missing=f"no run of {', '.join(missing)}")
    for chosen in product(*named.values()):  # a system is compared with itself
        groups = [dict(zip(named, chosen, strict=True))[side.system] for side in claim.sides]
        for split in ["", *sorted(further)]:
            finding = Finding(claim, f"{title} {split or first}".strip())
            finding.systems = " − ".join(group.label for group in groups)
            finding.seeds = "; ".join(dict.fromkeys(group.seeds for group in groups))
            try:
                finding.found = estimate(claim, groups, split)
            except Missing as missed:
                finding.missing = str(missed)
            yield finding


def _name(group: Group) -> str:
    """An XTR without its training alignment is T5-ColBERT (`experiment=xtr_k`)."""
    run = group.runs[0]
    untrained = run.config.get("model", {}).get("training_alignment", True) is None
    return MVDR if run.system == "XTR" and untrained else run.system


def tabulate_place(findings: Sequence[Finding], place: str) -> Table:
    """What was measured on one collection and split, claim by claim."""
    columns = ["verdict", "effect", "bound", "p", "units", "systems", "seeds", "source"]
    rows = []
    for finding in (f for f in findings if f.place == place and f.found):
        found, claim = finding.found, finding.claim
        texts = [finding.verdict, f"{found.effect:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"]
        texts += [f"{claim.bound:g}", f"{finding.corrected:.4f}", str(found.units)]
        texts += [finding.systems.replace("−", "-"), finding.seeds, claim.source]
        cells = [Cell(text.replace("-", "−")) for text in texts[:-2]] + [*map(Cell, texts[-2:])]
        rows.append((claim.name, cells))
    return Table(place, columns, rows, corner="claim")


@styled
def draw_claims(findings: Sequence[Finding], title: str) -> Figure:
    """A forest plot: effects with their intervals, counted from the bound; right is as claimed."""
    shown = [finding for finding in findings if finding.found]
    several = Counter(name for _, name in {(f.systems, f.claim.name) for f in shown})
    labels = [
        f"{f.claim.name}: {f.systems}" if several[f.claim.name] > 1 else f.claim.name for f in shown
    ]
    names = list(dict.fromkeys(labels))[::-1]
    places = list(dict.fromkeys(finding.place for finding in shown))
    heading = f"{title}: effects from the claim's bound on, right of 0 is as claimed"
    height = 1.2 + 0.24 * max(1, len(names))
    figure, panels = page_panels(heading, max(1, len(places)), height, sharey=True)
    for axes, place in zip(panels, places, strict=False):
        for verdict, (colour, marker) in LOOKS.items():
            drawn = [
                (finding.support, names.index(label))
                for finding, label in zip(shown, labels, strict=True)
                if (finding.place, finding.verdict) == (place, verdict)
            ]
            ends = np.array([support for support, _ in drawn]).reshape(-1, 3)
            axes.errorbar(
                ends[:, 0],
                [row for _, row in drawn],
                xerr=[ends[:, 0] - ends[:, 1:].min(1), ends[:, 1:].max(1) - ends[:, 0]],
                **{"linestyle": "none", "marker": marker, "color": colour, "label": verdict},
            )
        axes.axvline(0, color="#666666", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(place.replace(" (", "\n(", 1), parse_math=False)
        axes.grid(axis="x")
    legend_below(figure, 3)
    return figure


def format_claims(findings: Sequence[Finding]) -> list[str]:
    """A table for each collection in Markdown, how to read it, and what is missing."""
    lines = ["# The papers' claims", "", escape_markdown(EXPLAINED), ""]
    for place in dict.fromkeys(finding.place for finding in findings if finding.found):
        lines += [*format_markdown(tabulate_place(findings, place)), ""]
    notes = {f.claim.name: f"{f.claim}. {f.claim.note}".strip() for f in findings}
    lines += [f"- {escape_markdown(f'{name}: {note}')}" for name, note in notes.items()]
    for finding in (finding for finding in findings if finding.missing):
        text = f"missing ({finding.place}): {finding.claim.name}: {finding.missing}"
        lines.append(f"- {escape_markdown(text)}")
    return lines


EXPLAINED = (
    f"Effect: first side minus second, its mean over units (queries, or token types of a trend) "
    f"with a 95 % bootstrap interval; a query's values are averaged over seeds first. p: two-sided "
    f"paired randomisation test against the bound, corrected over the claims of a collection "
    f"(Holm). Confirmed or contradicted: p < {LEVEL} and the interval leaves out the bound."
)


def write_claims(comparison: Comparison, folder: Path) -> list[Finding]:
    """Writes `claims.csv`, `claims.md` and the figure."""
    findings = judge_claims(comparison)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows([finding.row for finding in findings], folder / "claims.csv")
    write_text(folder / "claims.md", "\n".join(format_claims(findings)) + "\n")
    title = "; ".join(section.setting for section in comparison.sections)
    save_figure(draw_claims(findings, title), folder, "claims")
    return findings


def main(config: DictConfig) -> None:
    comparison = compare_runs(named_folders(config.runs), mixed=True)
    folder = place_tables(comparison, "claims", config.output)
    write_claims(comparison, folder)
    print((folder / "claims.md").read_text(), *comparison.notes, sep="\n")
    print(folder / "claims.md", folder / "claims.png", sep="\n")
