"""LIMIT-like worlds: every set of k documents is what some query asks for (docs/almanac.md).

Single vectors of d dimensions cannot order n documents in all these ways once n is large (Weller
et al. 2025, "On the theoretical limitations of embedding-based retrieval"). The documents are
people and the places that they like; no text is LIMIT's own.
"""

from collections.abc import Iterator
from itertools import count
from math import comb

import torch
from datasets import Features
from torch import Tensor

from data_modules.almanac.world import Names, Permutation
from data_modules.collection import DOCUMENTS, JUDGEMENTS, QUERIES, Collection
from data_modules.tables import cache_table

_VERSION = "1"  # of the texts
_MOST_SETS = 1000  # places with a name of one word
_TEST_SHARE = 5  # of so many sets one is asked for in the test split


def limit(
    n_documents: int = 32, relevant: int = 2, attributes: int | None = None, seed: int = 1
) -> Collection:
    """People who like places: "Who likes Velsund?" asks for one set of `relevant` people.

    Args:
        n_documents: people. relevant: documents of a query.
        attributes: places, each a query of its own; None = as many as there are sets of people.

    Returns:
        A collection with the splits train and test: a test query's place is in documents only.

    Raises:
        ValueError: more or fewer places than there can be.
    """
    sets = comb(n_documents, relevant)
    number, most = attributes or sets, min(sets, _MOST_SETS)
    if not _TEST_SHARE <= number <= most:
        rule = f"must be {_TEST_SHARE} to {most:,} for {n_documents} documents, {relevant} relevant"
        raise ValueError(f"data.attributes={attributes or f'null, all {sets:,} sets'}: {rule}")
    names = Names(seed, n_documents, 2 * number, 1, 1)  # half of such places share their names
    order = Permutation(sets, seed, "sets")
    liked_by = [nth_set(order(place), relevant) for place in range(number)]
    ids = [f"d{person:06d}" for person in range(n_documents)]
    first = number // _TEST_SHARE
    splits = {"train": range(first, number), "test": range(first)}

    def documents() -> Iterator[dict]:
        for person, name in enumerate(ids):
            likes = [names.places(p) for p in range(number) if person in liked_by[p]]
            full = " ".join(names.person(person)[:2])
            text = f"{full} likes {', '.join(likes) or 'no place'}."
            yield {"id": name, "title": full, "text": text}

    def queries() -> Iterator[dict]:
        for place in range(number):
            yield {"id": f"q{place:06d}", "text": f"Who likes {names.places(place)}?"}

    def qrels(split: str) -> Iterator[dict]:
        for place in splits[split]:
            for person in liked_by[place]:
                yield {"query_id": f"q{place:06d}", "document_id": ids[person], "relevance": 1}

    made = {"n_documents": n_documents, "relevant": relevant, "attributes": number, "seed": seed}
    sources = {key: str(value) for key, value in made.items()} | {"limit": _VERSION}

    def keep(name: str, rows, features: Features):
        return cache_table(rows, features, f"limit {name}", *map(str, sources.items()))

    judged = {s: keep(s, lambda s=s: qrels(s), JUDGEMENTS) for s in splits}
    tables = keep("documents", documents, DOCUMENTS), keep("queries", queries, QUERIES)
    return Collection(f"limit-{n_documents}", *tables, judged, sources)


def nth_set(number: int, size: int) -> list[int]:
    """The set of so many numbers that is at this place among all of them (combinadics)."""
    found = []
    for left in range(size, 0, -1):
        largest = next(n for n in count(left - 1) if comb(n + 1, left) > number)
        found.append(largest)
        number -= comb(largest, left)
    return found


def free_recall(
    collection: Collection, dimension: int, k: int, steps: int = 500, seed: int = 0
) -> float:
    """Recall@k of all queries by vectors that are free: optimised for the judgements, no text read.

    What a system of one vector a text could reach at most in so many dimensions, as far as Adam
    finds it (Weller et al. 2025, §4): below 1 the dimension is at fault, not the encoder.
    """
    row = {name: number for number, name in enumerate(collection.documents["id"][:])}
    grades = [q for split in collection.qrels for q in collection.judgements(split).values()]
    relevant = torch.zeros(len(grades), len(row))
    for number, judged in enumerate(grades):
        relevant[number, [row[name] for name in judged]] = 1
    draw = torch.Generator().manual_seed(seed)
    sides = [torch.randn(len(side), dimension, generator=draw) for side in (grades, row)]
    queries, documents = (side.requires_grad_() for side in sides)

    def scores() -> Tensor:
        normalised = (torch.nn.functional.normalize(side, dim=1) for side in (queries, documents))
        first, second = normalised
        return first @ second.T

    optimizer = torch.optim.Adam([queries, documents], 0.05)
    for _ in range(steps):
        loss = -(relevant * (scores() / 0.05).log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = relevant.gather(1, scores().topk(k, 1).indices).sum(1)
    return float((found / relevant.sum(1)).mean())
