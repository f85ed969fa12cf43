"""Keeps the records of runs, and makes the tables of a page from them.

``python -m analysis.record runs='[outputs/a,outputs/sweep]' output=results``

A record is a run's configuration, provenance, numbers and values of queries. Comparisons,
claims and lists of runs read it as they read the run. Names replace absolute folders
(``names='{DATA: FOLDER}'``), so that its command can be typed anywhere.
"""

if __name__ == "__main__":  # before the heavy imports: command-line errors appear at once
    from conf.command import run_command

    run_command("runs", "analysis.record:main")
    raise SystemExit

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from pandas import concat

from analysis.claims import tabulate_claims
from analysis.compare.groups import MARK, SEEDS, Section, compare_runs, read_runs
from analysis.runs.numbers import NUMBERS
from analysis.runs.queries import QUERIES
from analysis.runs.run_folder import named_folders
from analysis.runs.tables import Cell, format_markdown, pivot, tabulate
from gr_mvdr.evaluation.metrics import find_metric
from gr_mvdr.files import (
    CONFIG,
    PARTS,
    PROVENANCE,
    check_file,
    new_file,
    read_text,
    reading,
    write_text,
)
from gr_mvdr.measures import COST, RETRIEVE

RECORD = (*PARTS, NUMBERS, QUERIES)  # a record's files; the last only if the run has it
# An absolute path: a text of YAML, JSON or CSV that begins with a slash, or part of a typed value.
PATH = re.compile(r"""(?:^|[:,-] |[=\[{(,"'])(/[\w.][^,"'\]})\n]*)""", re.MULTILINE)
SHOWN = ("mrr@10", "recall@10", "cost/train_seconds", "cost/train_flops")
_START, _END = "<!-- (?:table|claims):", "<!-- end -->"
_BLOCK = re.compile(rf"(<!-- (table|claims): (.*?) -->\n)((?:(?!{_START}).)*?)({_END})", re.DOTALL)


def record_runs(
    paths: Sequence[Path | str], output: Path, names: Mapping[str, str] | None = None
) -> list[str]:
    """Writes the record of each finished run into `output/NAME`.

    Args:
        paths: run folders, or folders that hold some.
        names: name → the folder that it stands for in the records; a run's `output` is "outputs".

    Returns:
        A line for each record, and for each run that was skipped.

    Raises:
        ValueError: there is no finished run, a record of another run has the same name, or an
            absolute path lies in no named folder; then nothing is written.
    """
    runs, notes = read_runs([Path(path) for path in paths])
    if not runs:
        raise ValueError("; ".join(["runs: no finished run to record", *notes]))
    named = {str(Path(folder).expanduser().absolute()): n for n, folder in (names or {}).items()}
    records: dict[Path, dict[str, bytes]] = {}
    for run in runs:
        record = output / run.path.absolute().name
        # A link in a folder that somebody else made must not bring another file into the record.
        files = [run.path / name for name in RECORD if (run.path / name).exists()]
        contents = {file.name: check_file(file, run.path).read_bytes() for file in files}
        folders = {str(run.config.get("output")): "outputs"} | named
        for name in (CONFIG, PROVENANCE):
            if name in contents:
                text = _name_folders(contents[name].decode(), folders, run.path / name)
                contents[name] = text.encode()
        kept = [record / name for name in (CONFIG, PROVENANCE) if (record / name).exists()]
        if record in records or any(file.read_bytes() != contents[file.name] for file in kept):
            raise ValueError(
                f"{record}: must be free or the record of {run.path}, it is of another run: "
                "choose another output, or rename the run's folder"
            )
        records[record] = contents
    lines = []
    for record, contents in records.items():
        record.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with new_file(record / name) as partial:
                partial.write_bytes(content)
        lines.append(f"{record}: {sum(map(len, contents.values())) / 1000:.0f} kB")
    return lines + notes


def _name_folders(text: str, folders: Mapping[str, str], file: Path) -> str:
    """Replaces the absolute ones of some folders by their names in a file's text."""
    text = re.sub(r"(?<![\w./])~(?=/)", str(Path.home()), text)
    for folder in sorted(filter(os.path.isabs, folders), key=len, reverse=True):  # innermost first
        pattern, name = rf"(?<![\w./~-]){re.escape(folder)}(?![\w.-])", folders[folder]
        text = name.join(re.split(pattern, text))
    if found := PATH.search(text):
        rule = "must name a folder of every absolute path"
        raise ValueError(f"names: {rule}, none holds {found[1]} ({file})")
    return text


def tabulate_results(
    runs: str | Sequence[str],
    splits: str | Sequence[str] = (),
    metrics: str | Sequence[str] = SHOWN,
    labels: Mapping[str, object] | None = None,
) -> str:
    """Makes a Markdown table of records: a row for each system, columns for each collection.

    Cells are means ± standard deviations over seeds. The best of a column are bold; a system is
    italic if it was trained with fewer than `SEEDS` seeds, and has † if its seeds were measured at
    different commits. A cell says how many seeds it is over if some of its row's lack the metric.
    Below the table is the machine. A table of one collection also counts the seeds and names the
    commits of the runs.

    Args:
        runs: folders of records, or of runs.
        splits: test splits; by default all of them.
        metrics: columns: a metric of the search, for every split ("mrr@10"), or the key of any
            metric ("cost/train_seconds", "cost/train_flops"); columns that no run has are left out.
        labels: see `compare_runs`.

    Raises:
        ValueError, FileNotFoundError: as `compare_runs`; or no run has a split.
    """
    comparison = compare_runs(named_folders(runs), labels)
    wanted, asked, cells = _as_list(splits), _as_list(metrics), {}
    known = {split for run in comparison.runs for split in run.splits}
    if missing := [split for split in wanted if split not in known]:
        raise ValueError(f"splits={missing[0]}: must be one of {', '.join(sorted(known))}")
    for section in comparison.sections:
        measured = section.groups[0].runs[0].splits
        name = section.setting.replace(f" ({', '.join(measured)})", "")
        place = f"{name} " if len(comparison.sections) > 1 else ""
        groups = {group.label: group for group in section.groups}
        table = tabulate({label: group.numbers for label, group in groups.items()})
        searched = table[(table["group"] == RETRIEVE.name) & (table["place"] == "")]
        columns = []
        for split in measured:
            rows = searched[searched["split"] == ("" if split == measured[0] else split)]
            for metric in asked if split in (wanted or measured) else ():
                found = rows[rows["metric"] == find_metric(metric)]
                columns.append(found.assign(column=f"{split} " + found["label"]))
        for key in asked:
            found = table[table["key"] == key]
            names = found["label"].where(found["group"] == COST.name, found["name"])
            columns.append(found.assign(column=names))
        for row in concat(columns).itertuples():
            group = groups[row.system]
            text = row.cell.text + f" {MARK}" * (group.across_commits and row.seeds > 1)
            few = group.is_trained and row.seeds < SEEDS
            best = row.cell.best
            cells[row.system, place + row.column] = Cell(text, best, few)
        if not place:
            cells |= {(group.label, "seeds"): str(len(group.runs)) for group in section.groups}
    whole = Section("", comparison.groups)
    sources = {"hardware": "Measured on"} | ({} if place else {"commit": "Commit"})
    listed = {what: "; ".join(whole.labels_by(name)) for name, what in sources.items()}
    notes = [f"{what} {values}." for what, values in listed.items() if values]
    table = pivot(cells, corner=name if not place else "system", note=" ".join(notes))
    return "\n".join(format_markdown(table)[2:])  # without the heading


def _as_list(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def renew_tables(page: Path) -> str:
    """Returns a page's text with each of its tables made again from records.

    A table stands between the lines `<!-- table: runs=results/NAME splits=[test] -->` and
    `<!-- end -->`; the first one holds the arguments of `tabulate_results`, or after `claims:`
    those of `analysis.claims.tabulate_claims`.

    Raises:
        ValueError: a table has no end, or cannot be made; the message names the line.
    """
    text = read_text(page)

    def make(block: re.Match) -> str:
        line = text.count("\n", 0, block.start()) + 1
        with reading(f"{page}:{line}"):
            asked = OmegaConf.to_container(OmegaConf.from_dotlist(shlex.split(block[3])))
            tabulate = tabulate_claims if block[2] == "claims" else tabulate_results
            return f"{block[1]}{tabulate(**asked)}\n{block[5]}"

    renewed, made = _BLOCK.subn(make, text)
    if made != len(re.findall(_START, text)):
        raise ValueError(f"{page}: every line <!-- table: … --> must have a line {_END} after it")
    return renewed


def main(config: DictConfig) -> None:
    if config.runs or not config.page:
        for line in record_runs(
            named_folders(config.runs), Path(config.output or "results"), config.names
        ):
            print(line)
    for page in named_folders(config.page or []):
        if (text := renew_tables(page)) != read_text(page):
            write_text(page, text)
        print(page)
