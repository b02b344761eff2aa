"""Reused memory: a block is lent out, and comes home when the last reference to it is gone.

First touch of fresh memory costs more than twice a copy into touched memory, so blocks live on. It knows sizes and
lifetimes, not what the bytes mean.
"""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["IDLE_READ_BLOCKS", "Block", "BlockPool", "ReadMemory"]

Block = npt.NDArray[np.uint8]
IDLE_READ_BLOCKS = 16
"""Blocks of 4 MiB that are kept for reads: as much as a batch of large pictures."""


class BlockPool:
    """Lends blocks of memory. Thread-safe.

    What `lease` gives is an array object of its own over the block. Whatever shares its memory (slices, buffers,
    tensors, DLPack exports) keeps that object alive; when it dies, its weak reference brings the block home.

    Args:
        idle_limit: blocks of one size that are kept while nobody uses them.
    """

    def __init__(self, idle_limit: int) -> None:
        self._idle_limit = idle_limit
        self._idle: dict[int, list[Block]] = {}
        self._lent: dict[int, weakref.ref[Block]] = {}
        self._closed = False
        # Re-entrant: a block can come home from the garbage collector while this thread holds the lock.
        self._lock = threading.RLock()
        _pools.add(self)

    def renew_lock(self) -> None:
        """In a forked child: a thread that held the lock stayed in the parent."""
        self._lock = threading.RLock()

    def lease(self, nbytes: int) -> Block:
        """Memory of unspecified content, aligned to 64 bytes, for nobody else while anything refers to it."""
        with self._lock:
            idle = self._idle.get(nbytes)
            block = idle.pop() if idle else None
        if block is None:
            block = _aligned(nbytes)
        handle = block.view()
        key = id(handle)

        def come_home(_: object) -> None:
            self._come_home(key, block)

        with self._lock:
            self._lent[key] = weakref.ref(handle, come_home)
        return handle

    def _come_home(self, key: int, block: Block) -> None:
        with self._lock:
            del self._lent[key]
            idle = self._idle.setdefault(block.nbytes, [])
            if not self._closed and len(idle) < self._idle_limit:
                idle.append(block)

    @property
    def idle_nbytes(self) -> int:
        """Bytes that wait for the next lease."""
        with self._lock:
            return sum(nbytes * len(blocks) for nbytes, blocks in self._idle.items())

    def close(self) -> None:
        """Free the idle blocks; those that are lent are freed when they come home."""
        with self._lock:
            self._closed = True
            self._idle.clear()


_pools: weakref.WeakSet[BlockPool] = weakref.WeakSet()


def _renew_locks() -> None:
    for pool in list(_pools):
        pool.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


def _aligned(nbytes: int) -> Block:
    block = np.empty(nbytes + 64, dtype=np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + nbytes]


class ReadMemory:
    """Memory for many reads of some 100 kB, one after the other from reused blocks. One thread at a time.

    A view keeps the whole block that it lies in: give it only to readers that let go of what they read.

    Args:
        blocks: where they come from, for as long as it likes; a pool of its own when None.
    """

    _BLOCK_NBYTES = 4 << 20
    _LARGEST_NBYTES = 1 << 20

    def __init__(self, blocks: BlockPool | None = None) -> None:
        self._blocks = BlockPool(IDLE_READ_BLOCKS) if blocks is None else blocks
        self._block = memoryview(bytearray())

    def take(self, nbytes: int) -> memoryview:
        """Writable bytes; fresh memory where they would take more than a quarter of a block."""
        if nbytes > self._LARGEST_NBYTES:
            return memoryview(bytearray(nbytes))
        if nbytes > len(self._block):
            self._block = self._blocks.lease(self._BLOCK_NBYTES).data
        taken, self._block = self._block[:nbytes], self._block[nbytes:]
        return taken

    def close(self) -> None:
        """Let go of the block in use."""
        self._block = memoryview(bytearray())
