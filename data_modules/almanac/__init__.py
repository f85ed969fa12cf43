"""The almanac: a generated encyclopaedia with questions and gold alignments (docs/data.md)."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from datasets import Dataset, Features, List, Value

from data_modules.almanac.world import World, ask, describe, draw, permutation
from data_modules.collection import DOCUMENTS, JUDGEMENTS, Collection, cache_table
from gr_mvdr.options import Count, Rule, Size, checked

_VERSION = "4"  # raise it when the generated texts change; a test notices such a change
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

Entries = Annotated[int, Rule("≥ 50 and ≤ 1,000,000", lambda number: 50 <= number <= 1_000_000)]
Questions = Annotated[int, Rule("≥ 1 and ≤ 16", lambda number: 1 <= number <= 16)]


@checked
def almanac(
    n_documents: Entries = 500,
    seed: Count = 1,
    train_questions: Questions = 10,
    dev_questions: Size = 1,
    test_questions: Size = 1,
    unseen_questions: Size = 2,
) -> Collection:
    """An encyclopaedia of invented people, places, works and events, with questions.

    The same arguments give the same collection.

    Args:
        n_documents: number of entries.
        seed: random seed.
        train_questions, dev_questions, test_questions: number of questions about each entry seen in
            training (nine tenths of all); no two about one entry give and ask the same facts.
        unseen_questions: number of questions about each of the other entries; their split is
            ``test_unseen``.

    Returns:
        A collection whose queries have three more columns: ``kind`` ("name", "description" or
        "two attributes"); ``gold``, the character spans of the document's ``text`` that answer the
        question; and ``evidence``, the spans of the facts that the question gives (name,
        birthplace, …).

    Raises:
        ValueError: an argument is out of range, or an entry's facts allow too few questions.
    """
    arguments = dict(locals())
    counts = train_questions, dev_questions, test_questions, unseen_questions
    splits = dict(zip(("train", "dev", "test", "test_unseen"), counts, strict=True))
    made_from = _VERSION, *(f"{key}={value}" for key, value in arguments.items())

    world = World(n_documents, seed)

    def table(name: str, features: Features, rows: Callable[..., Iterator], *how: Any) -> Dataset:
        return cache_table(lambda: rows(*how), features, f"almanac {name}", *made_from)

    queries = table("queries", QUESTIONS, _queries, world, splits)
    return Collection(
        name=f"almanac-{n_documents}",
        documents=table("documents", DOCUMENTS, _documents, world),
        queries=queries,
        qrels={
            split: table(f"qrels {split}", JUDGEMENTS, _qrels, queries, split) for split in splits
        },
        sources={key: str(value) for key, value in arguments.items()} | {"generator": _VERSION},
    )


def _documents(world: World) -> Iterator[dict]:
    for index in range(world.size):
        item = world.entry(index)
        yield {"id": f"d{index:06d}", "title": item.title, "text": describe(item).text}


def _queries(world: World, splits: dict[str, int]) -> Iterator[dict]:
    """Yields the questions about each entry; for a tenth of the entries the split is test_unseen.

    The questions of the other entries are shuffled before the splits take them, because `ask` lists
    questions about common facts first.
    """
    order = permutation(world.size, world.seed, "unseen")
    for index in range(world.size):
        unseen = order[index] < world.size // 10
        wanted = {s: n for s, n in splits.items() if (s == "test_unseen") == unseen}
        item = world.entry(index)
        questions = ask(item, describe(item), sum(wanted.values()))
        if len(questions) < sum(wanted.values()):
            raise ValueError(
                f"data.train_questions={wanted.get('train')}: must be lower, there are only "
                f"{len(questions)} questions on {item.title}, those of dev and test among them"
            )
        turns = sorted(range(len(questions)), key=lambda n: draw(world.seed, f"turn {n}", index))
        shuffled = (questions[n] for n in turns)
        for split, count in wanted.items():
            for number, question in zip(range(count), shuffled, strict=False):
                yield {
                    "id": f"q-{split}-{index:06d}-{number}",
                    "text": question.text,
                    "kind": question.kind,
                    "gold": [{"start": a, "end": b} for a, b in question.gold],
                    "evidence": [{"start": a, "end": b} for a, b in question.evidence],
                }


def _qrels(queries: Dataset, split: str) -> Iterator[dict]:
    for query in queries["id"][:]:
        _, asked_in, number, _ = query.split("-")
        if asked_in == split:
            yield {"query_id": query, "document_id": f"d{number}", "relevance": 1}
