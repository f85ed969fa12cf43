"""SPLADE: numbers by hand, and the laws of learned term weights and their inverted lists."""

import math
from types import SimpleNamespace

import pytest
import torch

from gr_mvdr.losses import expected_operations
from models.beyond.splade import SPLADE
from tests.runs import flat


def by_the_paper(model, ids, mask):
    """(B, V) max over real tokens of log(1 + ReLU(h·e / √d + b)), 0 of special tokens."""
    states = model.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    table = model.encoder.get_input_embeddings().weight
    logits = states @ table.T / math.sqrt(table.shape[1]) + model.bias
    weights = (logits.relu().log1p() * mask[:, :, None]).amax(1)
    return weights.index_fill(1, torch.tensor(model.template.special), 0.0)


def cut(weights, k):
    """All but the k largest of each row are 0."""
    return weights * (weights >= weights.sort(1, descending=True).values[:, k - 1 : k])


def test_weights_and_their_gradients_are_the_papers(tools):
    batch, found = tools.widen(tools.make_batch()), []
    for weigh in (SPLADE.term_weights, by_the_paper):
        model = tools.make_splade()
        weights = weigh(model, batch.document_ids, batch.document_mask)
        (weights * torch.arange(60.0)).square().sum().backward()
        found.append([weights.detach(), *(p.grad for p in model.parameters())])
    assert 0.2 < (found[1][0] > 0).double().mean() < 0.9
    for ours, papers in zip(*found, strict=True):
        assert torch.allclose(ours, papers, rtol=1e-9, atol=1e-9 * float(papers.abs().max()))


def test_the_regulariser_by_hand_and_its_ramp(tools, monkeypatch):
    weights = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    assert expected_operations(weights) == 0.5**2 + 2.0**2
    batch = tools.make_batch()
    plain = tools.make_splade(regulariser={"query": 0.0, "document": 0.0})
    sides = "document", "query"
    documents, queries = (
        by_the_paper(plain, *(getattr(batch, f"{side}_{part}") for part in ("ids", "mask")))
        for side in sides
    )
    alone = plain.loss_function(documents @ queries.T, batch)
    assert torch.isclose(plain.loss(batch), alone, rtol=1e-9)
    model = tools.make_splade()
    whole = 0.1 * expected_operations(queries) + 0.2 * expected_operations(documents)
    assert torch.isclose(model.loss(batch), alone + whole, rtol=1e-9), "no training is under way"
    model._trainer = SimpleNamespace(estimated_stepping_batches=30, global_step=0)
    monkeypatch.setattr(SPLADE, "trainer", property(lambda system: system._trainer))
    model.on_train_start()
    for step, share in ((0, 0.0), (5, 0.25), (10, 1.0), (29, 1.0)):
        model._trainer.global_step = step
        assert torch.isclose(model.loss(batch), alone + share * whole, rtol=1e-9), step


@torch.no_grad()
def test_alignment_is_exact_match_and_makes_the_score(tools):
    model, batch = tools.make_splade(), tools.make_batch()
    pairs = model.align(tools.widen(batch))
    documents = by_the_paper(model, batch.document_ids, batch.document_mask)
    queries = by_the_paper(model, batch.query_ids, batch.query_mask)
    expected = (cut(documents, 20) * cut(queries, 9)).sum(1)
    assert (expected > 0).all() and (expected < (documents * queries).sum(1)).any()
    assert torch.allclose(pairs.score, expected, rtol=1e-9)
    same = pairs.document_ids[:, :, None] == pairs.query_ids[:, None]
    same &= pairs.document_mask[:, :, None] & pairs.query_mask[:, None]
    assert torch.equal(pairs.alignment[:, 0] > 0, same) and same.any()
    assert not torch.isin(pairs.document_ids, torch.tensor(model.template.special)).any()


@torch.no_grad()
def test_search_is_the_product_of_all_kept_weights(tools, documents, queries):
    model = tools.make_splade(keep={"query": 3, "document": 5})
    model.index(documents)
    ranking = model.retrieve(queries, 100)
    candidates = dict.fromkeys(queries["id"], documents["id"])
    reranked = model.rerank(queries, documents, candidates)
    weights = {}
    for side, table, length, k in (("query", queries, 8, 3), ("document", documents, 12, 5)):
        read = getattr(model.template, f"read_{side}")
        texts = [torch.tensor([read(tokens, length)]) for tokens in table["tokens"]]
        found = [
            by_the_paper(model, text, torch.ones_like(text, dtype=torch.bool)) for text in texts
        ]
        weights[side] = cut(torch.cat(found), k)
    products = weights["query"] @ weights["document"].T
    shared = (weights["query"] > 0).double() @ (weights["document"] > 0).double().T
    assert (shared == 0).any(), "a document that shares no term is not found"
    for query, row in zip(queries["id"], products.tolist(), strict=True):
        expected = dict(zip(documents["id"], row, strict=True))
        assert reranked.scores(query) == pytest.approx(expected, abs=1e-5)
        found = {name: score for name, score in expected.items() if score > 0}
        assert ranking.scores(query) == pytest.approx(found, abs=1e-5)
    costs = flat(model.search_fidelity(queries, ranking, 100))
    assert costs["cost/candidates"] == (shared > 0).sum(1).double().mean()
    assert costs["cost/shared_terms"] == pytest.approx(float(shared.mean()))
    assert costs["cost/query_terms"] == (weights["query"] > 0).sum(1).double().mean()
    assert costs["cost/document_terms"] == (weights["document"] > 0).sum(1).double().mean()


def test_texts_without_a_term_are_found_by_nothing(tools, documents, queries):
    model = tools.make_splade(initial_bias=-99.0)
    model.index(documents)
    ranking = model.retrieve(queries, 3, with_shares=True)
    shares = ranking.shares
    assert not any(ranking.documents(query) or shares[query] for query in queries["id"])
    pairs = model.align(tools.make_batch())
    assert pairs.score.tolist() == [0, 0, 0] and pairs.document_mask.sum(1).tolist() == [1, 1, 1]
    assert not model.searcher.matrix.nnz
