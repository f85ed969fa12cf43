"""The relaxed top-k against its reference solutions, its gradients, and at its edges."""

import json
from pathlib import Path

import pytest
import torch

from gr_mvdr.salience import relaxed_top_k

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "relaxed_topk.json"


def random_scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("solver", [("exact", 1), ("iterative", 2000)], ids=str)
def test_reference_solutions(solver):
    for case in json.loads(GOLDEN.read_text())["cases"]:
        scores, k, epsilon, solution = (case[key] for key in ("scores", "k", "eps", "solution"))
        weights = relaxed_top_k(torch.tensor(scores).double(), k, epsilon, None, *solver)
        assert weights.tolist() == pytest.approx(solution, abs=1e-6)
        single = relaxed_top_k(torch.tensor(scores), k, epsilon, None, *solver)
        assert single.dtype == torch.float32 and torch.allclose(single.double(), weights, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 17, 39])
@pytest.mark.parametrize("epsilon", [10.0, 0.3, 0.02])
def test_the_exact_solution_has_its_form(k, epsilon):
    """min(1, exp((s + a) / ε)) with one a, and the sum k: that is all of Eq. 4's conditions."""
    scores = random_scores(5, 40).relu()
    weights = relaxed_top_k(scores, k, epsilon)
    assert (weights.sum(-1) - k).abs().max() < 1e-9
    for row, solved in zip(scores, weights, strict=True):
        below = solved < 1 - 1e-9
        a = (epsilon * solved.log() - row)[below & (solved > 1e-290)]
        assert a.max() - a.min() < 1e-9
        assert (row[~below] + a.max() >= -1e-9).all()


@pytest.mark.parametrize("solver", ["exact", "iterative"])
def test_padding_and_batch_mates_change_nothing(solver):
    scores, k = random_scores(3, 7), torch.tensor([2, 1, 3])
    mask = torch.arange(7) < torch.tensor([4, 7, 5])[:, None]
    weights = relaxed_top_k(scores.masked_fill(~mask, 1e6), k, 0.1, mask, solver, 50)
    assert not weights[~mask].any()
    for row, number, real, solved in zip(scores, k, mask, weights, strict=True):
        alone = relaxed_top_k(row[real], number, 0.1, None, solver, 50)
        assert torch.allclose(alone, solved[real], atol=1e-12)


@pytest.mark.parametrize("solver", ["exact", "iterative"])
def test_a_fully_padded_row_keeps_the_gradients_of_others(solver):
    scores = random_scores(2, 4).requires_grad_()
    mask = torch.tensor([[False], [True]]).expand(2, 4)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        weights = relaxed_top_k(scores, torch.tensor([0, 2]), 0.5, mask, solver, 20)
        (weights * torch.arange(4)).sum().backward()
    assert not weights[0].any() and not scores.grad[0].any()
    assert scores.grad[1].isfinite().all() and scores.grad[1].any()


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("solver", [("exact", 1), ("iterative", 30)], ids=str)
def test_gradients(k, solver):
    scores = random_scores(2, 6, seed=3).requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 5 + [False]])
    assert torch.autograd.gradcheck(lambda s: relaxed_top_k(s, k, 0.4, mask, *solver), scores)
