"""The chapters of pages: what each is called, in which order they come, how to read them.

An analysis makes a chapter, in the order of `conf/analysis/full.yaml`; `analysis.analysis` has its
name, title and reading.
"""

from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

from gr_mvdr.options import TARGET, admitting, find_part

LISTED = Path(__file__).parents[1] / "conf/analysis/full.yaml"
# Chapters that are no analysis', and figures whose name does not begin with their chapter's.
_OTHERS = {
    "adaptation": ("Alignment adaptation", ""),
    "study": ("Study", ""),
}
_FIGURES = {"alignment_curve": "curve"}


@cache
def all_chapters() -> dict[str, tuple[str, str]]:
    """Name → title and how to read it."""
    listed = OmegaConf.to_container(OmegaConf.load(LISTED).questions)
    found: dict[str, tuple[str, str]] = {}
    with admitting(listed):
        for settings in listed.values():
            kind = find_part("analysis", settings[TARGET])
            if kind.title:
                found.setdefault(kind.name, (kind.title, kind.reading))
    return found | _OTHERS


def of_metric(key: str) -> str:
    """A metric's chapter: "low_rank" of "analysis/low_rank/…"."""
    return key.split("/")[1]


def of_figure(name: str) -> str:
    """A figure's chapter: "exact_match" of "exact_match_heads"; an unknown figure is its own."""
    if name in _FIGURES:
        return _FIGURES[name]
    found = [known for known in all_chapters() if name == known or name.startswith(f"{known}_")]
    return max(found, key=len, default=name)


def title(name: str) -> str:
    """A chapter's heading; one that is not known is called by its name."""
    words = name.replace("_", " ")
    return all_chapters()[name][0] if name in all_chapters() else words[:1].upper() + words[1:]


def reading(heading: str) -> str:
    """How to read what is under a heading; nothing where that is not known."""
    return dict(all_chapters().values()).get(heading, "")


def place(name: str) -> int:
    """A chapter's number in the order of pages; unknown ones come last."""
    return list(all_chapters()).index(name) if name in all_chapters() else len(all_chapters())
