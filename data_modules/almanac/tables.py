"""The almanac as a collection: generated entries, questions and gold alignments."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, Features, List, Value

from data_modules.almanac.kinds import new_world
from data_modules.almanac.prose import describe
from data_modules.almanac.questions import ask
from data_modules.almanac.randomness import Permutation
from data_modules.almanac.world import World
from data_modules.collection import DOCUMENTS, JUDGEMENTS, Collection, cached_table

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


def almanac(
    n_documents: int = 500,
    seed: int = 1,
    train_questions: int = 10,
    dev_questions: int = 1,
    test_questions: int = 1,
    unseen_questions: int = 2,
) -> Collection:
    """Generate an encyclopaedia of invented people, places, works and events, with questions.

    The same arguments give the same collection. Entries are made one at a time and written to the
    cache of ``datasets``, so that memory does not grow with ``n_documents``.

    Args:
        n_documents: entries, 50 to 1,000,000.
        seed: everything is drawn from it.
        train_questions, dev_questions, test_questions: questions for each of the nine tenths of
            the entries that are seen in training; no two of an entry give and ask the same facts.
        unseen_questions: questions for each of the other entries, the split ``test_unseen``.

    Returns:
        A collection with the splits train, dev, test and test_unseen. Its queries have three more
        columns: ``kind`` ("name", "description" or "two attributes"), ``gold``, the character
        spans of the relevant document's ``text`` that answer the question, and ``evidence``, the
        spans that say what the question gives (name, profession, birthplace, ...).

    Raises:
        ValueError: an argument out of range, or more questions than an entry's facts allow.
    """
    arguments = dict(locals())
    for key, value in arguments.items():
        _check("collection_seed" if key == "seed" else key, value)  # as the config calls it
    splits = {
        "train": train_questions,
        "dev": dev_questions,
        "test": test_questions,
        "test_unseen": unseen_questions,
    }
    made_from = [_version(), *(f"{key}={value}" for key, value in arguments.items())]
    return Collection(
        name=f"almanac-{n_documents}",
        documents=cached_table(
            lambda: _documents(new_world(n_documents, seed)),
            DOCUMENTS,
            "almanac documents",
            *made_from,
        ),
        queries=cached_table(
            lambda: _queries(new_world(n_documents, seed), splits),
            QUESTIONS,
            "almanac queries",
            *made_from,
        ),
        qrels={
            split: _qrels(n_documents, seed, split, n, made_from) for split, n in splits.items()
        },
        sources={key: str(value) for key, value in arguments.items()} | {"generator": _version()},
    )


def _check(key: str, value: int) -> None:
    low, high = LIMITS[key]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        kind = "" if whole else "an integer "
        raise ValueError(f"data.{key}={value}: must be {kind}between {low:,} and {high:,}")


def _version() -> str:
    """A hash of the generator's own code: a table in the cache is only used if nothing changed."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _unseen(size: int, seed: int) -> Permutation:
    return Permutation(size, seed, "unseen")


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
    order = _unseen(world.size, world.seed)
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


def _qrels(size: int, seed: int, split: str, count: int, made_from: list[str]) -> Dataset:
    order = _unseen(size, seed)

    def rows() -> Iterator[dict]:
        for index in range(size):
            if _splits_of(index, order, {split: count}):
                for number in range(count):
                    yield {
                        "query_id": _query_id(split, index, number),
                        "document_id": _document_id(index),
                        "relevance": 1,
                    }

    return cached_table(rows, JUDGEMENTS, f"almanac qrels {split}", *made_from)
