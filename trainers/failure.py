"""One rank's error ends all ranks, and every one of them tells that error. It starts no thread and watches nobody.

Who fails says so in the job's store; who is cut off in a collective looks there for the reason.
"""

from __future__ import annotations

import datetime
import itertools
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from forebay.errors import RankFailedError

__all__ = ["first_error_in_front"]

_bodies = itertools.count()
"""How many this process has run; the same on every rank."""
_WAIT_S = 5.0
"""How long a rank that was cut off waits for the reason: the other one writes it before it leaves."""
_CUT_OFF = re.compile(r"gloo|nccl|connection (was )?(closed|reset)|broken pipe|socket|peer", re.IGNORECASE)


@contextmanager
def first_error_in_front() -> Iterator[None]:
    """Run the body on every rank; whatever exception leaves it first, on any rank, is told on all.

    Raises:
        RankFailedError: another rank failed first, or was lost; the error here is its cause.
    """
    key = f"forebay first error {next(_bodies)}"
    world = dist.group.WORLD if dist.is_initialized() and dist.get_world_size() > 1 else None
    store = None if world is None else world.get_group_store()
    try:
        yield
    except Exception as error:
        if store is None or isinstance(error, RankFailedError):
            raise
        first = _told(store, key) if _is_cut_off(error) else _tell(store, key, error)
        if first is None:
            raise
        rank, _, text = first.partition("\n")
        if rank == "?":
            raise RankFailedError(
                f"another rank was lost without a word ({text}): killed, or its machine is gone. Start again to go on "
                "from the newest checkpoint",
                rank=None,
            ) from error
        raise RankFailedError(f"rank {rank} failed first: {text}", rank=int(rank)) from error


def _is_cut_off(error: BaseException) -> bool:
    """Whether it only says that another rank is no longer there."""
    if isinstance(error, dist.DistError):
        return True
    from_torch = type(error) is RuntimeError or type(error).__module__.startswith("torch.distributed")
    return from_torch and _CUT_OFF.search(str(error)) is not None


def _tell(store: Store, key: str, error: BaseException) -> str | None:
    """Say that this rank failed. Returns what another one said earlier; None when none did, or it said the same."""
    text = "".join(traceback.format_exception_only(error)).strip()
    said = f"{dist.get_rank()}\n{text}"
    try:
        first: str = store.compare_set(key, "", said).decode()
    except (RuntimeError, ValueError):  # the store went with its rank; then this error is all that can be told
        return None
    return None if first.partition("\n")[2] == text else first


def _told(store: Store, key: str) -> str:
    """What the rank that failed first said; `?` when it said nothing."""
    try:
        store.wait([key], datetime.timedelta(seconds=_WAIT_S))
        said: str = store.get(key).decode()
    except (RuntimeError, ValueError) as error:
        said = f"?\n{str(error).splitlines()[0][:100]}"
    return said
