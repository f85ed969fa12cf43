"""Few combinations of many parameters, in which every two values still meet."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Some of the product of some lists: each pair of values of two of them is in one at least."""
    places = [range(len(options)) for options in values]
    every = list(combinations(range(len(values)), 2))
    missing = {(a, b, i, j) for a, b in every for i, j in product(places[a], places[b])}
    rows = [{(a, b, row[a], row[b]) for a, b in every} for row in product(*places)]
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda n: len(rows[n] & missing))
        missing -= rows[best]
        chosen.append(best)
    every_row = list(product(*values))
    return [every_row[number] for number in sorted(chosen)]
