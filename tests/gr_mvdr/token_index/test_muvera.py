"""Fixed-dimensional encodings by hand and by their laws, and the search that they propose for."""

from itertools import product

import pytest
import torch

from gr_mvdr.alignment import TopK
from gr_mvdr.evaluation.ranking import SearchCosts
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_index.search import Documents, Query
from gr_mvdr.token_vectors import PackedTokens
from models.beyond import muvera
from models.beyond.muvera import FILE, Encoding, OneVector
from tests.gr_mvdr.token_index.test_index import COLBERT, build, pair_by_pair, some_queries
from tests.gr_mvdr.token_index.test_store import as_text, names, part_of, random_tokens
from tests.searches import make_search

AXES = torch.eye(2).double()[None]  # one repetition whose two planes are the axes
SEARCH = make_search("one_vector", planes=3, projection=None, precision="float32")


def packed(*texts, salience=None):
    vectors = torch.tensor([token for text in texts for token in text]).double()
    counts = torch.tensor([len(text) for text in texts])
    weights = None if salience is None else torch.tensor(salience).double()
    return PackedTokens(vectors, counts, torch.zeros(len(vectors), dtype=torch.int64), weights)


def double(tokens):
    parts = (None if p is None or not p.is_floating_point() else p.double() for p in tokens)
    return PackedTokens(*(a if b is None else b for a, b in zip(tokens, parts, strict=True)))


def queries_of(tokens):
    return [Query(str(number), as_text(tokens, number)) for number in range(len(tokens.counts))]


def test_an_encoding_by_hand():
    encoding = Encoding(AXES)
    # Blocks: bit 0 is the sign of x, bit 1 that of y; 3 is (+, +).
    texts = packed([(1, 2), (3, 4), (1, -1)], [(-1, -2)], salience=[1.0, 0.5, 1.0, 2.0])
    sums = encoding.queries(texts).view(2, 4, 2).tolist()
    assert sums[0] == [[0, 0], [1, -1], [0, 0], [2.5, 4]]
    assert sums[1] == [[-2, -4], [0, 0], [0, 0], [0, 0]]
    means = encoding.documents(texts).view(2, 4, 2).tolist()
    # (−, −) differs from (1, −1) in one sign, (−, +) from (1, 2) and (3, 4): the first wins.
    assert means[0] == [[1, -1], [1, -1], [1, 2], [1.25, 2]]
    assert means[1] == [[-2, -4]] * 4


@pytest.mark.parametrize("planes", [1, 4])
def test_without_projection_no_estimate_is_above_max_sim(planes):
    tokens, queries = double(random_tokens([1, 5, 9, 2, 14])), double(some_queries())
    encoding = Encoding.draw(8, OneVector(planes=planes, projection=None))
    estimates = encoding.documents(tokens) @ encoding.queries(queries).T
    exact = pair_by_pair(tokens, queries, COLBERT).double()
    assert (estimates <= exact + 1e-6).all() and (estimates[1:] < exact[1:] - 1e-3).any()
    # One token fills all blocks of its document: there is only one to choose.
    assert torch.allclose(estimates[0], exact[0], atol=1e-6)


def test_projections_and_sketches_keep_inner_products_in_expectation():
    """Over all signs, not a sample: ±1 of a projection, places and signs of a sketch."""
    documents, queries = double(random_tokens([2, 3], 2)), double(random_tokens([2], 2, seed=5))
    line = torch.ones(1, 1, 2).double()  # 2 blocks of 2 numbers
    signs = [torch.tensor(one).double() for one in product([-1.0, 1.0], repeat=4)]
    places = [torch.tensor(one) for one in product(range(2), repeat=4)]
    drawn = {
        Encoding(AXES): [Encoding(AXES, one.view(1, 2, 2) / 2**0.5) for one in signs],
        Encoding(line): [Encoding(line, None, (p, one, 2)) for p in places for one in signs],
    }
    for plain, every in drawn.items():
        estimates = [e.documents(documents) @ e.queries(queries).T for e in (plain, *every)]
        mean = torch.stack(estimates[1:]).mean(0)
        assert torch.allclose(mean, estimates[0], atol=1e-12)
    assert every[0].size == 2


def test_the_best_estimates_are_scored_exactly(tmp_path):
    tokens, texts = random_tokens(salience=True), some_queries(salience=True)
    index, queries = build(tmp_path / "index", tokens), queries_of(texts)
    exact = pair_by_pair(tokens, texts, COLBERT).T
    estimates = index.opened(SEARCH.proposer).estimates(texts.pad()).T
    for refine in (2, None, 8, 100):
        index.costs = SearchCosts()
        search = SEARCH.changed(refine=refine)
        for number, few in enumerate(index.scored(queries, COLBERT, search, 8)):
            best = estimates[number].topk(min(refine or 8, 8)).indices
            assert {*few.documents.tolist()} == {*best.tolist()}
            assert torch.allclose(few.estimates, exact[number, few.documents], atol=1e-5)
        assert index.costs.candidates == min(refine or 8, 8) * len(queries)


def test_rows_are_kept_and_made_again_after_a_change(tmp_path, monkeypatch):
    tokens, queries = random_tokens(), queries_of(some_queries())
    whole = build(tmp_path / "index", tokens).scored(queries, COLBERT, SEARCH, 8)
    index = build(tmp_path / "part", part_of(tokens, range(5)))
    encoded, documents = [], Encoding.documents
    monkeypatch.setattr(
        Encoding, "documents", lambda self, t: encoded.append(len(t.counts)) or documents(self, t)
    )
    index.opened(SEARCH.proposer)
    index.open_store(tmp_path / "part")
    index.opened(SEARCH.proposer)
    assert sum(encoded) == 5, "what is there is opened"
    monkeypatch.setattr(muvera, "_TOKENS", 1)
    table = {"id": names(tokens)}
    index.update(Documents(table, lambda ids: [part_of(tokens, [5, 6, 7])], [], {}))
    for result, expected in zip(index.scored(queries, COLBERT, SEARCH, 8), whole, strict=True):
        assert torch.allclose(result.estimates, expected.estimates, atol=1e-6)
    assert sum(encoded) == 5 + 8
    index.opened(SEARCH.changed(seed=1).proposer)
    assert sum(encoded) == 5 + 8 + 8, "other settings"


def test_an_encoding_beyond_half_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match="proposer=OneVector: supports only MaxSim; with TopK"):
        SEARCH.check(Scoring(TopK(2)))
    tokens = random_tokens()
    large = tokens._replace(vectors=tokens.vectors * 1e6)
    index = build(tmp_path / "index", large)
    with pytest.raises(ValueError, match="precision=float16: must be float32, some numbers"):
        index.opened(SEARCH.changed(precision="float16").proposer)
    assert not (tmp_path / "index" / FILE).exists()
    assert index.opened(SEARCH.proposer).rows.isfinite().all()
