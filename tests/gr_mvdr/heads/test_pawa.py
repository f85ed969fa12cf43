import math

import pytest
import torch
import torch.nn.functional as F

from gr_mvdr.backbones import load_backbone
from gr_mvdr.heads.pawa import PawaHead
from gr_mvdr.heads.plain import Vocabulary

pytestmark = pytest.mark.usefixtures("float64")

SHAPE = dict(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
# The end token, and three positions with four docid tokens each.
POSITIONED = Vocabulary(torch.tensor([1, *range(30, 42)]), first_token=30, width=4)
# Fewer rows than the vectors' size and more: the two orders of the products.
SHORT, LONG = Vocabulary(torch.tensor([1, 5, 9, 20])), Vocabulary(torch.arange(1, 48))


@pytest.fixture(scope="module")
def backbone(float64):
    torch.manual_seed(0)
    return load_backbone(None, shape=SHAPE, decodes=True).eval()


def make(backbone, vocabulary=SHORT, form="paper", **options):
    torch.manual_seed(1)
    head = PawaHead(backbone, vocabulary, form, layers=2, heads=4, **options)
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return head


def states(*shape):
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(2))


def test_equation_17_by_hand(backbone):
    """−d′ᵀ E_dᵀ h + log Σ_v exp d′ᵀ E_vᵀ h at one position, worked out with E = diagonals."""
    head = make(backbone)
    with torch.no_grad():
        for row, factor in enumerate([1.0, 2.0, 0.0, -1.0]):
            head.projection[row] = factor * torch.eye(16) / head.scale
        head.projection[1, 0, 1] = 5.0 / head.scale  # E_1 also takes d′'s second into h's first
    h, d = torch.zeros(1, 16), torch.zeros(1, 16)
    h[0, 0], d[0, 0], d[0, 1] = 0.5, 2.0, 0.1
    # hᵀ E_v d′: 1·(0.5·2), 2·(0.5·2) + 0.5·5·0.1, 0, −1·(0.5·2)
    expected = [1.0, 2.25, 0.0, -1.0]
    logits = head.logits(h, d, torch.zeros(1, dtype=torch.long))
    assert logits.tolist()[0] == pytest.approx(expected, abs=1e-5)
    loss = -expected[1] + math.log(sum(math.exp(x) for x in expected))
    assert F.cross_entropy(logits, torch.tensor([1])).item() == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("vocabulary", [SHORT, LONG])
def test_ncis_form_is_a_linear_map_and_the_static_rows(backbone, vocabulary):
    head, h, d = make(backbone, vocabulary, "nci"), states(6), states(6) * 0.7
    adaptive = torch.nn.Linear(16, 16 * len(vocabulary.tokens))
    adaptive.weight.data = head.projection.detach().flatten(0, 1)
    adaptive.bias.data = head.bias.detach().flatten()
    table = adaptive(d).view(6, -1, 16) + backbone.lm_head.weight[vocabulary.tokens]
    expected = (table * h[:, None]).sum(2) * 16**-0.5
    assert torch.allclose(head.logits(h, d, torch.arange(6)), expected, atol=1e-4)


def test_context_looks_back_only_and_at_all_of_it(backbone):
    head, inputs = make(backbone).eval(), states(2, 5)
    context = head.context(inputs)
    for changed in range(5):
        other = inputs.clone()
        other[:, changed] += 1
        differs = (head.context(other) - context).abs().amax((0, 2)) > 1e-4
        assert differs.tolist() == [position >= changed for position in range(5)]


def test_only_a_positions_own_tokens_and_the_end_may_stand_there(backbone):
    head = make(backbone, POSITIONED)
    position = torch.tensor([0, 1, 2, 3])
    logits = head.logits(states(4), states(4), position)
    tokens = [head.row_tokens[row.isfinite()].tolist() for row in logits]
    assert tokens == [[1, *range(s, s + 4)] for s in (30, 34, 38)] + [[1]]
    free = make(backbone, Vocabulary(POSITIONED.tokens)).logits(states(4), states(4), position)
    assert torch.equal(logits[logits.isfinite()], free[logits.isfinite()])


def test_tokens_that_came_after_training_have_the_mean_row(backbone):
    head, rows = make(backbone, form="nci"), torch.tensor([[0, 4, 3, 5]])
    before = head.logits(states(4), states(4), torch.arange(4))
    head.extend([9, 7, 1, 8])
    head.extend([7])
    assert head.row_tokens.tolist() == [1, 5, 9, 20, 7, 8]
    logits = head.logits(states(4), states(4), torch.arange(4))
    assert torch.allclose(logits[:, :4], before)
    static = states(4) @ backbone.lm_head.weight[torch.tensor([1, 5, 9, 20, 7, 8])].T * head.scale
    adaptive = logits - static
    assert torch.allclose(adaptive[:, 4], adaptive[:, :4].mean(1), atol=1e-5)
    result = (head.vectors(rows, states(1, 4)) * states(1, 4)).sum(-1)
    assert torch.allclose(result, logits.gather(1, rows.T).T, atol=1e-5)
    assert head.by_token(logits)[:, [7, 8]].isfinite().all()


def test_parameters_of_other_tokens_are_refused(backbone):
    """As many rows would otherwise load into each other unnoticed."""
    head = make(backbone)
    head.extend([7])  # rows that came after training are not in the checkpoint
    make(backbone).load_state_dict(head.state_dict())
    other = make(backbone, Vocabulary(torch.tensor([1, 5, 9, 21])))
    with pytest.raises(ValueError, match="checkpoint: its PAWA head was trained for 4 tokens"):
        other.load_state_dict(head.state_dict())
