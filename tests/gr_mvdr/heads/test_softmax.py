import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gr_mvdr.backbones import load_backbone
from gr_mvdr.heads import plain as heads
from gr_mvdr.heads.non_parametric import NonParametricHead, locate
from gr_mvdr.heads.pawa import PawaHead
from gr_mvdr.heads.plain import Head, Vocabulary, table_cross_entropy, table_log_probs

SHAPE = dict(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
POSITIONED = Vocabulary(torch.tensor([1, *range(30, 42)]), first_token=30, width=4)
N = 11


def plain(backbone):
    head = Head(backbone)
    backbone.final_logits_bias = draw(1, 50).masked_fill(torch.arange(50) == 3, -torch.inf)
    return head


def pawa(backbone, vocabulary, form):
    head = PawaHead(backbone, vocabulary, form, layers=1, heads=4)
    torch.nn.init.normal_(head.projection)
    head.extend([48])
    return head


def live(backbone):
    head = NonParametricHead(backbone)
    rows = torch.arange(30) % 7
    head.set_table(draw(30, 16).requires_grad_(), rows, **locate([rows.tolist()], rows))
    return head


HEADS = {
    "plain": plain,
    "pawa": lambda b: pawa(b, Vocabulary(torch.arange(1, 48)), "paper"),
    "pawa-positions": lambda b: pawa(b, POSITIONED, "nci"),
    "non-parametric": live,
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=HEADS)
def task(request, float64, monkeypatch):
    """A head, states of eleven positions and their labels; a block has room for four of them."""
    torch.manual_seed(0)
    head = HEADS[request.param](load_backbone(None, shape=SHAPE, decodes=True))
    monkeypatch.setattr(heads, "_CPU_BLOCK", 4 * 4 * head.numbers_per_position)
    monkeypatch.setattr(heads, "_TABLES", 0)
    position, labels = torch.arange(N) % 3, torch.randint(4, 30, (N,))
    if request.param == "pawa-positions":
        labels = 1 + 4 * position + labels % 4
    context = draw(N, 16, seed=1).requires_grad_() if isinstance(head, PawaHead) else None
    return head, (draw(N, 16).requires_grad_(), context, position), labels


def cross_entropy(logits, labels, smoothing):
    """The sum over positions; smoothing spreads over the rows that are not masked."""
    masked, log_probs = logits == -torch.inf, logits.log_softmax(1)
    hit = log_probs.gather(1, labels[:, None]).sum()
    even = log_probs.masked_fill(masked, 0.0).sum(1) / (~masked).sum(1)
    return -(1 - smoothing) * hit - smoothing * even.sum()


@pytest.mark.parametrize("smoothing, masks", [(0.0, False), (0.0, True), (0.2, True)])
def test_the_loss_and_all_its_gradients_are_the_cross_entropys(task, smoothing, masks):
    head, states, labels = task
    sources = [x for x in (*states[:2], *head.table_parameters) if x is not None]
    logits, masked = head.logits(*states), None
    if masks:
        masked = (draw(*logits.shape) > 1).scatter(1, labels[:, None], False)
        logits = logits.masked_fill(masked, -torch.inf)
    expected = cross_entropy(logits, labels, smoothing)
    loss = table_cross_entropy(head, states, labels, masked, smoothing)
    assert torch.isclose(loss, expected, rtol=0, atol=1e-10)
    both = (torch.autograd.grad(3 * x, sources) for x in (loss, expected))
    for own, other in zip(*both, strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-10)
    with torch.no_grad():
        alone = table_cross_entropy(head, states, labels, masked, smoothing)
    assert alone == loss and not alone.requires_grad


def test_log_probabilities_are_those_of_log_softmax(task):
    head, states, labels = task
    with torch.no_grad():
        logits = head.logits(*states)
        expected = logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)
        assert torch.allclose(table_log_probs(head, states, labels), expected, rtol=0, atol=1e-12)


def test_nothing_is_larger_than_a_block_or_the_table(task):
    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            loss = func(*args, **(kwargs or {}))
            made = [x.numel() for x in tree_leaves(loss) if isinstance(x, torch.Tensor)]
            self.numbers = max(self.numbers, *made, 0)
            return loss

    head, (hidden, context, position), labels = task
    context = None if context is None else context.repeat(30, 1)
    states = hidden.repeat(30, 1), context, position.repeat(30)  # (330, 16)
    with Largest() as largest:
        table_cross_entropy(head, states, labels.repeat(30)).backward()
    tables = [tensor.numel() for tensor in head.table_parameters]
    assert largest.numbers <= max(4 * head.numbers_per_position, 330 * 16, *tables)
    assert largest.numbers < 330 * head.numbers_per_position
