"""A hash of what a model has learned: the key of whatever is made with it."""

import hashlib

import torch
from torch import nn


def weights_hash(model: nn.Module) -> str:
    """16 hexadecimal digits of all parameters, buffers and further state, by name and value."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:  # what a module keeps besides tensors is plain
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]
