"""The almanac: a generated encyclopaedia with questions and gold alignments (docs/almanac.md)."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from data_modules.almanac.people import Person, Work
from data_modules.almanac.places import Building, Event, Settlement
from data_modules.almanac.prose import ask, describe
from data_modules.almanac.world import Permutation, World
from data_modules.collection import DOCUMENTS, JUDGEMENTS, Collection
from data_modules.tables import cache_table

_SPANS = List({"start": Value("int64"), "end": Value("int64")})
QUESTIONS = Features(
    {
        "id": Value("string"),
        "text": Value("string"),
        "kind": Value("string"),
        "gold": _SPANS,
        "evidence": _SPANS,
    }
)
LIMITS = {
    "n_documents": (50, 1_000_000),
    "train_questions": (1, 16),
    "dev_questions": (1, 2),
    "test_questions": (1, 2),
    "unseen_questions": (1, 20),
    "collection_seed": (0, 2**63 - 1),
}


KINDS = {kind.kind: kind for kind in (Person, Settlement, Building, Work, Event)}


def new_world(size: int, seed: int) -> World:
    """The world of an almanac of `size` documents."""
    return World(size, seed, KINDS)


def almanac(
    n_documents: int = 500,
    seed: int = 1,
    train_questions: int = 10,
    dev_questions: int = 1,
    test_questions: int = 1,
    unseen_questions: int = 2,
) -> Collection:
    """An encyclopaedia of invented people, places, works and events, with questions.

    The same arguments give the same collection; memory does not grow with ``n_documents``.

    Args:
        n_documents: entries, 50 to 1,000,000.
        train_questions, dev_questions, test_questions: of each of the nine tenths of the entries
            that are seen in training; no two of an entry give and ask the same facts.
        unseen_questions: of each of the other entries, the split ``test_unseen``.

    Returns:
        A collection whose queries have three more columns: ``kind`` ("name", "description" or
        "two attributes"), ``gold``, the character spans of the document's ``text`` that answer the
        question, and ``evidence``, the spans of what the question gives (name, birthplace, ...).

    Raises:
        ValueError: an argument out of range, more questions than an entry's facts allow.
    """
    arguments = dict(locals())
    for key, value in arguments.items():
        _check("collection_seed" if key == "seed" else key, value)  # as the config calls it
    counts = train_questions, dev_questions, test_questions, unseen_questions
    splits = dict(zip(("train", "dev", "test", "test_unseen"), counts, strict=True))
    return Collection(
        name=f"almanac-{n_documents}",
        documents=_table(arguments, "documents", DOCUMENTS, _documents),
        queries=_table(arguments, "queries", QUESTIONS, _queries, splits),
        qrels={
            s: _table(arguments, f"qrels {s}", JUDGEMENTS, _qrels, s, n) for s, n in splits.items()
        },
        sources={key: str(value) for key, value in arguments.items()} | {"generator": _version()},
    )


def _table(
    made_from: dict[str, int], name: str, features: Features, rows: Callable[..., Any], *how: Any
) -> Dataset:
    """A table in the cache of ``datasets``, made from `rows(world, *how)` if it is not there."""
    return cache_table(
        lambda: rows(new_world(made_from["n_documents"], made_from["seed"]), *how),
        features,
        f"almanac {name}",
        _version(),
        *(f"{key}={value}" for key, value in made_from.items()),
    )


def _check(key: str, value: int) -> None:
    low, high = LIMITS[key]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        kind = "" if whole else "an integer "
        raise ValueError(f"data.{key}={value}: must be {kind}between {low:,} and {high:,}")


def _version() -> str:
    """A hash of the generator's code and words: a cached table is used if nothing changed."""
    folder = Path(__file__).parent
    files = sorted([*folder.glob("*.py"), *folder.glob("*.toml")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _unseen(world: World) -> Permutation:
    return Permutation(world.size, world.seed, "unseen")


def _document_id(index: int) -> str:
    return f"d{index:06d}"


def _documents(world: World) -> Iterator[dict]:
    for index in range(world.size):
        item = world.entry(index)
        yield {"id": _document_id(index), "title": item.title, "text": describe(item).text}


def _splits_of(index: int, order: Permutation, splits: dict[str, int]) -> dict[str, int]:
    """The splits an entry has questions in: a tenth of the entries only in test_unseen."""
    unseen = order(index) < order.size // 10
    return {name: n for name, n in splits.items() if (name == "test_unseen") == unseen}


def _query_id(split: str, index: int, number: int) -> str:
    return f"q-{split}-{index:06d}-{number}"


def _queries(world: World, splits: dict[str, int]) -> Iterator[dict]:
    order = _unseen(world)
    for index in range(world.size):
        item = world.entry(index)
        wanted = _splits_of(index, order, splits)
        questions = ask(item, describe(item), sum(wanted.values()))
        if len(questions) < sum(wanted.values()):
            raise ValueError(
                f"data.train_questions={wanted.get('train')}: must be lower, there are only "
                f"{len(questions)} questions on {item.title}, those of dev and test among them"
            )
        # Which question goes to which split is drawn: facts that are many come early in the list.
        turns = sorted(range(len(questions)), key=lambda n: world.draw(f"turn {n}", index))
        shuffled = (questions[n] for n in turns)
        for split, count in wanted.items():
            for number in range(count):
                question = next(shuffled)
                yield {
                    "id": _query_id(split, index, number),
                    "text": question.text,
                    "kind": question.plan.kind,
                    "gold": [{"start": a, "end": b} for a, b in question.gold],
                    "evidence": [{"start": a, "end": b} for a, b in question.evidence],
                }


def _qrels(world: World, split: str, count: int) -> Iterator[dict]:
    order = _unseen(world)
    for index in range(world.size):
        if _splits_of(index, order, {split: count}):
            for number in range(count):
                yield {
                    "query_id": _query_id(split, index, number),
                    "document_id": _document_id(index),
                    "relevance": 1,
                }
