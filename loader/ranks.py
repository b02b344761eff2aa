"""Who we are among the ranks of a job, and that all of them are about to read the same thing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from forebay.errors import ConfigError, RankMismatchError

__all__ = ["Ranks", "agree", "compare_ranks", "thread_share"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place in the job."""

    rank: int
    world_size: int
    collective: bool
    """Whether the others can be asked, over torch.distributed."""

    @classmethod
    def find(cls, rank: int | None, world_size: int | None) -> Ranks:
        """What was given, else torch.distributed's default group, else a job of one.

        Raises:
            ConfigError: half of it is given, or out of range; or torchrun started several processes and the process
                group is not there yet, so that each of them would silently read everything.
        """
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
        if rank is not None and world_size is not None:
            if not 0 <= rank < world_size:
                raise ConfigError(f"rank={rank} is not one of {world_size} ranks; they count from 0")
            return cls(rank, world_size, collective=False)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            size = torch.distributed.get_world_size()
            return cls(torch.distributed.get_rank(), size, collective=size > 1)
        launched = os.environ.get("WORLD_SIZE", "1")
        if launched.isdecimal() and int(launched) > 1:
            raise ConfigError(
                f"WORLD_SIZE={launched}, but torch.distributed is not initialised: every process would read all of the "
                "data; call torch.distributed.init_process_group first, or give rank= and world_size="
            )
        return cls(0, 1, collective=False)


def agree(ranks: Ranks, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Exchange `settings` in one collective and return them, `seed=None` filled with the seed of rank 0.

    Blocks until every rank calls it, within the process group's own time limit.

    Raises:
        RankMismatchError: on every rank, naming what differs and where.
    """
    if not ranks.collective:
        return dict(settings)
    everywhere: list[Any] = [None] * ranks.world_size
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
