"""LIMIT-like collections: each set of k documents is the answer to some query (docs/data.md).

If n is large, single vectors of d dimensions cannot rank n documents in all the required ways
(Weller et al. 2025, "On the theoretical limitations of embedding-based retrieval"). A document
lists the places that a person likes. The texts are generated here, not copied from LIMIT.
"""

from collections.abc import Iterable
from itertools import count
from math import comb

from datasets import Dataset, Features

from data_modules.almanac.world import Names, permutation
from data_modules.collection import DOCUMENTS, JUDGEMENTS, QUERIES, Collection, cache_table

_VERSION = "1"  # raise it when the texts change
_MOST_SETS = 1000  # the maximum number of places; each then has a name of one word
_TEST_EVERY = 5  # one query in five is in the test split


def limit(
    n_documents: int = 32, relevant: int = 2, attributes: int | None = None, seed: int = 1
) -> Collection:
    """People who like places: the answer to "Who likes Velsund?" is a set of `relevant` people.

    Args:
        n_documents: number of people, one document each.
        relevant: number of relevant documents per query.
        attributes: number of places, one query each; None = as many as there are sets of people.
        seed: random seed of the names and of the order of the sets.

    Returns:
        A collection with the splits train and test; no training query names a test query's place.

    Raises:
        ValueError: too few people, or more or fewer places than there can be.
    """
    sets = comb(n_documents, relevant)
    number = _count_places(n_documents, relevant, attributes, sets)
    # Twice as many places, because only about half of them have a name of one word.
    names = Names(seed, n_documents, 2 * number, 1)
    order = permutation(sets, seed, "sets", number)
    liked_by = [nth_set(place, relevant) for place in order]
    ids = [f"d{person:06d}" for person in range(n_documents)]
    people = [" ".join(names.person(person)[:2]) for person in range(n_documents)]
    likes = [
        ", ".join(names.place(p) for p in range(number) if person in liked_by[p]) or "no place"
        for person in range(n_documents)
    ]
    first = number // _TEST_EVERY
    splits = {"train": range(first, number), "test": range(first)}
    made = {"n_documents": n_documents, "relevant": relevant, "attributes": number, "seed": seed}
    sources = {key: str(value) for key, value in made.items()} | {"limit": _VERSION}

    def keep(name: str, features: Features, *columns: Iterable) -> Dataset:
        rows = (dict(zip(features, row, strict=True)) for row in zip(*columns, strict=True))
        return cache_table(lambda: rows, features, f"limit {name}", str(sources))

    texts = [f"{name} likes {places}." for name, places in zip(people, likes, strict=True)]
    asked = [f"q{place:06d}" for place in range(number)]
    questions = [f"Who likes {names.place(place)}?" for place in range(number)]
    pairs = {
        s: [(asked[p], ids[d], 1) for p in own for d in liked_by[p]] for s, own in splits.items()
    }
    return Collection(
        name=f"limit-{n_documents}",
        documents=keep("documents", DOCUMENTS, ids, people, texts),
        queries=keep("queries", QUERIES, asked, questions),
        qrels={s: keep(s, JUDGEMENTS, *zip(*judged, strict=True)) for s, judged in pairs.items()},
        sources=sources,
    )


def _count_places(n_documents: int, relevant: int, attributes: int | None, sets: int) -> int:
    if sets < _TEST_EVERY:
        rule = f"must make at least {_TEST_EVERY} sets of data.relevant={relevant}"
        raise ValueError(f"data.n_documents={n_documents}: {rule}")
    number, most = attributes or sets, min(sets, _MOST_SETS)
    if not _TEST_EVERY <= number <= most:
        rule = f"must be {_TEST_EVERY} to {most:,} for {n_documents} documents, {relevant} relevant"
        raise ValueError(f"data.attributes={attributes or f'null, all {sets:,} sets'}: {rule}")
    return number


def nth_set(number: int, size: int) -> list[int]:
    """The `number`-th set of `size` natural numbers in combinadic order, from 0; descending."""
    members = []
    for left in range(size, 0, -1):
        largest = next(n for n in count(left - 1) if comb(n + 1, left) > number)
        members.append(largest)
        number -= comb(largest, left)
    return members
