"""Rows of data sets on the Hugging Face hub, through ``datasets``."""

from collections.abc import Iterator
from typing import Any

import datasets
from datasets import Dataset, Features, Value

from data_modules.collection import no_bars


def hub_rows(
    path: str, name: str | None = None, split: str = "train", **options: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(``place:row``, columns) of one split.

    Args:
        path, name, split, options: as `datasets.load_dataset` takes them.

    Raises:
        OSError: the hub cannot be reached, or has no such data.
    """
    place = options.get("data_files") or f"{path}/{split}"
    with no_bars():
        table = _load(path, name, split, options, place)
    for number, row in enumerate(table, start=1):
        yield f"{place}:{number}", row


def _load(path: str, name: str | None, split: str, options: dict[str, Any], place: str) -> Dataset:
    try:
        return datasets.load_dataset(path, name, split=split, **options)
    except Exception as error:  # of datasets, of the hub's client, or of the network below it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise OSError(
            f"{place}: cannot be fetched from the Hugging Face hub ({reason}); "
            "data.path=FOLDER reads a local copy"
        ) from error


def json_lines(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of files of JSON lines on the hub.

    Args:
        file: data set and path, with wild cards: "miracl/miracl-corpus/…/docs-*.jsonl.gz".
    """
    return hub_rows("json", data_files=f"hf://datasets/{file}")


def columns(file: str, *names: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a file of tab-separated columns on the hub, every column as text."""
    return hub_rows(
        "csv",
        data_files=f"hf://datasets/{file}",
        sep="\t",
        column_names=list(names),
        features=Features({name: Value("string") for name in names}),
        quoting=3,  # a quote is a quote
        keep_default_na=False,  # and "null" a word
    )
