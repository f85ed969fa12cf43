"""Fixed-dimensional encodings by hand and by their laws, and the search that they propose for."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from gr_mvdr.alignment import TopK
from gr_mvdr.scoring import Scoring
from gr_mvdr.token_index.index import TokenIndex
from gr_mvdr.token_index.search import SearchOptions
from gr_mvdr.token_vectors import PackedTokens
from models.beyond import muvera
from models.beyond.muvera import FILE, Encoding
from tests.gr_mvdr.token_index.test_index import COLBERT, build, pair_by_pair, some_queries
from tests.gr_mvdr.token_index.test_store import as_text, names, part_of, random_tokens

AXES = torch.eye(2).double()[None]  # one repetition whose two planes are the axes
PART = {"_target_": "models.beyond.muvera.OneVector"}
ESTIMATE = SearchOptions(
    mode="fde", refine=0, fde_planes=3, fde_projection=None, fde_dtype="float32", proposer=PART
)


def packed(*texts, salience=None):
    vectors = torch.tensor([token for text in texts for token in text]).double()
    counts = torch.tensor([len(text) for text in texts])
    weights = None if salience is None else torch.tensor(salience).double()
    return PackedTokens(vectors, counts, torch.zeros(len(vectors), dtype=torch.int64), weights)


def double(tokens):
    parts = (None if p is None or not p.is_floating_point() else p.double() for p in tokens)
    return PackedTokens(*(a if b is None else b for a, b in zip(tokens, parts, strict=True)))


def queries_of(tokens):
    return [as_text(tokens, number) for number in range(len(tokens.counts))]


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
    options = SearchOptions("exact", fde_planes=planes, fde_projection=None)
    encoding = Encoding.draw(8, options)
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
    estimates = index.search(queries, COLBERT, ESTIMATE)
    before = index.costs.candidates
    result = index.search(queries, COLBERT, ESTIMATE.changed(refine=2))
    assert index.costs.candidates - before == 2 * len(queries)
    for number, (few, some) in enumerate(zip(result, estimates, strict=True)):
        assert len(some.documents) == 8
        assert {*few.documents.tolist()} == {*some.documents[some.scores.topk(2).indices].tolist()}
        assert torch.allclose(few.scores, exact[number, few.documents], atol=1e-5)
        terms = index.proposer(ESTIMATE).terms(queries[number], ESTIMATE)[1][some.documents]
        assert torch.allclose(terms.sum(1), some.scores, atol=1e-5)
    for every in (None, 8, 100):
        whole = index.search(queries, COLBERT, ESTIMATE.changed(refine=every))
        for number, all_ in enumerate(whole):
            assert all_.documents.tolist() == list(range(8))
            assert torch.allclose(all_.scores, exact[number, all_.documents], atol=1e-5)


def test_tokens_of_one_direction_are_centred(tmp_path, capsys):
    """A vector added to every token changes the estimates by Σ_j ⟨μ, q_j⟩ alone."""
    tokens, texts = random_tokens(), some_queries()
    shift, mean = torch.full((8,), 5.0), tokens.vectors.mean(0)
    moved = texts._replace(vectors=texts.vectors + shift)
    assert not build(tmp_path / "apart", tokens).proposer(ESTIMATE).encoding.centre.any()
    assert "centred" not in capsys.readouterr().out
    far = build(tmp_path / "alike", tokens._replace(vectors=tokens.vectors + shift))
    estimates = far.proposer(ESTIMATE).estimates(moved.pad())
    assert "vectors are centred" in capsys.readouterr().out
    own = replace(far.proposer(ESTIMATE).encoding, centre=mean)
    expected = own.documents(double(tokens)) @ own.queries(double(texts)).T
    expected += (moved.pad().vectors @ (mean + shift)).sum(1)
    assert torch.allclose(estimates.double(), expected.double(), atol=1e-3)


def test_keys_are_encoded_in_the_place_of_vectors():
    tokens = double(random_tokens([3, 5]))
    keys = torch.cat([tokens.vectors, tokens.vectors[:, :2]], 1)
    encoding = Encoding.draw(10, SearchOptions("exact", fde_projection=4))
    keyed, plain = tokens._replace(keys=keys), tokens._replace(vectors=keys)
    for encode in (encoding.documents, encoding.queries):
        assert torch.equal(encode(keyed), encode(plain))


def test_rows_are_kept_and_made_again_after_a_change(tmp_path, monkeypatch):
    tokens, queries = random_tokens(), queries_of(some_queries())
    whole = build(tmp_path / "index", tokens).search(queries, COLBERT, ESTIMATE)
    index = build(tmp_path / "part", part_of(tokens, range(5)))
    encoded, documents = [], Encoding.documents
    monkeypatch.setattr(
        Encoding, "documents", lambda self, t: encoded.append(len(t.counts)) or documents(self, t)
    )
    index.proposer(ESTIMATE)
    TokenIndex(tmp_path / "part").proposer(ESTIMATE)
    assert sum(encoded) == 5, "what is there is opened"
    monkeypatch.setattr(muvera, "_TOKENS", 1)
    index = index.updated(names(tokens), lambda ids: [part_of(tokens, [5, 6, 7])])
    for result, expected in zip(index.search(queries, COLBERT, ESTIMATE), whole, strict=True):
        assert torch.allclose(result.scores, expected.scores, atol=1e-6)
    assert sum(encoded) == 5 + 8
    index.proposer(ESTIMATE.changed(seed=1))
    assert sum(encoded) == 5 + 8 + 8, "other settings"


def test_an_encoding_beyond_half_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match="mode=fde: must be exact or gather under TopK"):
        ESTIMATE.check(Scoring(TopK(2)))
    tokens = random_tokens()
    large = tokens._replace(vectors=tokens.vectors * 1e6)
    index = build(tmp_path / "index", large)
    with pytest.raises(ValueError, match="fde_dtype=float16: must be float32, some numbers"):
        index.proposer(ESTIMATE.changed(fde_dtype="float16"))
    assert not (tmp_path / "index" / FILE).exists()
    assert index.proposer(ESTIMATE).rows.isfinite().all()
