"""Writes the tables of `docs/reproduce.md`: ``python -m analysis.recipes.document``.

What stands between `<!-- NAME -->` and `<!-- end -->` is replaced; a test holds the file equal to
what is written here.
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from analysis.recipes.cost import GB, Work
from analysis.recipes.recipe import CONFIGURATIONS, Recipe, makers, read_recipes
from analysis.recipes.rehearse import read_record
from analysis.recipes.work import CORPORA, work
from conf.resolvers import register_resolvers
from gr_mvdr.files.writing import write_text

DOCUMENT = CONFIGURATIONS.parent / "docs" / "reproduce.md"
PAPERS = {
    "gr_as_mvdr": "Generative Retrieval as Multi-Vector Dense Retrieval",
    "aligner": "Multi-Vector Retrieval as Sparse Alignment",
    "xtr": "Rethinking the Role of Token Retrieval in Multi-Vector Retrieval",
    "mva": "Multi-Vector Attention Models for Deep Re-ranking",
}
HEADER = ["recipe", "of the paper", "data", "runs", "after", "paper's numbers", "rehearsed"]
COSTS = ["recipe", "runs", "GPU memory", "GPU hours", "index on disk"]


def documented(text: str) -> str:
    """The document with its generated parts made anew.

    Raises:
        ValueError: a part has no place in the document.
    """
    recipes = read_recipes()
    parts = {"recipes": list_of(recipes), "commands": commands(recipes), "costs": costs(recipes)}
    for name, lines in parts.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        if not place.search(text):
            raise ValueError(f"{DOCUMENT}: has no place for <!-- {name} -->")
        body = "\n".join(lines) + "\n"
        text = place.sub(lambda found, body=body: found[1] + body + found[2], text)
    return text


def list_of(recipes: list[Recipe]) -> Iterator[str]:
    """A table of each paper's recipes."""
    record = read_record()
    for paper, title in PAPERS.items():
        yield from (f"### {title} (`{paper}`)", "", _row(HEADER), _row(["---"] * len(HEADER)))
        for recipe in recipes:
            if recipe.paper == paper:
                yield _row(_listed(recipe, recipes, record.get(recipe.name)))
        yield ""


def _listed(recipe: Recipe, recipes: list[Recipe], rehearsed: dict | None) -> list[str]:
    when = "not yet"
    if rehearsed:
        when = f"{rehearsed['date']}, `{rehearsed['commit'][:19]}`, {rehearsed['seconds']} s"
    numbers = f"`conf/paper/{recipe.numbers}.yaml`" if recipe.numbers else "none to quote"
    first = ", ".join(f"`{name}`" for name in makers(recipe, recipes)) or "–"
    table = f"{recipe.table}: {recipe.title}"
    return [f"`{recipe.name}`", table, recipe.data, str(recipe.jobs), first, numbers, when]


def commands(recipes: list[Recipe]) -> Iterator[str]:
    """The commands in their order, what a recipe reads before it."""
    yield "```"
    for recipe in recipes:
        size = OmegaConf.select(recipe.settings, "size")
        if recipe.reads and size not in (None, "base"):
            maker = next(r for r in recipes if r.name in makers(recipe, recipes))
            yield f"{maker.command} size={size} alignment=top_k"
        yield recipe.command
    yield "```"


def costs(recipes: list[Recipe]) -> Iterator[str]:
    """A table of estimates."""
    yield from (_row(COSTS), _row(["---"] * len(COSTS)))
    for recipe in recipes:
        yield _row([f"`{recipe.name}`", str(recipe.jobs), *_estimate(works(recipe))])


def _estimate(found: list[Work]) -> list[str]:
    if not found:
        return ["–", "–", "–"]
    return [
        f"{max(one.memory_bytes for one in found) / GB:,.0f} GB",
        f"{sum(one.hours for one in found):,.1f}",
        f"{sum(one.index_bytes for one in found) / GB:,.1f} GB",
    ]


def works(recipe: Recipe) -> list[Work]:
    """The work of all its runs; none where the size of its data is not known here."""
    found: list[Work | None] = []
    # A collection changes nothing but the corpus.
    varied = [key for key in recipe.sweep if key != "collection"]
    for values in product(*map(recipe.values, varied)):
        words = (f"{key}={value}" for key, value in zip(varied, values, strict=True))
        config, data = composed(recipe, *words)
        for name in recipe.values("collection") or [data]:
            if name not in CORPORA:
                return []
            found.append(work(config, CORPORA[name]))
    return [one for one in found if one]


def composed(recipe: Recipe, *overrides: str) -> tuple[dict[str, Any], str]:
    """A recipe's resolved configuration, files of the user's stood in for, and its data option.

    Of what its sweep varies, models apart, the first value is taken where `overrides` has none.
    """
    register_resolvers()
    given = {"model", *(word.split("=", 1)[0] for word in overrides)}
    first = [f"{key}={recipe.values(key)[0]}" for key in recipe.sweep if key not in given]
    asked = [f"experiment={recipe.name}", "name=run", "logger=none", "data.path=FOLDER", *first]
    with initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
        config = compose("train", [*asked, *overrides], return_hydra_config=True)
    with open_dict(config):
        data = config.pop("hydra").runtime.choices.data
    for key in OmegaConf.missing_keys(config):
        OmegaConf.update(config, key, "FILE")
    return OmegaConf.to_container(config, resolve=True), data


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(path: Path = DOCUMENT) -> None:
    """Makes the document's generated parts anew."""
    text = documented(path.read_text(encoding="utf-8"))
    write_text(path, text)
    print(path)


if __name__ == "__main__":
    write()
