"""`model.search.mode=rerank`: candidates are encoded as they come, and scored as from an index."""

import pytest

from models.multi_vector import EncodedDocuments
from tests.models.conftest import make_multi_vector


@pytest.mark.parametrize("kind", ["t5_colbert", "mva", "aligner"])
def test_candidates_get_the_scores_that_an_index_gives(kind, documents, queries):
    indexed = make_multi_vector(kind)
    indexed.prepare(documents, range(len(documents)), "unused")
    indexed.index(documents)
    asked = {query: documents["id"][n : n + 5] for n, query in enumerate(queries["id"])}
    asked[queries["id"][0]] = []
    expected = indexed.rerank(queries, documents, asked)
    model = make_multi_vector(kind, search={"mode": "rerank", "neighbours": 3})
    model.load_state_dict(indexed.state_dict())
    model.index(documents)
    assert isinstance(model.searcher, EncodedDocuments)
    found = model.rerank(queries, documents, asked)
    for query in asked:
        assert found.documents(query) == expected.documents(query)
        assert found.scores(query) == pytest.approx(expected.scores(query), abs=1e-5)


def test_it_cannot_be_searched_in_other_ways(documents, queries):
    model = make_multi_vector("mva", search={"mode": "rerank"})
    for call in (model.search.changed, lambda **options: model.retrieve(queries, **options)):
        with pytest.raises(ValueError, match="mode=rerank: must have an index"):
            model.index(documents)
            call(mode="exact")
