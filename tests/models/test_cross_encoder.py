"""The cross-encoder: one sequence a pair, the pairs that it is trained on, reranking, its cost."""

import pytest
import torch

from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.tokenizers import EOS_ID


@pytest.fixture
def make(tools):
    return tools.make_cross_encoder


def sequences(batch):
    """Each pair's real tokens, the query's first, as lists."""
    queries = zip(batch.query_ids, batch.query_mask, strict=True)
    documents = zip(batch.document_ids, batch.document_mask, strict=True)
    return [
        query[real].tolist() + document[kept].tolist()
        for (query, real), (document, kept) in zip(queries, documents, strict=True)
    ]


# One sequence a pair ---------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "first"])
@torch.no_grad()
def test_the_score_is_the_head_on_the_pooled_states(make, tools, pooling):
    model, batch = make(pooling=pooling), tools.make_batch()
    for score, tokens in zip(model.score(batch), sequences(batch), strict=True):
        vectors = model.encoder.get_input_embeddings()(torch.tensor(tokens))
        vectors[: tokens.index(EOS_ID) + 1] += model.query_type  # the query's, its end token's too
        states = model.encoder(inputs_embeds=vectors[None]).last_hidden_state[0]
        pooled = states[0] if pooling == "first" else states.mean(0)
        assert torch.isclose(score, pooled @ model.head.weight[0] + model.head.bias[0], atol=1e-5)


@torch.no_grad()
def test_a_pretrained_backbone_without_token_types_reads_pairs_as_one_text_at_first(
    make, tools, tmp_path
):
    batch = tools.make_batch()
    make().encoder.save_pretrained(tmp_path)
    model = make(backbone={"name": str(tmp_path), "dropout_rate": 0.0})
    scores = model.score(batch)
    for score, tokens in zip(scores, sequences(batch), strict=True):
        states = model.encoder(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        assert torch.isclose(score, model.head(states.mean(0))[0], atol=1e-5)
    model.query_type += torch.randn(len(model.query_type))
    assert ((model.score(batch) - scores).abs() > 1e-5).all()


# Training --------------------------------------------------------------------------------------


@pytest.fixture(name="given")
def _given(tools):
    """Three queries with two hard negatives each; some are other queries' positives."""
    documents = tools.draw_tokens([6, 1, 8, 3, 4], seed=8)
    ids, mask = pad([cut(tokens, 99, EOS_ID) for tokens in documents])
    batch = tools.make_batch((3, 6, 2), (2, 2, 2))
    return PairBatch(
        batch.query_ids,
        batch.query_mask,
        ids,
        mask,
        torch.tensor([4, 2, 7, 9, 1]),
        negatives=torch.tensor([[3, 4], [4, 0], [3, 1]]),
    )


def pair_scores(model, batch):
    """(D, B) the score of every pair, one at a time."""
    count = len(batch.document_ids)
    columns = []
    for query in range(len(batch)):
        ids, mask = batch.query_ids[[query] * count], batch.query_mask[[query] * count]
        rows = PairBatch(ids, mask, batch.document_ids, batch.document_mask, batch.document_index)
        columns.append(model.score(rows))
    return torch.stack(columns, 1)


@torch.no_grad()
def test_the_loss_is_a_softmax_over_the_positive_and_its_negatives(make, tools, given):
    model = make(negatives_per_query=2)
    batch = tools.make_batch((3, 2, 4, 2), (5, 3, 4, 6))
    batch.document_index = torch.tensor([1, 1, 2, 3])
    for number, (data, rows) in enumerate(
        [
            (batch, [[0, 2, 3], [1, 2, 3], [2, 3, 0], [3, 0, 1]]),
            (given, [[0, 3, 4], [1, 4, 0], [2, 3, 1]]),
        ]
    ):
        every = pair_scores(model, data)
        losses = [
            -every[row, query].log_softmax(0)[0]
            for query, row in enumerate(map(torch.tensor, rows))
        ]
        assert torch.isclose(model.loss(data), torch.stack(losses).mean(), atol=1e-5), number


# Reranking and retrieval -----------------------------------------------------------------------


def test_retrieval_reranks_the_best_documents_of_bm25(make, tools, documents, tmp_path):
    tokens = documents["tokens"]
    queries = tools.Texts([tokens[1][:3] + tokens[5][:4] + tokens[3][:2], [59_999]], "q")
    model = make(depth=2)
    model.index(documents, tmp_path / "index")
    assert (tmp_path / "index/bm25/lists.safetensors").is_file()
    best = model.words.best(queries["text"][0], 2)
    assert len(model.words.best(queries["text"][0], 100)) > 2
    found = model.retrieve(queries, 100)
    assert found == model.rerank(queries, documents, {"q0": best, "q1": []})
    assert set(found.documents("q0")) == set(best) and found.documents("q1") == []
    assert model.retrieve(queries, 1).documents("q0") == found.documents("q0")[:1]
