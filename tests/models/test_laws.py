"""Laws of the alignments of every system."""

import pytest
import torch

from gr_mvdr.relevance import relevance
from tests.models.conftest import GENERATIVE, MULTI_VECTOR


@pytest.fixture(params=[*MULTI_VECTOR, *GENERATIVE, "splade"])
def system(request, tools, tmp_path):
    if request.param in GENERATIVE:
        return tools.make_generative(request.param, tmp_path)
    return (
        tools.make_splade() if request.param == "splade" else tools.make_multi_vector(request.param)
    )


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing(tools, system):
    batch = tools.make_batch()
    together = system.align(tools.widen(batch))
    for number in range(3):
        alone = system.align(tools.one(batch, number))
        m, n = alone.similarity.shape[2:]
        for name in ("similarity", "alignment"):
            found = getattr(together, name)[number]
            assert torch.allclose(found[:, :m, :n], getattr(alone, name)[0], atol=1e-5)
            assert not found[:, m:].any() and not found[:, :, n:].any(), "zero at padding"
        for name in ("relevance", "score", "normaliser"):
            found, expected = getattr(together, name)[number], getattr(alone, name)[0]
            assert torch.allclose(found, expected, atol=1e-5), name


@torch.no_grad()
def test_relevance_is_eq_1_and_the_score_is_the_systems_own(tools, system):
    batch = tools.make_batch()
    pairs = system.align(batch)
    equation = relevance(pairs.similarity, pairs.alignment).sum(1) / pairs.normaliser
    assert torch.allclose(pairs.relevance, equation.nan_to_num(), atol=1e-5)
    assert torch.allclose(system.score(batch), pairs.score, atol=1e-5)
    if system.paradigm != "generative":
        assert torch.allclose(pairs.relevance, pairs.score, atol=1e-4)
        assert pairs.score.unique().numel() == 3, "three pairs, three scores"
        return
    targets, sums = system.targets(batch), pairs.alignment.sum(-1)
    for name, value in targets.sides.items():
        assert torch.equal(getattr(pairs, name), value)
    real = targets.document_mask[:, None].expand_as(sums)
    if pairs.prefix is not None:
        assert torch.equal(pairs.prefix.alignment, pairs.prefix.alignment.tril(-1)), "only later"
        sums = sums + pairs.prefix.alignment.sum(-1)
    assert torch.allclose(sums, real.to(sums), atol=1e-5)
    assert pairs.alignment[0].std() > 0.01, "uniform attention would prove little"
