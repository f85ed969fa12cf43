from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from analysis.beyond.length_bias import (
    FORMS,
    GRADIENT,
    LengthBias,
    concentration,
    relevance_gradient,
)
from analysis.questions.analysis import Subject
from analysis.run import ask
from gr_mvdr.alignment import MaxSim, Softmax, SoftTopK, TopK
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.relevance import Scoring
from gr_mvdr.token_vectors import TokenVectors
from tests.analysis.asking import Indexed, data_of, text_of
from tests.analysis.test_run import unexplained

LENGTHS = range(2, 8)
DOCUMENTS = [f"d{length}" for length in LENGTHS]


def test_concentration_worked_out_by_hand():
    """Two query tokens. One document's first token is the best for both; three of another's four
    tokens get weights 2, 1, 1, of either sign; the third gets none.
    """
    gradient = torch.zeros(3, 1, 4, 2)
    gradient[0, 0, 0] = 0.5
    gradient[1, 0, :3, 0] = torch.tensor([2.0, -1.0, 1.0])
    mask = torch.tensor([[True] * 4, [True] * 4, [True] * 3 + [False]])
    found = concentration(gradient, mask)
    assert found["documents"].tolist() == [True, True, False]
    expected = {"reached": (1, 3), "effective": (1, 2**1.5), "largest": (4, 2)}
    for name, values in expected.items():
        assert found[name].tolist() == pytest.approx([value / 4 for value in (*values, 0)])


def texts(generator, shape, salience):
    vectors = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    mask = torch.ones(shape, dtype=torch.bool)
    weights = torch.rand(shape, generator=generator, dtype=torch.float64) if salience else None
    return TokenVectors(vectors, mask, torch.zeros(shape, dtype=torch.int64), weights)


@torch.inference_mode()
def test_the_gradient_is_the_alignment_where_it_is_a_choice():
    """A / Z, saliences included (aligner Eq. 2); a softmax has its own derivative besides."""
    generator = torch.Generator().manual_seed(0)
    documents, query = texts(generator, (3, 6), True), texts(generator, (5,), True)
    documents.mask[1, 4:] = False
    for alignment in (MaxSim(), TopK(2), MaxSim("document_to_query")):
        for normaliser in ("none", "query_tokens"):
            scoring = Scoring(alignment, normaliser)
            pairs = scoring.align(documents, query[None])
            relevance, gradient = relevance_gradient(scoring, documents, query)
            assert torch.equal(relevance, pairs.score)
            expected = pairs.alignment / pairs.normaliser[:, None, None, None]
            torch.testing.assert_close(gradient, expected)
    documents, query = texts(generator, (3, 6), False), texts(generator, (5,), False)
    for alignment, axis in ((Softmax("query_to_document"), 2), (Softmax(), 3)):
        pairs = Scoring(alignment).align(documents, query[None])
        mean = (pairs.similarity * pairs.alignment).sum(axis, keepdim=True)
        expected = pairs.alignment * (1 + pairs.similarity - mean)
        gradient = relevance_gradient(Scoring(alignment), documents, query)[1]
        torch.testing.assert_close(gradient, expected)
    near, hard = (
        relevance_gradient(Scoring(alignment), documents, query)[1]
        for alignment in (SoftTopK(1, 1e-4), MaxSim())
    )
    torch.testing.assert_close(near, hard)


def nested(folder):
    """The document d<n> has a token of similarity 0.5 + n/100 to a query, n − 1 others of 0.1."""
    cosines = {f"d{n}": torch.tensor([0.5 + n / 100, *[0.1] * (n - 1)]) for n in LENGTHS}
    documents = {d: text_of(torch.stack([c, (1 - c**2).sqrt()], 1)) for d, c in cosines.items()}
    return Indexed(folder, documents, {q: text_of(torch.eye(2)[:1]) for q in ("q0", "q1", "q2")})


@pytest.fixture
def measured(tmp_path):
    """Asks about three queries, whose relevant document is the shortest."""
    queries = Dataset.from_dict({"id": ["q0", "q1", "q2"]})
    table = Dataset.from_dict({"id": DOCUMENTS, "tokens": [[0] * n for n in LENGTHS]})
    data = data_of(
        documents=table,
        test_queries=lambda split: queries,
        rerank_queries=lambda split: queries,
        relevant=lambda split, chosen: {q: ["d2"] for q in chosen["id"]},
        list_candidates=lambda split, chosen: {q: DOCUMENTS for q in chosen["id"]},
    )
    (tmp_path / "config.yaml").write_text("rerank: {likelihood: {}, mean: {}}")
    for sign, name in ((1, "retrieve"), (-1, "rerank"), (1, "rerank-mean")):
        scores = {d: float(sign * n) for d, n in zip(DOCUMENTS, LENGTHS, strict=True)}
        Ranking({q: scores for q in queries["id"]}).write(tmp_path / f"{name}.trec", "test")

    def run(model):
        line = {"_target_": "analysis.beyond.length_bias.LengthBias", "queries": 2}
        (found,) = ask(Subject(model, data, tmp_path), {LengthBias.name: line})
        assert unexplained(found.rows) == []
        return {row["form"]: row for row in found.tables["length_bias"]}, found.metrics

    return run


def test_both_signs_of_the_bias(measured, tmp_path):
    """Another token raises this maximum, and sums; it lowers means over document tokens."""
    rows, metrics = measured(nested(tmp_path))
    assert [*rows] == ["retrieved", "own", *FORMS]
    signs = {form: row["correlation_with_length"] for form, row in rows.items()}
    for form in ("own", "max_sim", "first_token", "max_sim_reversed"):
        assert signs[form] == pytest.approx(1)
    for form in ("softmax", "mean_max_sim_reversed"):
        assert signs[form] == pytest.approx(-1)
    assert rows["own"]["queries"] == 2 and rows["retrieved"]["queries"] == 3
    # All six documents are among the first ten; their mean length is 4.5, the relevant one's 2.
    assert rows["own"]["first_ratio"] == rows["own"]["all_ratio"] == pytest.approx(2.25)
    share = sum(1 / n for n in LENGTHS) / len(LENGTHS)  # one token holds all of the gradient
    assert [rows["max_sim"][name] for name in GRADIENT] == pytest.approx([share, share, 1])
    assert [rows["max_sim_reversed"][n] for n in GRADIENT] == pytest.approx([1, 1, share])
    assert metrics["analysis/length_bias/own/correlation_with_length_low"] == pytest.approx(1)


def test_other_systems_are_read_from_their_rankings(measured):
    rows, metrics = measured(
        SimpleNamespace(paradigm="lexical", searcher=None, eval=list, cut_document=list)
    )
    signs = {form: round(row["correlation_with_length"], 6) for form, row in rows.items()}
    assert signs == {"retrieved": 1, "own": -1, "mean": 1}
    assert not any(name.endswith(GRADIENT) for name in metrics)
