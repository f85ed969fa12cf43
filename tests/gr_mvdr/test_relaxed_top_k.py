"""The relaxed top-k against its reference solutions, its gradients, and at its edges."""

import json
from pathlib import Path

import pytest
import torch

from gr_mvdr import salience as module
from gr_mvdr.salience import relaxed_top_k

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "relaxed_topk.json"
# Cases of that file: scores, k, ε, solution.
CASES = [
    (
        [0.0, 0.0, 0.669469, 0.0, 0.0],
        2,
        1.0,
        [0.3359537786, 0.3359537786, 0.6561848855, 0.3359537786, 0.3359537786],
    ),
    (
        [0.0, 1.100972, 0.202898, 1.356316, 0.0],
        2,
        0.1,
        [1.65375e-05, 0.9998411352, 0.0001257897, 1.0, 1.65375e-05],
    ),
    (
        [0.398195, 0.0, 0.0, 0.145324, 0.0, 0.0, 0.696596, 0.057529],
        3,
        0.002,
        [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
    ),
]
SOLVERS = [("exact", 1), ("iterative", 1000)]


def random_scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("solver", [("exact", 1), ("iterative", 2000)], ids=str)
def test_reference_solutions(solver):
    golden = json.loads(GOLDEN.read_text())["cases"] if GOLDEN.is_file() else []
    keys = "scores", "k", "eps", "solution"
    for scores, k, epsilon, solution in [*CASES, *(tuple(c[key] for key in keys) for c in golden)]:
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


@pytest.mark.parametrize("shift", [0.0, 3e4, -3e4])
def test_a_hand_worked_row(shift):
    """exp(s/ε) = 8, 2, 1, 1 and k = 2: the first is cut at 1, the rest share 1 as 2 : 1 : 1.

    A shift changes nothing, and exp(30,000 / 0.5) does not overflow.
    """
    scores = (torch.tensor([8.0, 2.0, 1.0, 1.0]).double().log() * 0.5 + shift).requires_grad_()
    for solver in SOLVERS:
        weights = relaxed_top_k(scores, 2, 0.5, None, *solver)
        assert weights.tolist() == pytest.approx([1, 0.5, 0.25, 0.25], abs=1e-6)
        assert torch.autograd.grad(weights[1], scores)[0].isfinite().all()
    # k = 1: nothing is cut.
    weights = relaxed_top_k(scores, 1, 0.5).tolist()
    assert weights == pytest.approx([8 / 12, 2 / 12, 1 / 12, 1 / 12])


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


def test_equal_scores_that_just_fit_have_no_gradient():
    """Both get 1 whichever of them moves; a softmax of the two alone would pull them apart."""
    scores = torch.tensor([5.0, 5.0, 0.0, -1.0]).requires_grad_()
    weights = relaxed_top_k(scores, 2, 0.002)
    assert weights.tolist() == [1, 1, 0, 0]
    weights[0].backward()
    assert not scores.grad.any()


def test_blocks_change_nothing(monkeypatch):
    scores, k = random_scores(6, 3, 10), torch.randint(1, 9, (6, 3))
    whole = relaxed_top_k(scores, k, 0.1)
    assert torch.equal(whole[4, 2], relaxed_top_k(scores[4, 2], k[4, 2], 0.1))
    for block in (1, 25):
        monkeypatch.setattr(module, "_BLOCK", block)
        assert torch.equal(relaxed_top_k(scores, k, 0.1), whole)
