"""Writes tables of docs/results.md from runs: ``python -m analysis.results block=table8 runs=[…]``.

A block is what is between `<!-- results: NAME -->` and `<!-- end -->`: the command that made it,
the tables, and where the runs come from. Other text stays.
"""

if __name__ == "__main__":  # before the other imports: errors of the command line need none
    from conf.command import run_command

    run_command("results", "analysis.results:main")
    raise SystemExit

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from analysis import metric_names
from analysis.claims import EXPLAINED, Finding, judge_claims, tabulate_verdicts
from analysis.comparison.comparison import (
    Comparison,
    Section,
    compare_runs,
    summarise_section,
)
from analysis.comparison.paper import match_sections, read_paper, tabulate_paper
from analysis.comparison.significance import (
    PAIRS_AT_MOST,
    compare_effectiveness,
    explain_tests,
    tabulate_pairs,
)
from analysis.run_folder import Run, named_folders
from analysis.tables import Table, escape_markdown, format_markdown, replace_block
from gr_mvdr.files import write_text

TRAINING = "cost/train_seconds"


def format_results(config: DictConfig, comparison: Comparison) -> Iterator[str]:
    """The tables that a block asks for, section by section, as lines of Markdown.

    Args:
        config: `conf/results.yaml`.

    Raises:
        FileNotFoundError, ValueError: as `read_paper`.
    """
    if config.claims:
        yield from _format_claims(judge_claims(comparison))
        return
    for section in comparison.sections:
        tested = compare_effectiveness(section)
        keys = _choose_keys(section, list(config.metrics))
        table = summarise_section(section, keys, tested.winners)
        yield from _format(table, "Mean ± sample standard deviation over seeds.")
        if tested.differences:
            yield from _format(tabulate_pairs(tested, PAIRS_AT_MOST), explain_tests(tested))
    if config.paper:
        paper = read_paper(config.paper)
        for section, lines, notes in match_sections(comparison, paper):
            yield from _format(tabulate_paper(section, paper, lines), *notes)


def _format_claims(findings: Sequence[Finding]) -> Iterator[str]:
    """The verdicts, and by name the claims that none of the runs can judge."""
    judged = [finding for finding in findings if finding.found]
    known = {finding.claim.name for finding in judged}
    rest = dict.fromkeys(f.claim.name for f in findings if f.claim.name not in known)
    notes = [f"Not judged, runs are missing: {'; '.join(rest)}."] if rest else []
    yield from _format(tabulate_verdicts(judged), EXPLAINED, *notes)


def _choose_keys(section: Section, metrics: Sequence[str]) -> list[str]:
    """The metrics of the search, split by split, of the main form of reranking, and the budget."""
    return [
        key
        for key in section.keys
        if key == TRAINING
        or (
            key.rpartition("/")[2] in metrics
            and (metric_names.group(key) == "retrieve" or key.rpartition("/")[0] == "rerank")
        )
    ]


def _format(table: Table, *notes: str) -> Iterator[str]:
    """A table under its name in bold: headings are the document's."""
    yield from (f"**{escape_markdown(table.heading)}**", "", *format_markdown(table)[2:], "")
    yield from (line for note in notes for line in (escape_markdown(note), ""))


def describe_origin(runs: Sequence[Run]) -> str:
    """Commit, machine and budget of some runs, from their `provenance.json` and metrics."""

    def list_all(*keys: str) -> str:
        return ", ".join(sorted({_at(run, keys) for run in runs}))

    seconds = [run.metrics.get(TRAINING, 0.0) for run in runs]
    seeds = ", ".join(sorted({str(run.seed) for run in runs}))
    return (
        f"{len(runs)} runs, seeds {seeds}. Commit: {list_all('git')}. Machine: "
        f"{list_all('hardware', 'processor')}, {list_all('hardware', 'cores')} cores. Training: "
        f"{min(seconds):,.0f} to {max(seconds):,.0f} s a run, {sum(seconds) / 3600:.1f} h in all."
    )


def _at(run: Run, keys: Sequence[str]) -> str:
    """A value of a run's provenance; older runs may lack it."""
    value: object = run.provenance
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return "not recorded" if value is None else str(value)


def main(config: DictConfig) -> None:
    if not config.block:
        place = f"<!-- results: NAME --> of {config.document}"
        raise ValueError(f"block=null: must be a name, as in {place}")
    document = Path(config.document)
    comparison = compare_runs(named_folders(config.runs), mixed=True, labels=config.labels)
    typed = shlex.join(["python", "-m", "analysis.results", *HydraConfig.get().overrides.task])
    lines = [f"    {typed}", "", *format_results(config, comparison)]
    lines.append(escape_markdown(describe_origin(comparison.runs)))
    text = document.read_text(encoding="utf-8")
    write_text(document, replace_block(text, f"results: {config.block}", lines, document))
    print(*lines, *comparison.notes, document, sep="\n")
