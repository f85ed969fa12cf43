"""Codes of faiss' quantisers as docids: equal to faiss' own, numbered or shared, kept, counted."""

import faiss
import numpy as np
import pytest
from datasets import Dataset

from gr_mvdr.identifiers.document_embeddings import DocumentEmbeddings, normalise_rows
from models.beyond.quantised_docids import QuantisedDocids

FIRST = 100
# Four corners of a rectangle on the unit circle: the first and the last corner have two documents.
CORNERS = np.array([[3, 1], [3, -1], [-3, 1], [-3, -1], [3, 1], [-3, -1]])
# Right or left, then up or down: what k-means would find of them from most of its beginnings.
BOOKS = {
    "residual": np.array([[[3, 0], [-3, 0]], [[0, 1], [0, -1]]], dtype=np.float32) / 10**0.5,
    "product": np.array([[[3], [-3]], [[1], [-1]]], dtype=np.float32) / 10**0.5,
}


def documents(n):
    return Dataset.from_dict({"id": [f"d{i}" for i in range(n)], "tokens": [[i] for i in range(n)]})


def make(points, books=None, **options):
    """A scheme that embeds the points; `books`: not learned, but given."""
    scheme = QuantisedDocids(**{"levels": 2, "codes": 2, **options})
    scheme.embed = lambda table: np.float32([points[row[0]] for row in table["tokens"]])
    scheme.embedder, scheme.owners = DocumentEmbeddings(), [scheme]  # nothing is learned of texts
    if books is not None:
        scheme.learn_codebooks = lambda points: books
    return scheme


def fitted(points, n=None, **options):
    """A scheme that knows the first n points, and their vectors of length 1."""
    scheme = make(normalise_rows(points), **options)
    scheme.fit(documents(n or len(points)), FIRST)
    return scheme


@pytest.mark.parametrize("quantiser", BOOKS)
def test_codes_are_faiss_own_for_known_and_for_new_documents(quantiser, tmp_path):
    points = normalise_rows(np.random.default_rng(0).normal(size=(150, 6)))
    options = dict(quantiser=quantiser, levels=3, codes=8, seed=5)
    scheme, loaded = fitted(points, n=100, **options), make(points, **options)
    theirs = (faiss.ProductQuantizer if quantiser == "product" else faiss.ResidualQuantizer)(
        6, 3, 3
    )
    theirs.cp.seed = 5
    if quantiser == "residual":
        theirs.train_type = faiss.ResidualQuantizer.Train_default
    theirs.train(points[:100])
    packed = theirs.compute_codes(points)
    codes, own = faiss.unpack_bitstrings(packed, 3, 3), scheme
    assert np.array_equal(own.known_codes, codes[:100])
    assert np.allclose(own.decode(own.known_codes), theirs.decode(packed)[:100], atol=1e-6)
    scheme.save(tmp_path / "scheme")
    loaded.load(tmp_path / "scheme")
    for one in (scheme, loaded):
        found = np.array([row[:3] for row in one.assign(documents(150)).sequences])
        assert np.array_equal(found - FIRST - one.width * np.arange(3), codes)
    assert loaded.statistics() == scheme.statistics()
    # A number in place of a file's vectors: faiss would read on behind them.
    loaded.codebooks = loaded.codebooks[:, :, :1]
    with pytest.raises(ValueError, match="codebooks: is damaged, must hold 3 × 8 float32"):
        loaded.assign(documents(150))


@pytest.mark.parametrize("quantiser", BOOKS)
def test_equal_codes_are_numbered_in_the_documents_order_or_shared(quantiser):
    """Two levels of two codes: six points have four pairs of codes, and the last two of them two.

    Two more copies of the first come later: the numbers of its codes are used up.
    """
    points = np.vstack([CORNERS, CORNERS[:1], CORNERS[:1]])
    options = dict(n=6, books=BOOKS[quantiser], quantiser=quantiser)
    scheme, shared = fitted(points, **options), fitted(points, **options, collisions="share")
    assert (scheme.width, scheme.n_tokens, shared.n_tokens) == (2, 6, 4)
    known = [[100, 102, 104], [100, 103, 104], [101, 102, 104], [101, 103, 104]]
    known += [[100, 102, 105], [101, 103, 105]]
    every = [*known, [100, 102, 105], [100, 102, 105]]
    assert scheme.assign(documents(8)).sequences == every
    assert shared.assign(documents(8)).sequences == [docid[:2] for docid in every]


def statistics_of(scheme):
    rows = scheme.statistics()
    return {"/".join(filter(None, (row.place, row.metric.name))): row.value for row in rows}


def test_statistics_worked_out_by_hand():
    """Right or left alone: 3 documents of 5 are right, and each loses its height, 1/10 squared.

    About their mean the squares are 5 (9/10 (1 − 1/25) + 1/10 (1 − 1/25)) = 4.8.
    """
    found = fitted(CORNERS[:5], books=BOOKS["residual"][:1], levels=1)
    assert statistics_of(found) == {
        "level_1/code_usage": 1,
        "level_1/code_entropy": pytest.approx(-0.6 * np.log2(0.6) - 0.4 * np.log2(0.4)),
        "code_collision_rate": 1,
        "largest_code_group": 3,
        "reconstruction_error": pytest.approx(0.5 / 4.8),
    }


def test_few_and_equal_documents():
    few = fitted(CORNERS[:3], levels=1, codes=16, collisions="share")
    assert len({tuple(row) for row in few.assign(documents(3)).sequences}) == 3
    assert statistics_of(few)["level_1/code_usage"] == 3 / 16
    assert statistics_of(few)["reconstruction_error"] == pytest.approx(0, abs=1e-6)
    alike = fitted(np.repeat(CORNERS[:1], 8, axis=0), codes=4)
    assert len({tuple(row) for row in alike.assign(documents(8)).sequences}) == 8
    statistics = statistics_of(alike)
    assert statistics["level_1/code_usage"] == 0.25 and statistics["level_1/code_entropy"] == 0
    assert np.isfinite(statistics["reconstruction_error"])
