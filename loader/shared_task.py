"""A task as one message to a worker: the indices of a batch, and which shared memory is free again.

Indices of any number go through memory of their own, so that the message stays small.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from forebay.loader.shared_layout import is_plain

__all__ = ["pack_task", "unpack_task"]

_LARGEST_NBYTES = 64 << 10


class _TaskPickler(ForkingPickler):
    """Sends tensors that serve as indices by value: torch's way takes a thread and two descriptors each."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and is_plain(obj) and not obj.requires_grad and obj.dtype is not torch.bfloat16:
            return _from_array, (obj.numpy().copy(),)
        return NotImplemented


def _from_array(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array)


def pack_task(task: Any, home: Sequence[int], kept: Sequence[int]) -> tuple[list[bytes], list[int]]:
    """The parts of a message, and the descriptors that go along.

    Args:
        task: for the worker's loop.
        home: numbers of segments that may be used again.
        kept: numbers of segments that never come back.
    """
    file = io.BytesIO()
    _TaskPickler(file, pickle.HIGHEST_PROTOCOL).dump((task, home, kept))
    message = file.getvalue()
    if len(message) <= _LARGEST_NBYTES:
        return [message], []
    fd = os.memfd_create("forebay-task", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as memory:
        memory.write(message)
    return [b"elsewhere"], [fd]


def unpack_task(message: bytes, fds: Sequence[int]) -> tuple[Any, list[int], list[int]]:
    """What `pack_task` was given. Closes the descriptors."""
    if fds:
        with open(fds[0], "rb") as memory:
            memory.seek(0)
            message = memory.read()
    unpacked: tuple[Any, list[int], list[int]] = pickle.loads(message)  # noqa: S301 - of our own loader
    return unpacked
