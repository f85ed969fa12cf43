import math

import numpy as np
import pytest
import torch
from pandas import DataFrame, concat
from scipy import stats

from analysis.statistics import (
    estimate_mean,
    holm,
    interval,
    long_frame,
    mean_table,
    pair_seeds,
    spearman,
)


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()


def test_a_mean_has_the_interval_of_the_normal_law():
    values = draw(4000, 1)
    low, high = interval(values)
    reach = 1.96 * float(values.std()) / math.sqrt(len(values))
    assert float(low) == pytest.approx(float(values.mean()) - reach, abs=0.1 * reach)
    assert float(high) == pytest.approx(float(values.mean()) + reach, abs=0.1 * reach)


def test_units_are_drawn_as_wholes():
    # tokens within a unit are copies: ten of them tell no more than one
    values = draw(300, 1)
    ten = interval(10 * values, torch.full_like(values, 10))
    torch.testing.assert_close(interval(values), ten)


def test_an_interval_is_that_of_the_ratio_of_sums():
    low, high = interval(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [99.0]]))
    assert float(low) == 0 and float(high) == 1  # a mean of ratios would be 0.5
    sums, counts = torch.tensor([[3.0, 0.0]] * 5), torch.tensor([[4.0, 0.0]] * 5)
    low, high = interval(sums, counts)
    assert low[0] == high[0] == 0.75 and low[1].isnan() and high[1].isnan()
    assert all(end.shape == (2,) and end.isnan().all() for end in interval(torch.zeros(0, 2)))
    one = torch.eye(20)[:, :1]  # a third of the draws lack the only unit that counts
    assert [float(end) for end in interval(one, one)] == [1, 1]


def test_a_table_of_means_by_hand():
    """Two pairs of two heads in layer 1; of layer 2 the second pair is missing."""
    sums, tokens = torch.tensor([[2.0, 0], [4, 3]]), torch.tensor([[2, 1], [1, 2]])
    first = long_frame(0, {"x": sums, "tokens": tokens}, "head", layer=1)
    second = long_frame(0, {"x": sums[:1], "tokens": tokens[:1]}, "head", layer=2)
    table = mean_table(concat([first, second]), ["layer", "head"], ["x"], "tokens")
    expected = {
        "layer": [1, 1, 2, 2],
        "head": [1, 2, 1, 2],
        "x": [2.0, 1, 1, 0],
        "x_low": [1.0, 0, 1, 0],
        "x_high": [4.0, 1.5, 1, 0],
        "tokens": [3.0, 3, 2, 1],
    }
    assert table.to_dict("list") == DataFrame(expected).to_dict("list")


def test_spearmans_rho_shares_ranks_between_equal_values():
    first, second = torch.tensor([1.0, 2, 2, 9]), torch.tensor([4.0, 3, 1, 2])
    ranks = torch.tensor([[1, 2.5, 2.5, 4], [4, 3, 1, 2]])
    assert spearman(first, second) == pytest.approx(float(torch.corrcoef(ranks)[0, 1]))
    assert spearman(first, first.exp()) == pytest.approx(1)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0]])
def test_without_variation_there_is_no_correlation(values):
    values = torch.tensor(values)
    assert math.isnan(spearman(values, torch.arange(len(values))))


def simulated(rng, queries, seeds, of_seed, of_rest):
    """Differences in MRR@10 whose true mean is 0: three queries of four are equal."""
    values = np.array([-1, -1 / 2, 0, 1 / 2, 1])
    of_query = rng.choice(values, (queries, 1), p=[0.06, 0.06, 0.76, 0.06, 0.06])
    return (
        of_query
        + of_seed * rng.standard_normal((1, seeds))
        + of_rest * rng.standard_normal((queries, seeds))
    )


@pytest.mark.parametrize("of_seed", [0.0, 0.005, 0.01, 0.02])
def test_95_of_100_intervals_hold_the_mean(of_seed):
    """10,000 experiments of 300 queries and three seeds, with several standard deviations."""
    rng, covered = np.random.default_rng(0), []
    for experiment in range(10_000):
        found = estimate_mean(simulated(rng, 300, 3, of_seed, (0.1, 0.2, 0.3)[experiment % 3]))
        covered.append(found.low <= 0 <= found.high)
        assert (found.p < 0.05) == (not covered[-1])
    print(f"seeds' deviation {of_seed}: {np.mean(covered):.4f} of the intervals hold the mean")
    assert 0.94 <= np.mean(covered) <= 0.96


def test_with_one_seed_the_interval_is_that_of_the_t_test():
    y = np.random.default_rng(0).random((20, 1))
    found, test = estimate_mean(y, 0.3), stats.ttest_1samp(y[:, 0], 0.3)
    assert found.p == pytest.approx(test.pvalue)
    assert found[1:3] == pytest.approx(tuple(test.confidence_interval()))


def test_equal_values_have_no_spread():
    assert estimate_mean(np.full((5, 3), 0.1 + 0.2), 0.3) == pytest.approx((0.3, 0.3, 0.3, 1))
    assert estimate_mean(np.full((5, 3), 0.2)).p == 0


def test_seeds_are_paired_by_their_number():
    def system(**columns):
        return DataFrame({int(seed[1:]): [value] for seed, value in columns.items()})

    def paired(first, second):
        return pair_seeds(system(**first), system(**second)).iloc[0].tolist()

    three = dict(s1=1.0, s2=2.0, s3=4.0)
    assert paired(three, dict(s3=1.0, s2=1.0)) == [1, 3]
    assert paired(three, dict(s7=1.0)) == [0, 1, 3] and paired(dict(s7=1.0), three) == [0, -1, -3]
    assert paired(three, dict(s8=1.0, s9=1.0)) == [0, 1]


def test_holms_correction_by_hand():
    assert holm([0.03, 0.9, 0.01, 0.02]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1]) and holm([]) == []
