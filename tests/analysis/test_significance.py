from itertools import product

import numpy as np
import pytest

from analysis import statistics
from analysis.statistics import randomisation_test


def exact(differences):
    """The p-value over all 2^Q exchanges."""
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=len(differences))]
    return np.mean(np.array(sums) >= abs(sum(differences)) - 1e-9)


def test_four_queries_all_won_have_one_chance_in_eight():
    # All four exchanges must fall alike, on either side: 2 of 16.
    p = randomisation_test(np.ones(4), np.zeros(4))
    assert p == pytest.approx(0.125, abs=0.015)


def test_it_estimates_the_exact_test_whatever_the_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, (2, 10)) / 3  # averages of three seeds' recall: many ties
    p = randomisation_test(first, second, seed=1)
    assert p == pytest.approx(exact(first - second), abs=0.02)
    assert p == randomisation_test(second, first, seed=1) != randomisation_test(first, second)
    monkeypatch.setattr(statistics, "_SIGNS", 10 * 64)
    assert randomisation_test(first, second, seed=1) == p


def test_equal_systems_and_unequal_ones():
    values = np.random.default_rng(0).random(50)
    assert randomisation_test(values, values) == 1.0
    assert randomisation_test(values, values + 1) == 1 / 10_001
    # The difference counts, not the level; queries on which both agree change nothing.
    p = randomisation_test(np.ones(6), np.zeros(6))
    padded = np.concatenate([np.ones(6), values]), np.concatenate([np.zeros(6), values])
    assert randomisation_test(*padded) == p


@pytest.mark.parametrize(("first", "second"), [(3, 4), (0, 0)])
def test_other_queries_are_refused(first, second):
    with pytest.raises(ValueError, match=f"{first} and {second} queries"):
        randomisation_test(np.ones(first), np.ones(second))
