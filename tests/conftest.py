"""What holds for every test: its random numbers are its own; and float64 for those that ask."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """A test draws the same numbers alone and after others: a training run seeds the process."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def float64():
    """A module that computes in float64: no equality hangs on the order in which a CPU sums."""
    from tests.float64 import compute_in

    compute_in(torch.float64)
    yield
    compute_in(torch.float32)
