"""The files that describe a finished run: `config.yaml`, `provenance.json`, `metrics.json`."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

from gr_mvdr.files import check_file, read_json, read_yaml
from gr_mvdr.options import describe_type, fits_type, make_printable, show

CHECKPOINT = "checkpoints/last.ckpt"  # of a trained system, or of weights that were taken over
PARTS = CONFIG, PROVENANCE, METRICS = "config.yaml", "provenance.json", "metrics.json"
# Keys of the configuration that change where or how a run is made, but no result.
CIRCUMSTANCES = ("resume", "output", "name", "run", "logger")

try:
    VERSION = version("gr-mvdr")
except PackageNotFoundError:  # not installed
    VERSION = "unknown"

_SEED = int | float | str | None
# Types of the optional keys that other modules read.
_CONFIG = {
    "model": dict[str, Any],
    "data": dict[str, Any],
    "seed": _SEED,
    "tokenizer": dict[str, Any],
    "rerank": dict[str, Any] | None,
    "analysis": dict[str, Any] | None,
}
_PROVENANCE = {
    "system": str,
    "collection": str,
    "version": str,
    "paradigm": str,
    "seed": _SEED,
    "documents": int,
    "sources": dict[str, Any],
    "text_fields": list[str],
    "overrides": list[str],
}
_NEEDED = ("system", "collection")


class UnfinishedRun(ValueError):
    """A run's folder lacks a part; the message names both."""


def check_finished(key: str, run: Path, parts: Sequence[str] = PARTS) -> None:
    """Raises unless the folder is a finished run.

    Args:
        key: begins the errors: the user's "weights=outputs/…", or the folder.
        parts: files that it must have.

    Raises:
        FileNotFoundError: no such folder; UnfinishedRun: a part is missing.
        ValueError: the folder's name is not UTF-8.
    """
    try:
        str(run).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{make_printable(key)}: must be a path in UTF-8") from None
    if not run.is_dir():
        raise FileNotFoundError(f"{key}: no such run folder")
    for part in parts:
        if not (run / part).is_file():
            raise UnfinishedRun(f"{key}: must be a finished run, it has no {part}")


def read_config(run: Path) -> dict[str, Any]:
    """A run's configuration.

    Raises:
        FileNotFoundError: it is missing; ValueError: it is damaged, with file and line.
    """
    file = check_file(run / CONFIG, run)
    return _typed(file, read_yaml(file), _CONFIG)


def read_provenance(run: Path) -> dict[str, Any]:
    """A run's provenance: "system", "collection", and further keys.

    Raises:
        FileNotFoundError: it is missing; ValueError: it is damaged, or a key has another type.
    """
    file = check_file(run / PROVENANCE, run)
    record = _typed(file, read_json(file), _PROVENANCE)
    for key in _NEEDED:
        if key not in record:
            raise ValueError(f"{file}: no {key!r}")
        if not record[key].isprintable():
            raise ValueError(f"{file}: {key}={record[key]!r}: must be printable")
    return record


def read_metrics(run: Path) -> dict[str, float]:
    """A run's flat metrics.

    Raises:
        FileNotFoundError: they are missing; ValueError: as `check_finite`, or the file is damaged.
    """
    file = check_file(run / METRICS, run)
    return check_finite(read_json(file), file)


def check_finite(metrics: Mapping[str, Any], file: Path) -> dict[str, float]:
    """The metrics, if all of them are finite numbers under names such as "retrieve/mrr@10".

    Raises:
        ValueError: names the file and the metric.
    """
    for key, value in metrics.items():
        if "/" not in key.strip("/") or not key.isprintable():
            rule = "must be the name of a metric, such as retrieve/mrr@10"
            raise ValueError(f"{file}: {show(make_printable(key))}: {rule}")
        if not _is_number(value):
            raise ValueError(f"{file}: {show(key)}={show(value)}: must be a finite number")
    return dict(metrics)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _typed(file: Path, values: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    for key, hint in types.items():
        if key in values and not fits_type(values[key], hint):
            shown = show(repr(values[key]))
            raise ValueError(f"{file}: {key}={shown}: must be {describe_type(hint)}")
    return values
