"""Losses are at least fp32, and fp64 all the way in a model in fp64."""

import pytest
import torch

from tests.models.conftest import make_batch, make_docid, make_multi_vector, make_seal

MAKE = {
    "t5_colbert": make_multi_vector,
    "mva": lambda: make_multi_vector("mva"),
    "aligner": lambda: make_multi_vector("aligner"),
    "t5_seal": make_seal,
    "dsi": make_docid,
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    ("given", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
    ids=str,
)
def test_the_loss_is_at_least_float32(name, given, expected):
    assert MAKE[name]().to(given).loss(make_batch()).dtype == expected
