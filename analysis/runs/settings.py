"""The settings of a study: what its numbers have in the column `part`, as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from gr_mvdr.measures import STUDY


def write_setting(setting: Mapping[str, Any]) -> str:
    """Returns a setting as the `part` of its numbers."""
    return json.dumps(setting, ensure_ascii=False)


def read_settings(numbers: DataFrame) -> dict[str, dict[str, Any]]:
    """Returns the settings of a run's study: part → setting."""
    parts = numbers[numbers["group"] == STUDY.name]["part"].unique()
    settings = {part: json.loads(part) for part in parts}
    if broken := [part for part, setting in settings.items() if not isinstance(setting, dict)]:
        raise ValueError(f"{broken[0]}: must be a study's setting, a JSON object")
    return settings


def find_setting(settings: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Any]) -> str | None:
    """Returns the part of a study whose setting has the asked values; None if no setting has.

    If several fit, the one with the largest `neighbours` is used ("auto" counts as 0).
    """
    fitting = []
    for part, setting in settings.items():
        if asked.items() <= setting.items():
            neighbours = setting.get("neighbours")
            fitting.append((neighbours if isinstance(neighbours, int | float) else 0, part))
    return max(fitting, key=lambda one: one[0])[1] if fitting else None
