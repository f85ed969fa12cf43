"""Comparisons: of runs (`compare`), and of rankings in TREC files (`compare_rankings`)."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Importing them takes seconds, which an error of the command line must not wait for.
    if name == "compare":
        from analysis.compare.comparison import compare as found
    elif name == "compare_rankings":
        from analysis.compare.significance import compare_rankings as found
    else:
        raise AttributeError(name)
    return found
