"""Memory that a worker process and the loader both see: made by the worker, lent with a batch, and reused.

It has no name in any file system, so `/dev/shm` may be small and a crash leaves nothing. It knows sizes and lifetimes,
not what the bytes mean.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Bytes", "LentSegments", "Segment", "SegmentPool", "SegmentRef"]

Bytes = npt.NDArray[np.uint8]
SegmentRef = tuple[int, int, bool, bool]
"""Number, length in bytes, whether its descriptor comes along, whether it is given away."""

ALIGNMENT = 64
_T = TypeVar("_T")
_PAGE_NBYTES = 4096
_SMALL_NBYTES = 1 << 20
_MANY_LENT = 6
"""A user who keeps more batches of a worker gets copies of the small ones: a process may have 65,530 maps."""


@dataclass(slots=True, weakref_slot=True)
class Segment:
    """A piece of shared memory in the process that made it."""

    number: int
    nbytes: int
    map: Tensor
    """uint8 (nbytes,)."""
    fd: int
    """Negative once the other process has it."""
    handle: weakref.ref[Bytes] | None = field(default=None)
    """To what this process made of it for the newest batch."""

    def take(self) -> Bytes:
        """The memory, for one batch; the segment is not free while anything here refers to it."""
        handle = _array(self.map)
        self.handle = weakref.ref(handle)
        return handle

    @property
    def in_use_here(self) -> bool:
        """Whether this process still has a tensor in it."""
        return self.handle is not None and self.handle() is not None


class SegmentPool:
    """The segments of one worker. One thread.

    Args:
        limit: segments that may be lent, and as many that may lie idle; what is lent beyond that is given away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._made = 0
        self._lent: dict[int, Segment] = {}
        self._idle: list[Segment] = []
        self._dropped: list[int] = []

    def take(self, nbytes: int) -> Segment:
        """A segment of at least `nbytes`: the smallest idle one that is large enough, or a new one.

        Raises:
            OSError: the system has no memory or no descriptor for it.
        """
        fitting = [s for s in self._idle if s.nbytes >= nbytes and not s.in_use_here]
        if fitting:
            best = min(fitting, key=lambda segment: segment.nbytes)
            self._idle.remove(best)
            return best
        if len(self._idle) >= 2:  # batches have grown: what is too small makes way
            small = min(self._idle, key=lambda segment: segment.nbytes)
            self._idle.remove(small)
            self._dropped.append(small.number)
        nbytes = _rounded(nbytes)
        fd = os.memfd_create("forebay", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            memory = _map(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        self._made += 1
        return Segment(self._made, nbytes, memory, fd)

    def put_back(self, segments: Iterable[Segment]) -> None:
        """Take back what was not lent after all."""
        for segment in segments:
            if segment.fd < 0:
                self._idle.append(segment)
            else:
                os.close(segment.fd)

    def lend(self, segments: Iterable[Segment]) -> tuple[list[SegmentRef], list[int], list[int]]:
        """Lend segments with a batch.

        Returns:
            How the message names them, the descriptors that go along, and the numbers of those that were dropped.
        """
        references, fds = [], []
        for segment in segments:
            given = len(self._lent) >= self._limit
            references.append((segment.number, segment.nbytes, segment.fd >= 0, given))
            if segment.fd >= 0:
                fds.append(segment.fd)
                segment.fd = -1
            if not given:
                self._lent[segment.number] = segment
        dropped, self._dropped = self._dropped, []
        return references, fds, dropped

    def returned(self, numbers: Iterable[int], *, kept: Iterable[int] = ()) -> None:
        """Take back segments that nobody uses on the other side; those that are `kept` there never come."""
        for number in kept:
            self._lent.pop(number, None)
        for number in numbers:
            segment = self._lent.pop(number, None)
            if segment is not None:
                self._idle.append(segment)
        while len(self._idle) > self._limit:
            self._dropped.append(self._idle.pop(0).number)


def _map(fd: int, nbytes: int) -> Tensor:
    # Python's own mmap would keep a descriptor a map.
    return torch.from_file(f"/proc/self/fd/{fd}", shared=True, size=nbytes, dtype=torch.uint8)


def _array(memory: Tensor) -> Bytes:
    array: Bytes = memory.numpy()
    return array


def _rounded(nbytes: int) -> int:
    """Up to an eighth more, in whole pages, so that batches that grow a little fit where the last ones lay."""
    step = max(1 << max(0, nbytes.bit_length() - 4), _PAGE_NBYTES)
    return max(-(-nbytes // step) * step, _PAGE_NBYTES)


class _Lent(weakref.ref[Bytes]):
    """A lent segment's memory, and which segment it is."""

    __slots__ = ("number",)

    number: int


class LentSegments:
    """One worker's segments in the loader's process. Batches may die in any thread; one thread at a time opens.

    What `open` gives is an array object of its own over the segment. Whatever shares its memory (tensors, views,
    buffers, DLPack exports) keeps that object alive; when it dies, its weak reference tells that the segment may go
    home. A process that is forked sees the same memory, so what is lent at that moment never goes home.
    """

    def __init__(self) -> None:
        self._maps: dict[int, Tensor] = {}
        self._lent: dict[int, _Lent] = {}
        self._dead: collections.deque[_Lent] = collections.deque()
        self._home: collections.deque[int] = collections.deque()
        self._kept: collections.deque[int] = collections.deque()
        self._lock = threading.Lock()
        _tables.add(self)

    def open(self, reference: SegmentRef, fd: int | None) -> Bytes:
        """The segment's memory, for as long as anything refers to the array. Closes `fd`."""
        number, nbytes, _, given = reference
        if fd is None:
            memory = self._maps[number]
        else:
            try:
                memory = _map(fd, nbytes)
            finally:
                os.close(fd)
            if not given:
                self._maps[number] = memory
        if given:
            self._maps.pop(number, None)
        handle = _array(memory)
        self._settle()
        if nbytes <= _SMALL_NBYTES and (given or len(self._lent) >= _MANY_LENT):
            if not given:
                self._home.append(number)
            return _copy(handle)
        if not given:
            # A callback in Python would swallow an interrupt that comes in its course; this one runs none.
            self._lent[number] = lent = _Lent(handle, self._dead.append)
            lent.number = number
        return handle

    def _settle(self) -> None:
        """Have the segments whose batches have died go home."""
        with self._lock:
            for lent in _drain(self._dead):
                if self._lent.pop(lent.number, None) is not None:
                    self._home.append(lent.number)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget segments that the worker will not use again."""
        for number in numbers:
            self._maps.pop(number, None)

    def returns(self) -> tuple[list[int], list[int]]:
        """Numbers of segments that nobody uses any more, and of those that the worker should forget."""
        self._settle()
        with self._lock:
            return _drain(self._home), _drain(self._kept)

    def keep_lent(self) -> None:
        """Let what is lent now never go home."""
        self._settle()
        for number in list(self._lent):
            if self._lent.pop(number, None) is not None:
                self._maps.pop(number, None)
                self._kept.append(number)


def _drain(waiting: collections.deque[_T]) -> list[_T]:
    return [waiting.popleft() for _ in range(len(waiting))]


def _copy(memory: Bytes) -> Bytes:
    whole = np.empty(memory.nbytes + ALIGNMENT, dtype=np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    copy = whole[start : start + memory.nbytes]
    copy[:] = memory
    return copy


_tables: weakref.WeakSet[LentSegments] = weakref.WeakSet()


def _keep_lent() -> None:
    for table in list(_tables):
        table.keep_lent()


os.register_at_fork(before=_keep_lent)
