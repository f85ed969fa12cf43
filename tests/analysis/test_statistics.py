import math

import numpy
import pytest
import torch

from analysis import statistics
from analysis.statistics import interval, pearson, spearman


def test_a_mean_has_the_interval_of_the_normal_law():
    values = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0)).double()
    low, high = interval(values, torch.ones_like(values))
    reach = 1.96 * float(values.std()) / math.sqrt(len(values))
    assert float(low) == pytest.approx(float(values.mean()) - reach, abs=0.1 * reach)
    assert float(high) == pytest.approx(float(values.mean()) + reach, abs=0.1 * reach)


def test_it_covers_the_truth_as_often_as_it_says():
    generator = torch.Generator().manual_seed(1)
    draws = (torch.rand(200, 150, generator=generator) < 0.3).double()  # 150 experiments
    low, high = interval(draws, torch.ones_like(draws), level=0.8)
    covered = float(((low <= 0.3) & (high >= 0.3)).double().mean())
    assert covered == pytest.approx(0.8, abs=0.1)


def test_units_are_drawn_as_wholes():
    # tokens within a unit are copies: ten of them tell no more than one
    values = torch.randn(300, 1, generator=torch.Generator().manual_seed(2)).double()
    once = interval(values, torch.ones_like(values))
    ten = interval(10 * values, torch.full_like(values, 10))
    torch.testing.assert_close(once, ten)


def test_it_is_the_ratio_of_sums_not_the_mean_of_ratios():
    sums, counts = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [99.0]])
    low, high = interval(sums, counts, level=0.98)
    assert float(low) == 0 and float(high) == 1
    low, high = interval(sums, counts, level=0.4)  # half the draws hold each unit once
    assert float(low) == 0.01 or float(high) == 0.01


def test_equal_units_leave_no_doubt_and_nothing_counted_is_nan():
    sums, counts = torch.tensor([[3.0, 0.0]] * 5), torch.tensor([[4.0, 0.0]] * 5)
    low, high = interval(sums, counts)
    assert low[0] == high[0] == 0.75
    assert low[1].isnan() and high[1].isnan()
    low, high = interval(torch.zeros(0, 2), torch.zeros(0, 2))
    assert low.shape == (2,) and low.isnan().all() and high.isnan().all()


def test_draws_without_a_count_say_nothing():
    sums, counts = torch.zeros(20, 1), torch.zeros(20, 1)
    sums[0], counts[0] = 2, 2  # one unit in twenty: a third of the draws lack it
    low, high = interval(sums, counts)
    assert float(low) == float(high) == 1


def test_the_seed_decides_and_memory_is_bounded(monkeypatch):
    values = torch.rand(50, 3, generator=torch.Generator().manual_seed(3))
    ones = torch.ones_like(values)
    whole = interval(values, ones, seed=4)
    assert torch.equal(whole[0], interval(values, ones, seed=4)[0])
    assert not torch.equal(whole[0], interval(values, ones, seed=5)[0])
    monkeypatch.setattr(statistics, "CELLS", 120)  # two draws at a time
    torch.testing.assert_close(interval(values, ones, seed=4), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": 1.0}, "level=1.0: must be between 0 and 1"),
        ({"resamples": 0}, "resamples=0: must be ≥ 1"),
        ({"counts": torch.ones(2, 1)}, "must be .P, K."),
    ],
)
def test_bad_input_is_named(change, message):
    values = {"sums": torch.ones(2, 2), "counts": torch.ones(2, 2)} | change
    with pytest.raises(ValueError, match=message):
        interval(**values)


def test_any_rising_function_correlates_fully():
    values = torch.tensor([0.3, -2.0, 5.0, 1.0])
    assert spearman(values, values.exp()) == pytest.approx(1)
    assert spearman(values, -(values**3)) == pytest.approx(-1)


def test_ties_share_the_mean_of_their_ranks():
    # ranks 1.5 1.5 3 4 against 1 2 3 4: covariance 4.5, variances 4.5 and 5
    found = spearman(torch.tensor([7, 7, 8, 9]), torch.tensor([1, 2, 3, 4]))
    assert found == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0]])
def test_without_variation_there_is_no_correlation(values):
    values = torch.tensor(values)
    assert math.isnan(spearman(values, torch.arange(len(values))))


def test_pearsons_r_is_numpys():
    first, second = torch.randn(2, 20, generator=torch.Generator().manual_seed(0))
    expected = numpy.corrcoef(first.numpy(), second.numpy())[0, 1]
    assert pearson(first, second) == pytest.approx(expected, abs=1e-6)
    assert pearson(first, -3 * first) == pytest.approx(-1)
    assert math.isnan(pearson(first, torch.ones(20))) and math.isnan(pearson(first[:1], first[:1]))
