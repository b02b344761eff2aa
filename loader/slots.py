"""Reused memory for batches: a block goes back to the pool when the user's last reference to it is gone.

First touch of fresh memory costs more than twice a copy into touched memory, so blocks live on. It knows sizes and
lifetimes, not what a batch means.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.loader.outputs import TensorSpec

__all__ = ["SlotPool"]

Block = npt.NDArray[np.uint8]


class SlotPool:
    """Hands out batch tensors in recycled memory. Thread-safe.

    Every tensor that `take` gives rests on an array object of its own over the block. Whatever shares the tensor's
    storage (views, `.numpy()`, DLPack exports) keeps that object alive; when it dies, its weak reference brings the
    block home. So a batch that the user keeps is never overwritten, and a user who keeps every batch gets fresh memory.
    """

    def __init__(self, *, pin_memory: bool = False, idle_limit: int = 8) -> None:
        self._pin_memory = pin_memory
        self._idle_limit = idle_limit
        self._idle: dict[int, list[Block]] = {}
        self._lent: dict[int, weakref.ref[Block]] = {}
        self._closed = False
        # Re-entrant: a block can come home from the garbage collector while this thread holds the lock.
        self._lock = threading.RLock()

    def take(self, count: int, spec: TensorSpec) -> Tensor:
        """A tensor of shape (count, *spec.shape) with unspecified content.

        (count, C, H, W) lies in channels_last memory when `spec.channels_last`. Pinned tensors come from torch's own
        allocator, which alone knows when a copy to the device has finished with them.
        """
        memory_shape, permutation = spec.memory_layout(count)
        if self._pin_memory:
            return torch.empty(memory_shape, dtype=spec.dtype, pin_memory=True).permute(permutation)
        nbytes = int(np.prod(memory_shape, dtype=np.int64)) * spec.dtype.itemsize
        return self._lease(nbytes).view(spec.dtype).view(memory_shape).permute(permutation)

    def _lease(self, nbytes: int) -> Tensor:
        with self._lock:
            idle = self._idle.get(nbytes)
            block = idle.pop() if idle else None
        if block is None:
            block = torch.empty(nbytes, dtype=torch.uint8).numpy()
        handle = block.view()
        key = id(handle)

        def come_home(_: object) -> None:
            self._come_home(key, block)

        with self._lock:
            self._lent[key] = weakref.ref(handle, come_home)
        return torch.from_numpy(handle)

    def _come_home(self, key: int, block: Block) -> None:
        with self._lock:
            del self._lent[key]
            idle = self._idle.setdefault(block.nbytes, [])
            if not self._closed and len(idle) < self._idle_limit:
                idle.append(block)

    @property
    def idle_nbytes(self) -> int:
        """Bytes that wait for the next batch."""
        with self._lock:
            return sum(nbytes * len(blocks) for nbytes, blocks in self._idle.items())

    def close(self) -> None:
        """Free the idle blocks; those that the user still holds are freed when the user lets go."""
        with self._lock:
            self._closed = True
            self._idle.clear()
