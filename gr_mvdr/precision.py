"""In which precision scores and losses are computed, whatever the model's own is."""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """bf16 and fp16 as fp32, in which sums are safe; fp32 and fp64 stay what they are."""
    return tensor.to(accumulator(tensor))


def accumulator(tensor: Tensor) -> torch.dtype:
    """fp64 for fp64, else fp32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
