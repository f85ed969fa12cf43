"""The list of recipes, read from `conf/experiment`: a file for each table or figure of a paper."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

CONFIGURATIONS = Path(__file__).parents[2] / "conf"
# A recipe's first comment line: "aligner Table 6 (Appendix A.4), MS MARCO: what it shows."
_TITLE = re.compile(r"# (gr_as_mvdr|aligner|xtr|mva) ((?:Table|Figure)[^:]*), ([^,:]+): (.+)")
# What an option of a group asks of the command line.
ARGUMENTS = {
    "data": {"nq320k": "data.path=NQ", "msmarco_doc": "data.path=MSMARCO"},
    "negatives": {
        "rocketqa": "data.examples.negatives.path=ROCKETQA",
        "triples": "data.examples.negatives.path=TRIPLES data.candidates_run=TOP1000",
    },
}


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper, and the configuration that makes it.

    Attributes:
        name: of the file in `conf/experiment`.
        paper, table, data: "aligner", "Table 3", "BEIR".
        title: what it shows, in a sentence; notes: how it differs from the paper.
        choices: group → option, as far as recipe and protocol choose them.
        settings: the merged values of both, not resolved.
    """

    name: str
    paper: str
    table: str
    data: str
    title: str
    notes: str
    choices: dict[str, str]
    settings: Any

    @property
    def numbers(self) -> str | None:
        """The file of `conf/paper` with the paper's numbers; None where it gives none."""
        return OmegaConf.select(self.settings, "hydra.callbacks.compare.paper")

    @property
    def tables(self) -> str:
        """The folder of its comparison, under `recipes`."""
        raw = self._text("hydra.callbacks.compare.out") or self._text("output")
        return raw.removeprefix("${recipes}/")

    @property
    def folder(self) -> str:
        """The folder of its runs, under `recipes`; several recipes may share one."""
        return self._text("output").removeprefix("${recipes}/")

    @property
    def sweep(self) -> dict[str, str]:
        """What its sweep varies: key → values."""
        params = OmegaConf.select(self.settings, "hydra.sweeper.params") or {}
        return {str(key): str(value) for key, value in params.items()}

    def values(self, key: str) -> list[str]:
        """The values that its sweep gives a key."""
        given = self.sweep.get(key)
        # A comma within braces is part of a value.
        return [value.strip() for value in re.split(r",(?![^{]*\})", given)] if given else []

    @property
    def systems(self) -> list[str]:
        """The models that are run."""
        return self.values("model") or [self.choices["model"]]

    @property
    def reads(self) -> str | None:
        """The folder of another recipe's runs that this one takes its models from."""
        weights = self._text("weights") or ""
        found = re.match(r"\$\{recipes\}/([^/]+)/", weights)
        if found:
            return found.group(1)
        return self.folder if self.choices.get("model") == "rerank_pipeline" else None

    @property
    def command(self) -> str:
        """The command line that makes it from the public files."""
        needs = [ARGUMENTS[group].get(self.choices.get(group, ""), "") for group in ARGUMENTS]
        return " ".join(filter(None, [f"python train.py experiment={self.name}", *needs]))

    @property
    def jobs(self) -> int:
        """The runs of its sweep."""
        return prod(len(self.values(key)) for key in self.sweep)

    def _text(self, key: str) -> str | None:
        """A value as it is written, interpolations and all."""
        node = self.settings
        for part in key.split("."):
            if node is None or part not in node:
                return None
            node = node._get_node(part)
        return None if node._value() is None else str(node._value())


def read_recipes() -> list[Recipe]:
    """All recipes: paper by paper, those that train first, tables before figures, by their numbers.

    A recipe has a protocol, which says how the paper's systems are trained; the other experiments
    have no collection of their own.
    """
    files = sorted((CONFIGURATIONS / "experiment").glob("*.yaml"))
    found = [recipe for file in files if (recipe := read_recipe(file.stem))]
    return sorted(found, key=_place)


def read_recipe(name: str) -> Recipe | None:
    """A recipe by its name; None if the experiment is none.

    Raises:
        ValueError: the first comment of a recipe is not of the form of a title.
    """
    chain = _chain("experiment", name)
    choices = _choices(chain)
    if "protocol" not in choices:
        return None
    protocol = _chain("protocol", choices["protocol"])
    choices = _choices(protocol) | choices
    settings = OmegaConf.merge(*[config for _, config in protocol], *[c for _, c in chain])
    path = CONFIGURATIONS / "experiment" / f"{name}.yaml"
    lines = [line for line in path.read_text().splitlines() if line.startswith("# ")][1:]
    title = _TITLE.match(lines[0]) if lines else None
    if title is None:
        raise ValueError(f"{path}: must begin with “# PAPER Table N, DATA: what it shows”")
    notes = " ".join(line.removeprefix("# ") for line in lines[1:])
    return Recipe(name, *title.groups(), notes, choices, settings)


def makers(recipe: Recipe, recipes: list[Recipe]) -> list[str]:
    """The recipes that make the runs which this one reads; they come first."""
    return [
        other.name
        for other in recipes
        if recipe.reads and other.folder == recipe.reads and other.reads is None
    ]


def _place(recipe: Recipe) -> tuple:
    papers = ("gr_as_mvdr", "aligner", "xtr", "mva")
    number = re.search(r"(\d+)", recipe.table)
    kind = recipe.table.split()[0] != "Table"
    # What others read comes before them.
    later = recipe.reads is not None
    order = int(number.group(1)) if number else 99
    return papers.index(recipe.paper), later, kind, order, recipe.name


def _chain(group: str, name: str) -> list[tuple[list, Any]]:
    """A file's (defaults, values) after those of the files of its group that it builds on."""
    config = OmegaConf.load(CONFIGURATIONS / group / f"{name}.yaml")
    defaults = OmegaConf.to_container(config.pop("defaults", OmegaConf.create([])))
    above = [part for base in defaults if isinstance(base, str) for part in _parts(group, base)]
    return [*above, (defaults, config)]


def _parts(group: str, base: str) -> list[tuple[list, Any]]:
    return [] if base == "_self_" else _chain(group, base)


def _choices(chain: list[tuple[list, Any]]) -> dict[str, str]:
    """Group → option of the overrides in a chain; the last one holds."""
    choices = {}
    for defaults, _ in chain:
        for entry in defaults:
            if isinstance(entry, dict):
                ((key, option),) = entry.items()
                choices[key.removeprefix("override /")] = option
    return choices
