"""Float64 all the way, so that no equality hangs on the order in which a CPU sums."""

import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from gr_mvdr.relevance import at_least_float32

_LIBRARYS = {c: c.forward for c in (T5LayerNorm, LlamaRMSNorm, Qwen3RMSNorm, Gemma3RMSNorm)}


def compute_in(dtype: torch.dtype) -> None:
    """New tensors and models are of this type, float64 or float32; so is what norms compute."""
    torch.set_default_dtype(dtype)
    for norm, own in _LIBRARYS.items():
        norm.forward = _norm if dtype == torch.float64 else own


def _norm(self, hidden_states):
    """The library's take the variance in fp32, whatever the model's type."""
    variance = at_least_float32(hidden_states).pow(2).mean(-1, keepdim=True)
    gemma = isinstance(self, Gemma3RMSNorm)
    epsilon, weight = (self.eps, 1 + self.weight) if gemma else (self.variance_epsilon, self.weight)
    return weight * (hidden_states * torch.rsqrt(variance + epsilon)).to(weight.dtype)
