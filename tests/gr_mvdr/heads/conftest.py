"""A backbone for tests of its heads."""

import pytest
import torch

from gr_mvdr.backbones import load_backbone


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    shape = dict(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    return load_backbone(None, shape=shape, decodes=True).eval()
