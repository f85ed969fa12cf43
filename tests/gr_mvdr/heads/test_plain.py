import math

import pytest
import torch

from gr_mvdr.heads.plain import Head, TableHead


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
    result = head.logits(hidden.flatten(0, 1), None, position.flatten())
    expected = backbone(input_ids=query, labels=tokens)  # labels shifted right behind the start
    assert torch.allclose(result.view(2, 4, -1), expected.logits, atol=1e-5)


PROBABILITIES = torch.tensor(
    [[0.1, 0.2, 0.3, 0.05, 0.15, 0.2], [0.25, 0.05, 0.25, 0.3, 0.1, 0.05]], dtype=torch.float64
)


@pytest.fixture
def table(backbone):
    head = TableHead(backbone)
    head.set_rows(torch.tensor([4, 2, 4, 2, 3, 2]))
    return head


def test_a_token_has_the_probability_of_all_its_rows(table):
    expected = torch.zeros(2, 40, dtype=torch.float64)
    expected[:, 2:5] = torch.tensor([[0.45, 0.15, 0.4], [0.4, 0.1, 0.5]])
    assert torch.allclose(table.by_token(PROBABILITIES.log()).exp(), expected, atol=1e-7)
    far = table.by_token(torch.full((1, 6), -1e4, dtype=torch.float64))  # exp would be 0
    assert far[0, 2].item() == pytest.approx(-1e4 + math.log(3))
    parents, tokens = torch.tensor([0, 1, 0, 1]), torch.tensor([4, 4, 2, 3])
    result = table.token_scores(PROBABILITIES.log(), parents, tokens)
    assert torch.allclose(result.exp(), expected[parents, tokens])
    assert table.first_row(torch.tensor([2, 3, 4, 5])).tolist() == [1, 4, 0, 0]


def test_the_decoder_reads_the_mean_of_a_tokens_rows(table):
    table.embed = lambda rows: torch.eye(6).double()[rows]
    parents, tokens = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([4, 4, 2, 3, 0])
    result = table.expected_inputs(PROBABILITIES.log(), parents, tokens)
    expected = torch.zeros(5, 6, dtype=torch.float64)  # nothing at padding, which has no row
    expected[[0, 0, 1, 1], [0, 2, 0, 2]] = torch.tensor([0.25, 0.75, 0.5, 0.5]).double()
    expected[2, [1, 3, 5]] = torch.tensor([4, 1, 4]).double() / 9
    expected[3, 4] = 1
    assert torch.allclose(result, expected)
