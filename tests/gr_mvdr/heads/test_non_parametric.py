import pytest
import torch

from gr_mvdr.heads.non_parametric import NonParametricHead, locate
from gr_mvdr.heads.plain import Head, Vocabulary

# Document 2 has no title; 7 occurs five times.
TITLES = [[7, 8, 7, 9], [7, 7, 8], [], [9, 7]]


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def built(backbone, clusters=5, **options):
    head = NonParametricHead(backbone, clusters=clusters, **options)
    head.build(TITLES, random(9, 16), collection="abc")
    return head


# Laws of the head


def test_one_row_a_token_with_the_decoders_embeddings_is_the_plain_head(backbone):
    plain, head = Head(backbone), NonParametricHead(backbone)
    tokens = [token for title in TITLES for token in title]
    table = backbone.shared.weight.detach()
    head.set_table(table, torch.arange(40), **locate(TITLES, torch.tensor(tokens)))
    targets, index = torch.tensor([[7, 8, 7, 1], [9, 7, 1, 0]]), torch.tensor([0, 3])
    rows = head.labels(targets, index)
    assert torch.equal(rows, plain.labels(targets, index))
    assert torch.equal(head.inputs(rows), plain.inputs(rows))
    hidden, position = random(8, 16), torch.arange(8)
    logits = head.logits(hidden, head.context(head.inputs(rows)), position)
    assert torch.equal(logits, plain.logits(hidden, None, position))
    assert torch.equal(head.vectors(rows, None), plain.vectors(rows, None))
    assert torch.equal(head.by_token(logits), plain.by_token(logits))
    parents, chosen = torch.tensor([2, 5]), torch.tensor([9, 1])
    read = head.expected_inputs(logits, parents, chosen)
    assert torch.equal(read, plain.expected_inputs(logits, parents, chosen))


# Labels


def test_a_span_is_found_at_its_first_place(backbone):
    head = NonParametricHead(backbone, clusters=20)
    text, vectors = [[5, 6, 5, 6, 7, 5, 6, 7]], random(8, 16)
    head.build(text, vectors)
    # the beginning of the text agrees with two of the tokens, the third place with all three
    targets = torch.tensor([[5, 6, 7], [6, 5, 1], [7, 0, 0], [6, 7, 7]])
    rows = head.labels(targets, torch.zeros(4, dtype=torch.long))
    result = head.table[rows]
    assert torch.equal(result[0], vectors[[2, 3, 4]])
    assert torch.equal(result[1, :2], vectors[[1, 2]])
    assert torch.equal(result[2, 0], vectors[4])
    assert torch.equal(result[3], vectors[[3, 4, 4]])  # then the first row of 7


def test_clustered_occurrences_are_labelled_with_their_cluster(backbone):
    head = built(backbone, clusters=2)
    assert head.row_tokens.tolist() == [7, 7, 8, 8, 9, 9, 1]
    rows = head.labels(torch.tensor([[7, 8, 7, 9], [7, 7, 8, 1]]), torch.tensor([0, 1]))
    sevens = [(rows[0, 0], 0), (rows[0, 2], 2), (rows[1, 0], 4), (rows[1, 1], 5)]
    last = head.labels(torch.tensor([[9, 7]]), torch.tensor([3]))[0, 1]
    for row in (0, 1):
        members = [place for label, place in [*sevens, (last, 8)] if label == row]
        assert torch.allclose(head.table[row], random(9, 16)[members].mean(0), atol=1e-6)


def test_tokens_that_came_later_get_the_shared_embedding(backbone):
    head = NonParametricHead(backbone, Vocabulary(torch.tensor([1, 7, 20])))
    head.build(TITLES, random(9, 16))
    assert head.row_tokens[-2:].tolist() == [1, 20]
    before = head.table.clone()
    assert head.by_token(torch.randn(2, len(before))).isfinite().sum(1).tolist() == [5, 5]
    head.extend([7, 33, 20])
    assert head.row_tokens[len(before) :].tolist() == [33]
    assert torch.equal(head.table, torch.cat([before, backbone.shared.weight[33:34]]))
    assert not head.table.requires_grad
    scores = head.by_token(torch.randn(2, len(head.table)))
    assert scores.isfinite().sum(1).tolist() == [6, 6]  # 7, 8, 9, 1, 20, 33


# Schedule and checkpoints


# The table's life


def test_the_table_is_rebuilt_before_the_epochs_of_each_form(backbone, monkeypatch):
    rebuilt = []
    monkeypatch.setattr(NonParametricHead, "renew_table", lambda head: rebuilt.append(epoch))
    due = []
    for options in ({}, {"form": "async", "rebuild_every": 3}, {"form": "contrastive"}):
        head = NonParametricHead(backbone, contrastive_epochs=2, **options)
        rebuilt.clear()
        for epoch in range(7):
            head.begin_epoch(epoch)
        due.append((rebuilt[:], [epoch for epoch in range(7) if head.is_contrastive(epoch)]))
        rebuilt.clear()
        for epoch in range(7):  # training may end in any epoch
            head.end_training(epoch)
        due[-1] += (rebuilt[:],)
    assert due == [([], [], []), ([3, 6], [], []), ([2], [0, 1], [0, 1])]


def test_a_table_of_another_collection_is_refused(backbone):
    state, other = built(backbone).table_state(), NonParametricHead(backbone)
    other._source = [], {"id": ["x"]}, 9
    with pytest.raises(ValueError, match="from the collection abc, the documents given are"):
        other.renew_table(state)
    assert other.row_tokens is None
