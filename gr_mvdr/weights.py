"""A hash of what a model has learned: the key of whatever is made with it."""

import hashlib

import torch
from torch import nn


def weights_hash(model: nn.Module) -> str:
    """16 hexadecimal digits of all parameters and buffers, by name and value."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
