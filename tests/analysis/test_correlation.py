import math

import numpy
import pytest
import torch

from analysis.statistics import pearson, spearman


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
