"""How the ranks share a model: copies whose gradients are averaged, or parts of it. It neither steps nor clips."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from forebay.errors import ConfigError
from forebay.trainers.update import move_parameters

__all__ = ["CommHook", "Strategy", "share_model", "without_sync"]

Strategy = Literal["ddp", "fsdp2"]
CommHook = Literal["fp16", "bf16"]


def share_model(
    model: nn.Module, optimizer: Optimizer, strategy: Strategy, comm_hook: CommHook | None, device: torch.device
) -> nn.Module:
    """Prepare `model` for all ranks; a rank that is alone gets it as it is.

    Args:
        model: on `device`; rank 0's values count.
        optimizer: of its parameters; with "fsdp2" it is given the parts that take their place.
        strategy: "ddp" copies the model to each rank (Li et al. 2020), "fsdp2" gives each a part of every parameter,
            so that model, gradients and optimizer take 1/ranks of the memory (Zhao et al. 2023).
        comm_hook: halves what "ddp" sends, by rounding gradients to these.
        device: of this process.

    Returns:
        What to call in place of the model.

    Raises:
        ConfigError: the hook is not for this strategy, or the backend cannot do it.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    if strategy == "fsdp2":
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        names = {name: id(parameter) for name, parameter in model.named_parameters()}
        for child in model.children():
            if any(parameter.requires_grad for parameter in child.parameters()):
                fully_shard(child)
        fully_shard(model)
        move_parameters(optimizer, {names[name]: parameter for name, parameter in model.named_parameters()})
        return model
    wrapped = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    if comm_hook is not None:
        hook: Any = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[comm_hook]
        try:
            wrapped.register_comm_hook(None, hook)
        except TypeError as error:
            raise ConfigError(
                f"comm_hook={comm_hook!r} does not work on {dist.get_backend()}: {error}; leave it out"
                + (', or give "fp16"' if comm_hook == "bf16" else "")
            ) from error
    return wrapped


def without_sync(model: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[Any]:
    """The context of one of several backward passes: the ranks exchange gradients only in the last one."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()
