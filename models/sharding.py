"""Parameters, gradients, optimizer states in shards, a part on each rank: FSDP for xl and xxl."""

from typing import Any

from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers.models.mt5.modeling_mt5 import MT5Block
from transformers.models.t5.modeling_t5 import T5Block

# What the trainer and its callbacks call: the parameters outside the layers are whole in them.
_METHODS = ("training_step", "validation_step", "explain")


def shard(system: Any, mesh: Any) -> None:
    """Leaves each rank its part of every layer of the backbone, and of all that is in no layer.

    A layer is whole for as long as it is computed. All ranks must compute the same layers in the
    same order, once for each chunk of a gradient cache.

    Args:
        system: a `System`, which may be sharded already; mesh: the ranks, one axis.

    Raises:
        ValueError: the system does what shards cannot.
    """
    if isinstance(system, FSDPModule):
        return
    _check(system)
    for module in list(system.modules()):
        if isinstance(module, T5Block | MT5Block):
            fully_shard(module, mesh=mesh)
    fully_shard(system, mesh=mesh)
    for name in _METHODS:
        register_fsdp_forward_method(system, name)


def _check(system: Any) -> None:
    if system.hparams.get("gradient_cache") == 1:
        raise ValueError("model.gradient_cache=1: must be ≥ 2 or null under trainer=fsdp")
    if system.hparams.get("trained_rows") == "new":  # a gradient's hook, which a shard forgets
        raise ValueError("model.trained_rows=new: must be all under trainer=fsdp")
    head = getattr(system, "head", None)
    if head is not None and head.table_state() is not None:
        raise ValueError(
            "model.head=NonParametricHead: cannot be trained under trainer=fsdp, its table is made "
            "between the epochs, by an encoder that is in shards then"
        )
