"""Gradient caching: the plain gradients, in the memory of one chunk."""

from functools import partial

import pytest
import torch

from data_modules.examples import collate
from gr_mvdr import ranks
from tests.models.test_two_ranks import DISTINCT, examples
from tests.pairwise import pairwise


def make(tools, name, **options):
    """A system whose dropout is on."""
    dropout = tools.BACKBONE | {"dropout_rate": 0.3}
    if name == "cross_encoder":
        given = dict(backbone=dropout, negatives_per_query=2)
        return tools.make_cross_encoder(**given, **options).train()
    return tools.make_multi_vector(name, backbone=dropout, **options).train()


def gradients(system, batch, seed=1):
    """() loss and one vector of all gradients."""
    torch.manual_seed(seed)
    system.zero_grad()
    loss = system.loss(batch)
    loss.backward()
    found = [p.grad.flatten() for p in system.parameters() if p.grad is not None]
    return loss.detach(), torch.cat(found)


@pytest.fixture(params=[True, False], ids=["hard", "in-batch"])
def batch(request):
    return collate(examples(request.param))


NAMES = ["t5_colbert", "xtr", "aligner", "mva-learned", "cross_encoder"]


@pytest.mark.parametrize(("name", "size", "hard"), pairwise(NAMES, [1, 2, 100], [True, False]))
def test_cached_gradients_are_plain_ones(tools, name, size, hard):
    """Without dropout: a chunk has draws of its own."""
    batch = collate(examples(hard))
    if name == "xtr":
        batch = collate(examples(False, documents=DISTINCT))
    plain, cached = (make(tools, name, gradient_cache=n).eval() for n in (None, size))
    loss, expected = gradients(plain, batch)
    again, found = gradients(cached, batch)
    assert torch.isclose(again, loss, rtol=1e-5) and expected.norm() > 1e-2
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ["t5_colbert", "mva-learned", "cross_encoder"])
def test_dropout_on_the_way_back_is_that_of_the_way_there(tools, name, batch, monkeypatch):
    system = make(tools, name, gradient_cache=2)
    loss, cached = gradients(system, batch)
    other, _ = gradients(system, batch, seed=2)
    monkeypatch.setattr(ranks, "checkpoint", lambda encode, *sides, **_: encode(*sides))
    kept_loss, kept = gradients(system, batch)
    assert torch.equal(loss, kept_loss) and loss != other
    assert (cached - kept).norm() < 1e-6 * kept.norm()


def count_saved(compute) -> tuple[int, int]:
    """Tensors that are kept for the backward pass, also of one within a loss, and their bytes."""
    saved = []

    def keep(tensor):
        saved.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return len(saved), sum(saved)


@pytest.mark.parametrize("name", ["t5_colbert", "cross_encoder"])
def test_one_chunk_of_activations_is_held(tools, name):
    batch = collate(examples(False) * 8)
    systems = (make(tools, name, gradient_cache=size) for size in (4, None))
    chunk, whole = (count_saved(partial(system.loss, batch))[1] for system in systems)
    assert chunk < whole / 4
