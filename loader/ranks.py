"""Who we are among the ranks of a job, on which node each is, and that all are about to read the same thing.

What each of them takes of a batch is decided in `batches` and `node_division`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from forebay.errors import ConfigError, RankMismatchError
from forebay.loader.mesh import find_place
from forebay.loader.node_division import node_of_ranks

__all__ = ["Ranks", "agree", "compare_ranks", "thread_share"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among the readers of the job."""

    rank: int
    """Of the reader: processes that a mesh gives the same samples are one."""
    world_size: int
    """Readers."""
    collective: bool
    """Whether the others can be asked, over torch.distributed."""
    node_of: tuple[int, ...]
    """By reader, its node; nodes count from 0."""
    draws: bool = True
    """Whether this process draws a seed that nobody gave."""

    @classmethod
    def find(
        cls,
        rank: int | None,
        world_size: int | None,
        *,
        mesh: Any = None,
        data_dims: Sequence[str] | None = None,
        nodes: int | None = None,
    ) -> Ranks:
        """What was given, else torch.distributed's default group, else a job of one.

        Args:
            rank: of this reader.
            world_size: readers.
            mesh: a torch `DeviceMesh`, instead.
            data_dims: of the mesh, along which ranks read different samples; None means `("dp",)`.
            nodes: that the readers are spread over, neighbours together; None: what torchrun says, else one.

        Raises:
            ConfigError: half of it is given, or out of range; or torchrun started several processes and the process
                group is not there yet, so that each of them would silently read everything.
        """
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
        if mesh is None and data_dims is not None:
            raise ConfigError(f"data_dims={tuple(data_dims)!r} names dims of a mesh; give mesh= too, or leave it out")
        if rank is not None and world_size is not None:
            if mesh is not None:
                raise ConfigError(f"rank={rank} and mesh= both say which samples are this process's; give one")
            if not 0 <= rank < world_size:
                raise ConfigError(f"rank={rank} is not one of {world_size} ranks; they count from 0")
            return cls(rank, world_size, collective=False, node_of=_spread(world_size, 1 if nodes is None else nodes))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            size, here = torch.distributed.get_world_size(), torch.distributed.get_rank()
            processes, reader = np.arange(size)[:, np.newaxis], here
            if mesh is not None:
                place = find_place(mesh, ("dp",) if data_dims is None else data_dims)
                processes, reader = place.processes, place.reader
            node_of = _launched_nodes(processes, size) if nodes is None else _spread(len(processes), nodes)
            return cls(reader, len(processes), collective=size > 1, node_of=node_of, draws=here == 0)
        launched = os.environ.get("WORLD_SIZE", "1")
        if launched.isdecimal() and int(launched) > 1:
            raise ConfigError(
                f"WORLD_SIZE={launched}, but torch.distributed is not initialised: every process would read all of the "
                "data; call torch.distributed.init_process_group first, or give rank= and world_size="
            )
        if mesh is not None:
            raise ConfigError("mesh= needs torch.distributed; call torch.distributed.init_process_group first")
        return cls(0, 1, collective=False, node_of=_spread(1, 1 if nodes is None else nodes))


def _spread(world_size: int, nodes: int) -> tuple[int, ...]:
    if not 1 <= nodes <= world_size:
        raise ConfigError(f"nodes={nodes}: there are {world_size} ranks that read, and each node has one at least")
    return node_of_ranks(world_size, nodes)


def _launched_nodes(processes: npt.NDArray[np.int64], world_size: int) -> tuple[int, ...]:
    """By reader, the node that torchrun started it on; all one where it does not tell, or a reader is on several.

    Args:
        processes: int64 (readers, n), global ranks of each.
        world_size: of the job.
    """
    local, groups = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    one = (0,) * len(processes)
    if not (local.isdecimal() and groups.isdecimal() and int(local) * int(groups) == world_size):
        return one
    nodes = processes // int(local)
    if (nodes != nodes[:, :1]).any():
        return one
    numbers: list[int] = np.unique(nodes[:, 0], return_inverse=True)[1].tolist()
    return tuple(numbers)


def agree(ranks: Ranks, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Exchange `settings` in one collective and return them, `seed=None` filled with the seed of rank 0.

    Blocks until every rank calls it, within the process group's own time limit.

    Raises:
        RankMismatchError: on every rank, naming what differs and where.
    """
    if not ranks.collective:
        return dict(settings)
    everywhere: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, dict(settings))
    return compare_ranks(everywhere)


def compare_ranks(everywhere: list[dict[str, Any]]) -> dict[str, Any]:
    """Check that all ranks say the same; a rank that leaves the seed open takes that of rank 0.

    Raises:
        RankMismatchError: names each setting that differs, with the value of rank 0 and of the first other rank.
    """
    first = everywhere[0]
    differences = []
    for name, expected in first.items():
        for rank, settings in enumerate(everywhere):
            value = settings.get(name)
            if value != expected and not (name == "seed" and value is None):
                differences.append(f"{name} is {expected!r} on rank 0 and {value!r} on rank {rank}")
                break
    if differences:
        raise RankMismatchError(
            f"the ranks are not about to read the same: {'; '.join(differences)}; give every rank the same data set, "
            "arguments and state",
            differences=differences,
        )
    return dict(first)


def thread_share() -> int:
    """Decode threads for this process: the cores it may use (affinity, container quota) over the node's processes."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _container_quota()
    if quota is not None:
        cores = min(cores, quota)
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(cores / (int(local) if local.isdecimal() and int(local) else 1)))


def _container_quota() -> float | None:
    """Cores that the control group allows (cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`); None without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
            quota_us = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
            return quota_us / int(file.read()) if quota_us > 0 else None
    except (OSError, ValueError):
        return None
