"""Small collections for tests of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset

from data_modules.collection import JUDGEMENTS, Collection

LEXICON = "river stone amber castle hollow marsh bright winter copper lantern north harbour".split()
# Numbers whole words.
TOKENIZER = dict(backbone=None, path=None, unit="word", vocab_size=500, lowercase=True)


def words(seed: int, n: int) -> str:
    """A text of random words."""
    return " ".join(np.random.default_rng(seed).choice(LEXICON, n))


def written(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("".join(line + "\n" for line in lines))
    return path


def judge(*rows: tuple) -> Dataset:
    """A table of judgements: (query id, document id) or with a grade; 1 where it is left out."""
    rows = [(*row, 1)[:3] for row in rows]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(JUDGEMENTS)}
    return Dataset.from_dict(columns, features=JUDGEMENTS)


def make_collection(
    documents: Sequence[str],
    queries: Mapping[str, str],
    titles: Sequence[str] | None = None,
    qrels: Mapping[str, Sequence[tuple]] | None = None,
    **further,
) -> Collection:
    """Documents d0, d1, … of these texts, and queries by their ids."""
    ids = [f"d{number}" for number in range(len(documents))]
    titles = titles or [""] * len(ids)
    return Collection(
        "tiny",
        Dataset.from_dict({"id": ids, "title": titles, "text": list(documents)}),
        Dataset.from_dict({"id": list(queries), "text": list(queries.values())}),
        {split: judge(*rows) for split, rows in (qrels or {}).items()},
        {},
        **further,
    )
