"""The papers' experiments (`conf/papers`) and their commands: ``python -m analysis.reproduce``."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from conf import composition
from conf.command import report_errors

ROOT = Path(__file__).parents[1]
# Matches an experiment in a YAML file, and the comment above it.
_DESCRIBED = re.compile(r"^  # (.+)\n  (\w+):", re.MULTILINE)


@dataclass(frozen=True)
class Experiment:
    """An experiment that makes a table or figure of a paper, on the paper's own collection.

    Attributes:
        name: as in `experiment=NAME`.
        paper: the name of its file in `conf/papers`.
        about: which table or figure it makes, on which data, and what it shows.
        config: the composed configuration, including Hydra's part.
    """

    name: str
    paper: str
    about: str
    config: DictConfig

    @cached_property
    def numbers(self) -> str | None:
        """The paper's table that its runs are compared with; None if the paper has no numbers."""
        return self.config.hydra.callbacks.compare.get("paper")

    @cached_property
    def folder(self) -> str:
        """The folder of its runs, under `experiments`; several experiments may share one."""
        return self._place(self.config.output)

    @cached_property
    def tables(self) -> str:
        """The folder of its comparison, under `experiments`."""
        return self._place(self.config.hydra.callbacks.compare.get("out") or self.config.output)

    @cached_property
    def reads(self) -> set[str]:
        """The folders of the runs from which it loads models."""
        taken = [self.config.weights, self.config.initial]
        paths = [*taken, *(s.run for s in self.config.model.get("stages", []))]
        return {Path(self._place(path)).parts[0] for path in paths if path}

    @cached_property
    def runs(self) -> int:
        """The number of runs in its sweep."""
        params = OmegaConf.to_container(self.config.hydra.sweeper.params or {}, resolve=True)
        lines = [f"{key}={value}" for key, value in params.items()]
        swept = OverridesParser.create().parse_overrides(lines)
        return prod(len([*o.sweep_string_iterator()]) for o in swept if o.is_sweep_override())

    @cached_property
    def command(self) -> str:
        """The command line that runs it; "…" stands for the user's files."""
        missing = sorted(k for k in OmegaConf.missing_keys(self.config) if k.startswith("data."))
        return " ".join([f"python train.py experiment={self.name}", *(f"{k}=…" for k in missing)])

    def _place(self, path: str) -> str:
        return str(Path(path).relative_to(self.config.experiments))


def read_experiments() -> list[Experiment]:
    """Reads all experiments on the papers' own collections, in the order of their files."""
    found = []
    for paper, groups in composition.read_experiments().items():
        text = (composition.EXPERIMENTS / f"{paper}.yaml").read_text(encoding="utf-8")
        described = {name: about for about, name in _DESCRIBED.findall(text)}
        for name in groups["experiment"] if paper != "ours" else ():
            config, about = compose_experiment(name), described.get(name, "")
            if config.hydra.runtime.choices.get("shared"):
                found.append(Experiment(name, paper, about, config))
    return found


def compose_experiment(name: str, *overrides: str) -> DictConfig:
    """Composes an experiment's configuration with Hydra's part; overrides select a sweep's job."""
    composition.register_resolvers()
    composition.register_experiments()
    arguments = [f"experiment={name}", "name=run", "logger=none", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", arguments, return_hydra_config=True)


def makers(experiment: Experiment, experiments: Sequence[Experiment]) -> list[str]:
    """Returns the experiments whose runs this one reads, and which must therefore run first."""
    return [
        other.name
        for other in experiments
        if other.folder in experiment.reads and other.folder not in other.reads
    ]


def list_experiments() -> Iterator[str]:
    """Yields a Markdown table for each paper: commands in order, what each makes and reads."""
    experiments = read_experiments()
    for paper in dict.fromkeys(one.paper for one in experiments):
        yield from (f"## {paper}", "", "| command | makes | runs | after |", "|---|---|---|---|")
        for one in (one for one in experiments if one.paper == paper):
            first = ", ".join(makers(one, experiments)) or "–"
            yield f"| `{one.command}` | {one.about} | {one.runs} | {first} |"
        yield ""


if __name__ == "__main__":
    with report_errors():
        print(*list_experiments(), sep="\n")
