import numpy as np
import pytest

from data_modules.collection import PairSet
from tests.data_modules.tiny import make_collection


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


def test_without_a_name_the_split_test_is_measured_or_dev_or_the_only_other():
    def chosen(*splits):
        collection = make_collection(["x"], {"q": "x"}, qrels={s: [("q", "d0")] for s in splits})
        return collection.default_test_split("train")

    assert chosen("train", "dev", "test") == "test" and chosen("train", "dev", "old") == "dev"
    assert chosen("train", "2019") == "2019"
    with pytest.raises(ValueError, match="data.test_split=null: must be one of 2019, 2020, the sp"):
        chosen("train", "2019", "2020")
