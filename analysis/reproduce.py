"""The papers' experiments (`conf/papers`): their list and commands, and their smoke tests.

python -m analysis.reproduce                    prints the list
python -m analysis.reproduce --smoke [NAMES]    runs experiments in small, all without NAMES
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from conf.command import report_errors
from conf.composition import read_papers, register_experiments, register_resolvers
from gr_mvdr.files import write_json

ROOT = Path(__file__).parents[1]
HEADER = ["experiment", "of the paper", "runs", "after", "measured"]
# What every run of a smoke test leaves, as the real one does.
FILES = ("config.yaml", "metrics.json", "retrieve.trec", "rerank.trec", "report.html")


@dataclass(frozen=True)
class Experiment:
    """What makes a table or figure of a paper on its own collection.

    Attributes:
        name: `experiment=NAME`; paper: the file of `conf/papers` that has it.
        about: which table or figure, on which data, what it shows.
        needs: arguments of the command line that name the user's files.
        first: those under which `makers` make further runs that it reads.
        config: composed, with Hydra's part.
    """

    name: str
    paper: str
    about: str
    needs: str
    first: str
    config: DictConfig

    @property
    def numbers(self) -> str | None:
        """The paper's table that its runs are compared with; None where it gives no numbers."""
        return self.config.hydra.callbacks.compare.get("paper")

    @property
    def folder(self) -> str:
        """The folder of its runs, under `experiments`; several experiments may share one."""
        return self._place(self.config.output)

    @property
    def tables(self) -> str:
        """The folder of its comparison, under `experiments`."""
        return self._place(self.config.hydra.callbacks.compare.get("out") or self.config.output)

    @property
    def reads(self) -> set[str]:
        """The folders of the runs that it takes its models from."""
        taken = [self.config.weights, self.config.initial]
        paths = [*taken, *(s.run for s in self.config.model.get("stages", []))]
        return {Path(self._place(path)).parts[0] for path in paths if path}

    @property
    def sweep(self) -> dict[str, list[str]]:
        """What its sweep varies: key → values."""
        params = OmegaConf.to_container(self.config.hydra.sweeper.params, resolve=True)
        lines = [f"{key}={value}" for key, value in params.items()]
        parsed = OverridesParser.create().parse_overrides(lines)
        return {
            line.split("=")[0]: list(override.sweep_string_iterator())
            if override.is_sweep_override()
            else [line.split("=", 1)[1]]
            for line, override in zip(lines, parsed, strict=True)
        }

    @property
    def command(self) -> str:
        """The command line that makes it from the public files."""
        return " ".join(filter(None, [f"python train.py experiment={self.name}", self.needs]))

    def _place(self, path: str) -> str:
        return str(Path(path).relative_to(self.config.experiments))


def read_experiments() -> list[Experiment]:
    """All experiments of the papers on the papers' own collections, in the order of their files."""
    return [
        Experiment(
            name,
            paper,
            entry["about"],
            content["shared"][shared].get("needs", ""),
            entry.get("first", ""),
            config,
        )
        for paper, content in read_papers().items()
        for name, entry in content["experiments"].items()
        if (config := compose_experiment(name))
        and (shared := config.hydra.runtime.choices.get("shared"))
    ]


def compose_experiment(name: str, *overrides: str) -> DictConfig:
    """The configuration of an experiment, with Hydra's part; of a job of its sweep by overrides."""
    register_resolvers()
    register_experiments()
    arguments = [f"experiment={name}", "name=run", "logger=none", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", arguments, return_hydra_config=True)


def makers(experiment: Experiment, experiments: Sequence[Experiment]) -> list[str]:
    """The experiments that make the runs which this one reads: they come first."""
    return [
        other.name
        for other in experiments
        if other.folder in experiment.reads and other.folder not in other.reads
    ]


def list_experiments() -> Iterator[str]:
    """All experiments in Markdown: a table for each paper, then the commands in their order."""
    experiments = read_experiments()
    yield from tables(experiments)
    yield from commands(experiments)


def tables(experiments: Sequence[Experiment]) -> Iterator[str]:
    """A table of each paper's experiments."""
    for paper, content in read_papers().items():
        yield from (f"## {content['title']} (`{paper}`)", "", _row(HEADER), _row(["---"] * 5))
        for one in experiments:
            if one.paper == paper:
                runs = prod(map(len, one.sweep.values()))
                words = ["", f" {one.first}"] if one.first else [""]
                read = [f"`{name}{w}`" for name in makers(one, experiments) for w in words]
                first = ", ".join(read) or "–"
                yield _row([f"`{one.name}`", one.about, str(runs), first, measured(one)])
        yield ""


def measured(experiment: Experiment) -> str:
    """What an experiment is about: the metrics of the paper's table, else of its data."""
    metrics, places = experiment.config.data.metrics, ["retrieve"]
    if experiment.numbers:
        from analysis.papers.paper import read_paper

        paper = read_paper(experiment.numbers)
        metrics, places = paper.metrics, dict.fromkeys(row.place for row in paper.rows)
    study = [f"`study={name}`"] if (name := experiment.config.hydra.runtime.choices.study) else []
    numbers = ["with the paper's numbers"] if experiment.numbers else []
    return "; ".join([f"{', '.join(metrics)} of {', '.join(places)}", *study, *numbers])


def commands(experiments: Sequence[Experiment]) -> Iterator[str]:
    """The commands in their order; what an experiment reads comes before it."""
    lines = []
    for one in experiments:
        first = makers(one, experiments) if one.first else []
        lines += [f"{other.command} {one.first}" for other in experiments if other.name in first]
        lines.append(one.command)
    yield from ("```", *dict.fromkeys(lines), "```")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def smoke_test(names: Sequence[str], folder: Path) -> list[str]:
    """Runs experiments in small, and before each those whose runs it reads; returns who failed.

    What was finished in the folder before is kept. `smoke.json` there: name → seconds and fault.

    Raises:
        ValueError: no experiment of a name.
    """
    experiments = read_experiments()
    known = {one.name: one for one in experiments}
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: must be one of {', '.join(known)}")
    wanted = {*(names or known)}
    for one in reversed(experiments):  # what is read may read others
        if one.name in wanted:
            wanted.update(makers(one, experiments))
    record = {}
    for one in (one for one in experiments if one.name in wanted):
        start = time.perf_counter()
        fault = run_small(one, folder)
        record[one.name] = {"seconds": round(time.perf_counter() - start), "fault": fault}
        print(f"{one.name}: {fault or 'done'}", flush=True)
        write_json(folder / "smoke.json", record)
    return [name for name, result in record.items() if result["fault"]]


def run_small(experiment: Experiment, folder: Path, *overrides: str) -> str | None:
    """Runs an experiment with `smoke=true` in a process of its own: what went wrong, if anything.

    Args:
        folder: of its folders; overrides: further words of the command line.
    """
    arguments = [f"experiment={experiment.name}", "smoke=true", f"experiments={folder}", *overrides]
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    wanted = ["comparison.csv", "comparison.html"]
    wanted += ["paper_table.md"] if experiment.numbers else []
    from analysis.runs.run_folder import find_runs

    runs = find_runs(folder / experiment.folder) or [folder / experiment.folder]
    paths = [folder / experiment.tables / name for name in wanted]
    paths += [run / name for run in runs for name in FILES]
    missing = [str(path) for path in paths if not path.is_file()]
    return f"it left no {', '.join(missing)}" if missing else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.reproduce", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--smoke", nargs="*", metavar="NAME", help="experiments to run in small")
    names = parser.parse_args().smoke
    if names is None:
        print(*list_experiments(), sep="\n")
        return
    from analysis.runs.provenance import find_revision

    if failed := smoke_test(names, ROOT / "outputs" / "smoke" / find_revision()):
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    with report_errors():
        main()
