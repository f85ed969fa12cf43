"""Losses that rank: numbers worked out by hand, and which documents are compared."""

import math
from dataclasses import replace

import pytest
import torch

from models.beyond.ranking_losses import (
    ListwiseRanking,
    MarginRanking,
    PreferenceRanking,
    PrefixRanking,
    ScoredTargets,
)

pytestmark = pytest.mark.usefixtures("float64")

# The positive, one negative that begins with its first token and ends after two, and two others;
# the last is relevant, too, and so is the last but one up to its first token.
TOKENS = torch.tensor([[[1, 2, 3], [1, 5, -1], [7, 8, 9], [4, 2, 3]]])
SCORES = torch.tensor([[[-1, -2, -4], [-1, -3, -3], [-2, -2.5, -5], [-1, -1, -1]]]).double()
GIVEN = ScoredTargets(
    TOKENS, SCORES, torch.tensor([[1, 1, 3]]), torch.tensor([[True, True, False]])
)


def mean(found):
    values, usable = found
    return values[usable].mean().item() if usable.any() else 0.0


def test_prefix_margins_by_hand():
    # Leads: −4 + 3 at the first's length 3 (it is over at 2), 1 at 2; 0.5 and 1 of the second.
    # Margins 2 · ¾ at length 2, 2 at 3, where the positive ends; at length 1 both are shared.
    expected = [1.5 - 1.0, 2.0 + 1.0, 1.5 - 0.5, 2.0 - 1.0]
    assert mean(PrefixRanking(margin=2.0).values(GIVEN)) == pytest.approx(
        sum(expected) / 4, abs=1e-9
    )


def test_the_curriculum_ends_with_all_lengths_and_begins_with_one():
    free = replace(GIVEN, shared=torch.tensor([[1, 0, 3]]))
    loss, whole = PrefixRanking(margin=2.0, stages=3), PrefixRanking(margin=2.0, stages=1)
    # Stage 1: the second negative's first token alone, margin 2 · ½ against a lead of 1.
    assert (
        mean(loss.values(free, 0.0)) == pytest.approx(0.0) and loss.values(free, 0.0)[1].sum() == 1
    )
    # Stage 2: and what is of length 2.
    assert mean(loss.values(free, 0.34)) == pytest.approx((0.0 + 0.5 + 1.0) / 3)
    for progress in (0.67, 1.0):
        assert mean(loss.values(free, progress)) == pytest.approx(mean(whole.values(free, 0.0)))
    assert mean(whole.values(free)) == pytest.approx((0 + 0.5 + 3.0 + 1.0 + 1.0) / 5)


def test_a_teachers_margins_are_those_of_the_best_that_begins_so():
    # Positive 5, then 3, none, 6: relevant or not, what the teacher scored counts. The first token
    # of positive and first negative is one; where the teacher says nothing the hinge is left.
    taught = replace(GIVEN, teacher=torch.tensor([[5.0, 3.0, math.nan, 6.0]]))
    expected = [(1 - 0.75 * 2) ** 2, (-1 - 2) ** 2]  # of the first, at lengths 2 and 3
    expected += [1.5 - 0.5, 2.0 - 1.0]  # of the second, untaught
    expected += [(0 + 0.5 * 1) ** 2, (-1 + 0.75 * 1) ** 2, (-3 + 1) ** 2]
    found = mean(PrefixRanking(margin=2.0).values(taught))
    assert found == pytest.approx(sum(expected) / 7, abs=1e-9)
    # A prefix has the highest score of those that begin with it: here the positive's is 8.
    best = replace(taught, tokens=torch.tensor([[[1, 2, 3], [1, 5, -1], [7, 8, 9], [7, 2, 3]]]))
    best = replace(best, teacher=torch.tensor([[5.0, 3.0, 4.0, 6.0]]))
    values, usable = PrefixRanking(margin=2.0).values(best)
    assert values[0, 1, 0] == pytest.approx((1.0 - 0.5 * (5 - 6)) ** 2)
    assert not usable[0, 0, 0] and usable[0, 1:].all()


def test_margin_listwise_and_preference_by_hand():
    # Totals −4; −3, −5: the best negative leads by 1, the first that is drawn is that one.
    assert mean(MarginRanking(margin=2.0).values(GIVEN)) == pytest.approx(3.0)
    other = replace(GIVEN, shared=torch.tensor([[2, 1, 3]]))  # the first is no negative any more
    assert mean(MarginRanking(margin=2.0).values(other)) == pytest.approx(1.0)
    mixed = replace(GIVEN, scores=SCORES[:, [0, 2, 1, 3]], tokens=TOKENS[:, [0, 2, 1, 3]])
    assert mean(MarginRanking(margin=2.0).values(mixed)) == pytest.approx((3.0 + 1.0) / 2)
    total = sum(math.exp(x / 2) for x in (-4, -3, -5))
    assert mean(ListwiseRanking(temperature=2.0).values(GIVEN)) == pytest.approx(
        -math.log(math.exp(-2) / total)
    )
    shorter = replace(GIVEN, length_penalty=1.0)  # −4/3, −3/2, −5/3
    assert mean(MarginRanking(margin=2.0).values(shorter)) == pytest.approx(2.0 - (3 / 2 - 4 / 3))
    frozen = replace(GIVEN, reference=torch.tensor([[-5.0, -3.5, -4.0, 0.0]]))
    expected = [math.log1p(math.exp(-0.5 * (1.0 - gain))) for gain in (0.5, -1.0)]
    found = PreferenceRanking(beta=0.5).values(frozen)
    assert mean(found) == pytest.approx(sum(expected) / 2, abs=1e-9)
    alike = replace(GIVEN, reference=SCORES[..., -1])
    assert mean(PreferenceRanking().values(alike)) == pytest.approx(math.log(2), abs=1e-12)


LOSSES = [PrefixRanking(), MarginRanking(), ListwiseRanking(), PreferenceRanking()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_what_is_relevant_moves_nothing_and_nothing_is_a_loss_of_zero(loss):
    scores = SCORES.clone().requires_grad_()
    given = replace(GIVEN, scores=scores, reference=torch.zeros(1, 4))
    values, usable = loss.values(given)
    values.where(usable, 0.0).sum().backward()
    assert not scores.grad[:, 3].any() and scores.grad[:, :3].abs().sum() > 0
    for empty in (
        replace(given, is_negative=torch.zeros(1, 3, dtype=torch.bool)),
        ScoredTargets(
            *(x[:, :n] for x, n in zip(vars(given).values(), (1, 1, 0, 0), strict=False)),
            reference=torch.zeros(1, 1),
        ),
    ):
        scores.grad = None
        values, usable = loss.values(empty)
        assert not usable.any()
        values.where(usable, 0.0).sum().backward()
        assert scores.grad.isfinite().all()
