"""Synthetic alignments, and a small system with a token index, for the analysis tests."""

from types import SimpleNamespace

import pytest
import torch

from gr_mvdr.alignment import MaxSim
from gr_mvdr.batch import pad
from gr_mvdr.ranking import Ranking
from gr_mvdr.relevance import PairAlignment
from gr_mvdr.scoring import Scoring
from gr_mvdr.search_costs import SearchCosts
from gr_mvdr.token_vectors import TokenVectors


def make_pairs(n_pairs=5, heads=1, seed=0, paradigm="multi_vector", vocabulary=30, longest=9):
    """Random pairs of different lengths; generative ones have cross-attention as alignment."""
    generator = torch.Generator().manual_seed(seed)

    def texts():
        lengths = torch.randint(2, longest + 1, (n_pairs,), generator=generator).tolist()
        draw = lambda n: torch.randint(2, vocabulary, (n,), generator=generator).tolist()  # noqa: E731
        return pad([draw(length) for length in lengths])

    document_ids, document_mask = texts()
    query_ids, query_mask = texts()
    shape = n_pairs, heads, document_ids.shape[1], query_ids.shape[1]
    similarity = torch.randn(shape, generator=generator)
    real = (document_mask[:, :, None] & query_mask[:, None, :])[:, None]
    weights = torch.randn(shape, generator=generator).masked_fill(~real, -1e9).softmax(-1)
    if paradigm != "generative":
        weights = (similarity == similarity.masked_fill(~real, -1e9).amax(2, keepdim=True)).float()
    alignment, similarity = weights * real, similarity * real
    relevance = (similarity * alignment).sum((1, 2, 3))
    return PairAlignment(
        similarity=similarity,
        alignment=alignment,
        normaliser=torch.ones(n_pairs),
        relevance=relevance,
        score=relevance + 0.5,
        document_ids=document_ids,
        document_mask=document_mask,
        query_ids=query_ids,
        query_mask=query_mask,
    )


@pytest.fixture(name="make_pairs")
def _make_pairs():
    return make_pairs


class Table(dict):
    """A column table of ids only."""

    def __len__(self):
        return len(self["id"])

    def select(self, rows):
        return Table(id=[self["id"][row] for row in rows])


class StudiedData:
    """One split of queries q0, q1, …; the document d<n> answers the query q<n>."""

    test_splits = ("test",)
    collection = SimpleNamespace(name="fruit")

    def __init__(self, n_queries):
        self.ids = [f"q{number}" for number in range(n_queries)]

    def test_queries(self, split):
        assert split == "test"
        return Table(id=self.ids)

    def judgements(self, split, queries):
        return {query: {query.replace("q", "d"): 1} for query in queries["id"]}


class StudiedSystem:
    """Random token vectors of documents; a query's are near its document's, encoded by a layer.

    It searches as a multi-vector system does, and loses documents as `keep_document` says.
    """

    def __init__(self, n_queries=6, n_documents=12, tokens=5):
        generator = torch.Generator().manual_seed(0)
        self.encoder = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.eye_(self.encoder.weight)
        self.documents = torch.randn(n_documents, tokens, 8, generator=generator)
        self.noise = torch.randn(n_queries, 3, 8, generator=generator)
        self.scoring = Scoring(MaxSim("query_to_document"), "alignment")
        self.searcher = SimpleNamespace(costs=SearchCosts(), bytes_per_token=32.0)
        self.search = SimpleNamespace(changed=self.changed)
        self.searches = []

    def changed(self, **options):
        for key in options.keys() - {"mode", "keep_document", "neighbours"}:
            raise ValueError(f"model.search.{key}: must be one of mode, keep_document, neighbours")

    def encoded_queries(self, queries):
        encoded = []
        for query in queries["id"]:
            number = int(query[1:])
            vectors = self.documents[number, :3] + 0.5 * self.noise[number]
            encoded.append((query, vectors_of(self.encoder(vectors).detach())))
        return encoded

    def retrieve_encoded(self, encoded, k, keep_document=1.0, neighbours=1, **search):
        if neighbours > 100:
            raise ValueError(f"model.search.neighbours={neighbours}: must be ≤ the index's tokens")
        self.searches.append((len(encoded), k, keep_document, search))
        known = round(keep_document * len(self.documents))
        results = {}
        for query, vectors in encoded:
            self.searcher.costs.add(known, 5 * known, 10 * known)
            names = [f"d{number}" for number in range(known)]
            results[query] = self.scores(vectors, names, self.scoring)
        return Ranking(results).top(k)

    def rerank_encoded(self, encoded, candidates, scoring=None):
        scoring = scoring or self.scoring
        return Ranking({q: self.scores(v, candidates[q], scoring) for q, v in encoded})

    def scores(self, query, names, scoring):
        documents = vectors_of(self.documents[[int(name[1:]) for name in names]])
        scores = scoring(documents, query[None])
        return dict(zip(names, scores.tolist(), strict=True))


def vectors_of(vectors):
    shape = vectors.shape[:-1]
    mask, ids = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.int64)
    return TokenVectors(vectors, mask, ids)


@pytest.fixture
def studied_system():
    return StudiedSystem()


@pytest.fixture
def studied_data():
    return StudiedData
