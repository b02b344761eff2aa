"""The shared memory of the batch that a worker is making: what is stacked straight into it, and what is copied in.

It takes segments from the pool and says where in them something lies; it sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forebay.loader.shared_segments import ALIGNMENT, Bytes, Segment, SegmentPool, SegmentRef

__all__ = ["BatchMemory"]


class BatchMemory:
    """Memory for one batch after the other, in the worker that makes them. One thread."""

    def __init__(self, pool: SegmentPool) -> None:
        self._pool = pool
        self._segments: list[Segment] = []
        self._handles: list[Bytes] = []
        self._addresses: list[int] = []
        self._used = 0  # of the newest segment
        self._total = 0
        self._last_total = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of unspecified content, with at least one element, in the memory of this batch."""
        count = 1
        for size in shape:
            count *= size
        memory, _, offset = self.take(count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))

    def take(self, nbytes: int) -> tuple[Bytes, int, int]:
        """Room for `nbytes`: the memory of a segment, the segment's place among those of this batch, and the offset."""
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if not self._segments or start + nbytes > self._segments[-1].nbytes:
            # As much as the last batch took, or as this one has taken, so that few segments serve many tensors.
            segment = self._pool.take(max(nbytes, self._last_total - self._total, self._total))
            self._segments.append(segment)
            handle = segment.take()
            self._handles.append(handle)
            self._addresses.append(handle.ctypes.data)
            start = 0
        self._used = start + nbytes
        self._total += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self._handles[-1], len(self._segments) - 1, start

    def find(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """Where bytes at `address` lie: a segment's place among those of this batch, and the offset there."""
        for place, (start, segment) in enumerate(zip(self._addresses, self._segments, strict=True)):
            if start <= address and address + nbytes <= start + segment.nbytes:
                return place, address - start
        return None

    def lend(self) -> tuple[list[SegmentRef], list[int], list[int]]:
        """Send the memory with the batch, as `SegmentPool.lend` does, and begin the next one."""
        segments = self._segments
        self._begin()
        return self._pool.lend(segments)

    def give_up(self) -> None:
        """Take back the memory of a batch that is not sent, and begin the next one."""
        self._pool.put_back(self._segments)
        self._begin()

    def _begin(self) -> None:
        self._last_total = self._total
        self._segments, self._handles, self._addresses = [], [], []
        self._used = self._total = 0
