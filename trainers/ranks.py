"""The ranks of one training run: joined when the run begins, left when it ends, and sums over them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from forebay.errors import ConfigError

__all__ = [
    "broadcast_buffers",
    "choose_device",
    "gather",
    "joined_ranks",
    "rank",
    "sums_over_ranks",
    "world_size",
]

_groups = itertools.count()
"""How many groups this process has joined; the same on every rank."""


def choose_device(device: torch.device | str | None) -> torch.device:
    """The device of this process: the one given, else the GPU of its local rank, else the CPU.

    Raises:
        ConfigError: torchrun started more processes on this machine than it has GPUs.
    """
    if device is not None:
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"LOCAL_RANK={local_rank}, but this machine has {torch.cuda.device_count()} GPUs, and two processes would "
            'share one; start torchrun with --nproc-per-node at most that, or pass device="cpu"'
        )
    return torch.device("cuda", local_rank)


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[None]:
    """Join the ranks that torchrun started, unless the caller has; leave them again at the end.

    A process that is alone becomes the one rank of a group.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    store: Any
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        backend, store, rank_here, size = "gloo", HashStore(), 0, 1  # torch's checkpoints ask for a group
    else:
        store, rank_here, size = next(rendezvous("env://"))
    # A prefix of its own: under torchrun a second group in one process would else meet the addresses of the first.
    dist.init_process_group(
        backend,
        store=PrefixStore(f"forebay-{next(_groups)}", store),
        rank=rank_here,
        world_size=size,
        device_id=device if backend == "nccl" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """This process among the ranks; 0 when it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many ranks there are; 1 when this process is alone."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sums_over_ranks(values: Sequence[float] | torch.Tensor, device: torch.device) -> list[float]:
    """Add up each of `values` over the ranks, in float64. Every rank gives as many and gets the same sums."""
    sums = torch.as_tensor(values, dtype=torch.float64).to(device)
    if world_size() > 1 and len(sums):
        dist.all_reduce(sums)
    listed: list[float] = sums.tolist()
    return listed


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Every rank's `value`, in the order of ranks, on every rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group)
    return values


def broadcast_buffers(model: torch.nn.Module) -> None:
    """Give every rank rank 0's buffers, such as the running means of batch norm; between steps they differ."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
