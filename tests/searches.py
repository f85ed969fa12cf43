"""Searches by name: `make_search("gather", neighbours=4)` is a `SearchOptions`."""

from gr_mvdr.token_index.bm25_candidates import BM25Candidates
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.neighbours import NearestTokens
from gr_mvdr.token_index.search import Documents, Imputed, SearchOptions
from models.beyond.muvera import OneVector

_NEAREST = NearestTokens(probes=None, neighbours=100)
_PARTS = {
    "exact": {},
    "gather": {"proposer": _NEAREST},
    "impute": {"proposer": _NEAREST, "scorer": Imputed()},
    "one_vector": {"proposer": OneVector()},
    "rerank": {"proposer": BM25Candidates()},
    "engine": {},
}
_SOURCES = {
    "rerank": "gr_mvdr.token_index.on_demand.OnDemandDocuments",
    "engine": "gr_mvdr.token_index.engine.EngineIndex",
}


def make_search(mode="exact", **options):
    """A search with some options, by their names alone."""
    source = {"source": {"_target_": _SOURCES[mode]}} if mode in _SOURCES else {}
    return SearchOptions(**_PARTS[mode], **source).changed(**options)


def build_index(directory, names, encode, **source):
    """A `TokenIndex` of documents; `encode` gives their vectors."""
    index, names = TokenIndex(**source), list(names)
    table = {"id": names, "text": names}
    index.build(Documents(table, encode, [1] * len(names), {}), directory)
    return index
