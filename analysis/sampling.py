"""Samples that are the same every time and reach over the whole table."""

from typing import Any

import numpy as np


def spread(table: Any, limit: int) -> Any:
    """At most `limit` rows of a column table, evenly spread from the first to the last."""
    return table if limit >= len(table) else table.select(spread_numbers(len(table), limit))


def spread_numbers(size: int, limit: int) -> list[int]:
    """At most `limit` numbers from 0 to size − 1, evenly spread, both ends included."""
    return np.linspace(0, size - 1, min(limit, size)).round().astype(int).tolist()
