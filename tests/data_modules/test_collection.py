import numpy as np
import pytest
from datasets import Dataset

from data_modules.collection import Collection, PairSet
from tests.data_modules.tiny import judge


@pytest.fixture
def collection() -> Collection:
    return Collection(
        name="two",
        documents=Dataset.from_dict({"id": ["a", "b"], "title": ["", "B"], "text": ["x", "y z"]}),
        queries=Dataset.from_dict({"id": ["1", "2", "3"], "text": ["x?", "y?", "z?"]}),
        qrels={
            "train": judge(("3", "b", 2), ("1", "a", 1), ("3", "a", 0)),
            "test": judge(("2", "b", 1)),
        },
        sources={},
    )


def test_a_split_has_its_judgements_and_its_queries_in_table_order(collection):
    assert collection.judgements("train") == {"3": {"b": 2, "a": 0}, "1": {"a": 1}}
    assert collection.split_queries("train")["id"][:] == ["1", "3"]
    assert collection.split_queries("test")["text"][:] == ["y?"]


def test_a_set_of_pairs_is_a_set_of_tuples():
    rng = np.random.default_rng(0)
    queries, documents = rng.integers(0, 6, 40), rng.integers(0, 9, 40)
    expected = set(zip(queries.tolist(), documents.tolist(), strict=True))
    found = PairSet(queries, documents, 9)
    assert len(found) == len(expected) < 40
    pairs = list(zip(found.queries.tolist(), found.documents.tolist(), strict=True))
    assert pairs == sorted(expected)
    for query in range(7):
        assert found.of(query).tolist() == sorted(d for q, d in expected if q == query)
        assert found.counts(7)[query] == len(found.of(query))
        places = found.places(query, np.arange(9))
        held = [(query, d) in expected for d in range(9)]
        assert (places >= 0).tolist() == held
        assert found.documents[places[held]].tolist() == np.flatnonzero(held).tolist()
    assert [(queries[i], documents[i]) for i in found.first] == pairs
