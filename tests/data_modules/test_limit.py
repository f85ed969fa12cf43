"""LIMIT-like worlds: texts say who likes what."""

from itertools import combinations

import pytest

from data_modules.limit import limit


def test_texts_say_what_the_judgements_say():
    world, again = limit(8, 2, seed=4), limit(8, 2, seed=4)
    assert world.documents[:] == again.documents[:] != limit(8, 2, seed=5).documents[:]
    splits = [world.judgements(split) for split in ("train", "test")]
    assert [len(split) for split in splits] == [23, 5] and not splits[0].keys() & splits[1].keys()
    likes = {row["id"]: row["text"] for row in world.documents}
    judged = splits[0] | splits[1]
    for query in world.queries:
        place = query["text"].removeprefix("Who likes ").removesuffix("?")
        having = {name for name, text in likes.items() if f" {place}," in text.replace(".", ",")}
        assert having == judged[query["id"]].keys()
    assert {frozenset(judged) for judged in judged.values()} == {
        frozenset(pair) for pair in combinations(likes, 2)
    }
    few = limit(8, 3, attributes=10)
    assert len(few.queries) == 10 and all(len(j) == 3 for j in few.judgements("train").values())
    with pytest.raises(
        ValueError, match=r"data.attributes=null, all 1,225 sets: must be 5 to 1,000"
    ):
        limit(50, 2)
    with pytest.raises(ValueError, match="data.n_documents=3: must make at least 5 sets of data.r"):
        limit(3, 2)
