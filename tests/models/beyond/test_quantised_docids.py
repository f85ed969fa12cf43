"""Codes of faiss' quantisers as docids: equal to faiss' own, numbered or shared, kept, counted."""

import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.scheme import Identifiers
from models.beyond.quantised_docids import QuantisedDocids

faiss = pytest.importorskip("faiss")
FIRST = 100
OWN = {"_target_": "gr_mvdr.identifiers.document_embeddings.OwnEncoder", "length": 9}
# Four corners of a rectangle on the unit circle: the first and the last corner have two documents.
CORNERS = np.array([[3, 1], [3, -1], [-3, 1], [-3, -1], [3, 1], [-3, -1]])
# Right or left, then up or down: what k-means would find of them from most of its beginnings.
BOOKS = {
    "residual": np.array([[[3, 0], [-3, 0]], [[0, 1], [0, -1]]], dtype=np.float32) / 10**0.5,
    "product": np.array([[[3], [-3]], [[1], [-1]]], dtype=np.float32) / 10**0.5,
}


def documents(n):
    return Dataset.from_dict({"id": [f"d{i}" for i in range(n)], "tokens": [[i] for i in range(n)]})


def encoder(points):
    return lambda tokens, length: points[[row[0] for row in tokens]]


def fitted(points, n=None, books=None, **options):
    """A scheme of the first n points; it can embed all of them. `books`: not learned, but given."""
    scheme = QuantisedDocids(**{"levels": 2, "codes": 2, "embeddings": OWN, **options})
    if books is not None:
        scheme._learn_codebooks = lambda points: books
    scheme.fit(documents(n or len(points)), FIRST, encoder(points))
    return scheme


@pytest.mark.parametrize("quantiser", ["residual", "product"])
def test_codes_are_faiss_own_for_known_and_for_new_documents(quantiser, tmp_path):
    points = np.random.default_rng(0).normal(size=(150, 6)).astype(np.float32)
    scheme = fitted(points, n=100, quantiser=quantiser, levels=3, codes=8, seed=5)
    own = points / np.linalg.norm(points, axis=1, keepdims=True)
    kind = faiss.ProductQuantizer if quantiser == "product" else faiss.ResidualQuantizer
    theirs = kind(6, 3, 3)
    theirs.cp.seed = 5
    if quantiser == "residual":
        theirs.train_type = faiss.ResidualQuantizer.Train_default
    theirs.train(own[:100])
    packed = theirs.compute_codes(own)
    codes = faiss.unpack_bitstrings(packed, 3, 3)
    assert np.array_equal(scheme.known_codes, codes[:100])
    assert np.allclose(scheme.decode(scheme.known_codes), theirs.decode(packed)[:100], atol=1e-6)
    scheme.save(tmp_path / "scheme")
    loaded = QuantisedDocids(3, 8, quantiser, embeddings=OWN, seed=5)
    loaded.load(tmp_path / "scheme", encoder(points))
    for one in (scheme, loaded):
        found = np.array([row[:3] for row in one.assign(documents(150))])
        assert np.array_equal(found - FIRST - one.width * np.arange(3), codes)
        assert one.assign(documents(150).select([140, 7])) == [
            one.assign(documents(150))[140],
            one.assign(documents(150))[7],
        ]
    assert loaded.statistics() == scheme.statistics()


@pytest.mark.parametrize("quantiser", BOOKS)
def test_equal_codes_are_numbered_in_the_documents_order(quantiser):
    """Two levels of two codes: six points have four pairs of codes, and the last two of them two.

    Two more copies of the first come later: the numbers of its codes are used up.
    """
    points, books = np.vstack([CORNERS, CORNERS[:1], CORNERS[:1]]), BOOKS[quantiser]
    scheme = fitted(points, n=6, books=books, quantiser=quantiser)
    assert (scheme.width, scheme.n_tokens) == (2, 6)
    known = [[100, 102, 104], [100, 103, 104], [101, 102, 104], [101, 103, 104]]
    known += [[100, 102, 105], [101, 103, 105]]
    assert scheme.assign(documents(8)) == [*known, [100, 102, 105], [100, 102, 105]]
    assert scheme.assign(documents(8).select([5, 0])) == [known[5], known[0]]


def test_the_last_position_has_a_number_for_each_of_the_largest_group():
    points = np.repeat(CORNERS[:4], [5, 1, 1, 1], axis=0)
    scheme = fitted(points, books=BOOKS["residual"])
    assert (scheme.width, scheme.n_tokens) == (5, 15)
    found = scheme.assign(documents(8))
    assert found[:5] == [[100, 105, 110 + number] for number in range(5)]
    assert found[5:] == [[100, 106, 110], [101, 105, 110], [101, 106, 110]]


def test_shared_codes_are_one_identifier():
    scheme = fitted(CORNERS, books=BOOKS["residual"], collisions="share")
    assert (scheme.width, scheme.n_tokens) == (2, 4)
    found = scheme.assign(documents(6))
    assert found == [[100, 102], [100, 103], [101, 102], [101, 103], [100, 102], [101, 103]]
    named = Identifiers([f"d{i}" for i in range(6)], found)
    assert named.statistics()["collision_rate"] == pytest.approx(4 / 6)


def test_statistics_worked_out_by_hand():
    """Right or left alone: 3 documents of 5 are right, and each loses its height, 1/10 squared.

    About their mean the squares are 5 (9/10 (1 − 1/25) + 1/10 (1 − 1/25)) = 4.8.
    """
    found = fitted(CORNERS[:5], books=BOOKS["residual"][:1], levels=1).statistics()
    assert found == {
        "level_1/code_usage": 1,
        "level_1/code_entropy": pytest.approx(-0.6 * np.log2(0.6) - 0.4 * np.log2(0.4)),
        "code_collision_rate": 1,
        "largest_code_group": 3,
        "reconstruction_error": pytest.approx(0.5 / 4.8),
    }


def test_fewer_documents_than_codes_have_a_code_each():
    found = fitted(CORNERS[:3], levels=1, codes=16, collisions="share")
    assert len({tuple(row) for row in found.assign(documents(3))}) == 3
    assert found.statistics()["level_1/code_usage"] == 3 / 16
    assert found.statistics()["reconstruction_error"] == pytest.approx(0, abs=1e-6)


def test_parts_of_a_product_are_as_wide_by_zeros():
    points = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)
    wide = np.pad(points, ((0, 0), (0, 1)))
    odd, even = (fitted(p, quantiser="product", levels=3, codes=4) for p in (points, wide))
    assert np.array_equal(odd.known_codes, even.known_codes)
    assert odd.assign(documents(40)) == even.assign(documents(40))


def test_documents_that_are_all_alike_use_one_code():
    found = fitted(np.repeat(CORNERS[:1], 8, axis=0), codes=4)
    assert len({tuple(row) for row in found.assign(documents(8))}) == 8
    statistics = found.statistics()
    assert statistics["level_1/code_usage"] == 0.25 and statistics["level_1/code_entropy"] == 0
    assert np.isfinite(statistics["reconstruction_error"])


@pytest.mark.parametrize("quantiser", BOOKS)
def test_codebooks_of_shorter_vectors_are_refused_where_faiss_would_read_on(quantiser):
    scheme = fitted(np.repeat(CORNERS, 2, axis=1), n=5, quantiser=quantiser)
    scheme.codebooks = scheme.codebooks[:, :, :1]
    with pytest.raises(
        ValueError, match="codebooks.npy: is of vectors of . dimensions, must be of 4"
    ):
        scheme.assign(documents(6))
