import math
from itertools import product

import numpy as np
import pytest
import torch
from pandas import DataFrame, concat

from analysis import statistics
from analysis.statistics import (
    holm,
    interval,
    long_frame,
    mean_table,
    randomisation_test,
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


def exact(differences):
    """The p-value over all 2^Q exchanges."""
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=len(differences))]
    return np.mean(np.array(sums) >= abs(sum(differences)) - 1e-9)


def test_random_exchanges_estimate_the_exact_test_whatever_the_chunks(monkeypatch):
    first, second = np.random.default_rng(0).integers(0, 4, (2, 10)) / 3  # many ties
    p = randomisation_test(first, second)
    assert p == pytest.approx(exact(first - second), abs=0.02)
    assert p == randomisation_test(second, first)
    monkeypatch.setattr(statistics, "_SIGNS", 10 * 64)
    assert randomisation_test(first, second) == p


def test_equal_systems_and_unequal_ones():
    values = np.random.default_rng(0).random(50)
    assert randomisation_test(values, values) == 1.0
    assert randomisation_test(values, values + 1) == 1 / 10_001
    # The difference counts, not the level; queries on which both agree change nothing.
    p = randomisation_test(np.ones(6), np.zeros(6))
    padded = np.concatenate([np.ones(6), values]), np.concatenate([np.zeros(6), values])
    assert randomisation_test(*padded) == p


def test_holms_correction_by_hand():
    assert holm([0.03, 0.9, 0.01, 0.02]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1]) and holm([]) == []
