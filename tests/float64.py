"""Float64 all the way, so that no equality hangs on the order in which a CPU sums."""

import torch
from transformers.models.t5.modeling_t5 import T5LayerNorm

from gr_mvdr.relevance import at_least_float32

_LIBRARYS = T5LayerNorm.forward


def compute_in(dtype: torch.dtype) -> None:
    """New tensors and models are of this type, float64 or float32; so is all that T5 computes."""
    torch.set_default_dtype(dtype)
    T5LayerNorm.forward = _norm if dtype == torch.float64 else _LIBRARYS


def _norm(self, hidden_states):
    """The library's takes the variance in fp32, whatever the model's type."""
    variance = at_least_float32(hidden_states).pow(2).mean(-1, keepdim=True)
    scaled = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * scaled.to(self.weight.dtype)
