"""The query generator: likelihood, alignment, sampling, and retrieval with it."""

import pytest
import torch

from gr_mvdr.relevance import similarity
from models.beyond.query_generator import QueryGenerator


@pytest.fixture
def make(tools, tmp_path):
    tokenizer = tools.save_tokenizer(tmp_path / "tokenizer")

    def build(**options):
        torch.manual_seed(0)
        lengths = dict(document_length=12, query_length=8, n_queries=3, top_k=5)
        settings = dict(backbone=tools.BACKBONE, tokenizer=tokenizer, optimizer=tools.OPTIMIZER)
        return tools.sharpen(QueryGenerator(**{**settings, **lengths, **options})).eval()

    return build


@pytest.fixture
def written(tools):
    """Documents whose texts are the words of their tokens."""
    table = tools.Texts(tools.draw_tokens([3, 14, 1, 6], seed=3), "d")
    table["text"] = [" ".join(f"w{token}" for token in row) for row in table["tokens"]]
    return table


def swapped_loss(generator, batch, pair):
    """Hugging Face's loss of one query given its document."""
    query, document = batch.query_mask[pair], batch.document_mask[pair]
    return generator.backbone(
        input_ids=batch.document_ids[pair][document][None],
        labels=batch.query_ids[pair][query][None],
    ).loss


@torch.no_grad()
def test_the_score_is_the_querys_mean_log_probability(make, tools):
    generator, batch = make(), tools.make_batch()
    scores = generator.score(batch)
    for pair in range(3):
        assert torch.isclose(scores[pair], -swapped_loss(generator, batch, pair), atol=1e-5)


@torch.no_grad()
def test_the_alignment_is_the_transposed_attention_of_every_layer(make, tools):
    generator, batch = make(), tools.make_batch()
    explanation = generator.explain(batch)
    assert explanation.decoder is None and len(explanation.layers) == 2
    real = batch.query_mask[:, None]
    for pairs in explanation.layers:
        assert pairs.alignment.shape == pairs.similarity.shape == (3, 2, 9, 6)
        columns = pairs.alignment.sum(2)
        assert torch.allclose(columns, real.expand_as(columns).to(columns), atol=1e-5)
        assert torch.equal(pairs.score, generator.score(batch))
        for name, side in batch.sides.items():
            assert torch.equal(getattr(pairs, name), side)
    # The column of a query token is Hugging Face's cross-attention when it is generated.
    seen = generator.backbone(
        input_ids=batch.document_ids[:1, :7],
        labels=batch.query_ids[:1, :3],
        output_attentions=True,
    ).cross_attentions[-1]
    assert torch.allclose(pairs.alignment[0, :, :7, :3], seen[0].mT, atol=1e-5)
    factors = generator.factors(batch)
    inside = factors.document_mask[:, None, :, None] & factors.query_mask[:, None, None]
    found = similarity(factors.document_values, factors.query_values) * inside
    assert torch.allclose(found, pairs.similarity, atol=1e-6)
    logits = similarity(factors.document_keys, factors.query_keys)
    attention = logits.masked_fill(~inside, -1e9).softmax(2) * inside
    assert torch.allclose(attention, pairs.alignment, atol=1e-6)


def test_queries_are_drawn_by_the_seed_alone(make, written):
    first, other = list(make(seed=3).generate(written)), list(make(seed=4).generate(written))
    torch.rand(7)
    assert list(make(seed=3).generate(written)) == first != other
    assert [len(queries) for queries in first] == [3] * 4
    assert len({query for queries in first for query in queries}) > 6


def test_a_search_finds_the_words_of_a_text_and_of_its_queries(tools, make, written, monkeypatch):
    generator, queries = make(), [["w44 w43"], ["w42"], [], []]
    monkeypatch.setattr(generator, "generate", lambda documents: iter(queries))
    generator.index(written)
    asked = tools.Texts([[4], [5]], "q")
    asked["text"] = ["W44 w42?", f"w43 nothing {written['text'][1]}"]
    shares = generator.retrieve(asked, 10, with_shares=True).shares
    assert [share.tokens for share in shares["q0"]["d0"]] == ["w44", "w42"]
    assert shares["q0"]["d0"][1].value == 0 < shares["q0"]["d0"][0].value
    assert {"d0", "d1"} <= shares["q1"].keys()
