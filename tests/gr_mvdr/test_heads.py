import pytest
import torch

from gr_mvdr.backbones import load_encoder_decoder
from gr_mvdr.heads import Head, TokenRows

SHAPE = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    return load_encoder_decoder(None, shape=SHAPE).eval()


def targets():
    return torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]])


@pytest.mark.parametrize("scaled", [True, False])
def test_the_plain_head_is_the_backbones_own_loss(backbone, scaled, monkeypatch):
    monkeypatch.setattr(backbone.config, "scale_decoder_outputs", scaled)
    head, tokens = Head(backbone), targets()
    rows = head.labels(tokens, torch.tensor([0, 1]))
    inputs = head.inputs(rows)
    query = torch.tensor([[9, 3, 1], [4, 1, 1]])
    encoded = backbone.encoder(input_ids=query).last_hidden_state
    hidden = backbone.decoder(inputs_embeds=inputs, encoder_hidden_states=encoded)[0]
    position = torch.arange(4).expand(2, -1)
    found = head.logits(hidden.flatten(0, 1), None, position.flatten())
    expected = backbone(input_ids=query, labels=tokens)  # labels shifted right behind the start
    assert torch.allclose(found.view(2, 4, -1), expected.logits, atol=1e-5)


def test_the_plain_heads_vectors_times_hidden_are_its_logits(backbone):
    head, hidden = Head(backbone), torch.randn(8, 16)
    logits = head.logits(hidden, None, torch.arange(8))
    vectors = head.vectors(targets(), None).flatten(0, 1)
    expected = logits.gather(1, targets().flatten()[:, None]).squeeze(1)
    assert torch.allclose((vectors * hidden).sum(1), expected, atol=1e-5)


def test_the_plain_head_says_nothing_of_tables_rows_and_state(backbone):
    head = Head(backbone)
    scores = torch.randn(2, 40)
    assert torch.equal(head.by_token(scores), scores)
    parents, tokens = torch.tensor([0, 1, 1]), torch.tensor([3, 4, 5])
    assert torch.equal(head.best_rows(scores, parents, tokens), tokens)
    assert head.row_tokens is None and head.context(torch.randn(2, 3, 16)) is None
    assert not list(head.parameters()) and not head.state_dict() and head.table_state() is None
    assert not head.builds_before(0) and not head.is_contrastive(0)


def test_a_token_has_the_score_of_its_best_row():
    rows = TokenRows(torch.tensor([4, 2, 4, 2, 3]), n_tokens=6)
    scores = torch.tensor([[1.0, 5.0, 3.0, 2.0, 0.5], [7.0, 1.0, 6.0, 4.0, -2.0]])
    inf = torch.inf
    expected = [[-inf, -inf, 5.0, 0.5, 3.0, -inf], [-inf, -inf, 4.0, -2.0, 7.0, -inf]]
    assert rows.by_token(scores).tolist() == expected


def test_the_best_row_is_the_one_with_the_tokens_score():
    rows = TokenRows(torch.tensor([4, 2, 4, 2, 3]), n_tokens=6)
    scores = torch.tensor([[1.0, 5.0, 3.0, 2.0, 0.5], [7.0, 1.0, 6.0, 4.0, -2.0]])
    parents, tokens = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([4, 4, 2, 2, 3])
    best = rows.best_rows(scores, parents, tokens)
    assert best.tolist() == [2, 0, 1, 3, 4]
    assert torch.equal(scores[parents, best], rows.by_token(scores)[parents, tokens])


def test_one_row_a_token_in_token_order_changes_nothing():
    rows, scores = TokenRows(torch.arange(6), n_tokens=6), torch.randn(3, 6)
    assert torch.equal(rows.by_token(scores), scores)
    parents, tokens = torch.tensor([2, 0, 1]), torch.tensor([5, 0, 3])
    assert torch.equal(rows.best_rows(scores, parents, tokens), tokens)
