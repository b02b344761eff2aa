"""A bounded hand-over between threads that can be closed from both ends and carries the producer's error.

It moves objects and counts who waited for whom; it starts no thread and knows nothing of what it carries.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Channel", "ChannelClosed", "ChannelEnd"]

T = TypeVar("T")


class ChannelClosed(Exception):
    """The reader has left: nothing that is put will be read."""


class ChannelEnd(Exception):
    """The producer has finished, or the channel was abandoned: nothing more comes."""


class Channel(Generic[T]):
    """First in, first out between threads, bounded in objects and in bytes.

    `put` waits for room, `get` waits for an object. The producer ends with `finish`, after which readers get what is
    held and then the error or the end; the reader ends with `abandon`, which wakes the producer with `ChannelClosed`.
    Any number of threads may stand at either end.
    """

    def __init__(self, *, capacity: int, capacity_nbytes: int | None = None) -> None:
        self.put_wait_s = 0.0
        """Seconds that producers waited for room: near the run's length, the reader is the bottleneck."""
        self.get_wait_s = 0.0
        """Seconds that readers waited for an object: near the run's length, the producer is the bottleneck."""
        self._capacity = capacity
        self._capacity_nbytes = capacity_nbytes
        self._held: deque[tuple[T, int]] = deque()
        self._held_nbytes = 0
        self._finished = False
        self._abandoned = False
        self._error: BaseException | None = None
        lock = threading.Lock()
        self._room = threading.Condition(lock)
        self._filled = threading.Condition(lock)

    def put(self, thing: T, nbytes: int = 0) -> None:
        """Hand over `thing`, which counts as `nbytes`; one larger than the bound passes when nothing else is held.

        Raises:
            ChannelClosed: the reader has left.
        """
        with self._room:
            if not self._abandoned and not self._has_room(nbytes):
                started = time.monotonic()
                self._room.wait_for(lambda: self._abandoned or self._has_room(nbytes))
                self.put_wait_s += time.monotonic() - started
            if self._abandoned:
                raise ChannelClosed
            self._held.append((thing, nbytes))
            self._held_nbytes += nbytes
            self._filled.notify()

    def _has_room(self, nbytes: int) -> bool:
        if len(self._held) >= self._capacity:
            return False
        return not self._held or self._capacity_nbytes is None or self._held_nbytes + nbytes <= self._capacity_nbytes

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more comes. What is held is still delivered; then readers get `error`, or the end."""
        with self._filled:
            if not self._finished:
                self._finished, self._error = True, error
            self._filled.notify_all()

    def abandon(self) -> None:
        """Wake everybody and drop what is held. Calling it again does nothing."""
        with self._filled:
            self._abandoned = True
            self._held.clear()
            self._held_nbytes = 0
            self._filled.notify_all()
            self._room.notify_all()

    def get(self, timeout_s: float | None = None) -> T:
        """Take the oldest object.

        Raises:
            ChannelEnd: the producer has finished, or the channel was abandoned.
            TimeoutError: nothing came within `timeout_s` seconds.
            BaseException: what the producer finished with, after what it produced before.
        """
        with self._filled:
            if not self._ready():
                started = time.monotonic()
                came = self._filled.wait_for(self._ready, timeout_s)
                self.get_wait_s += time.monotonic() - started
                if not came:
                    raise TimeoutError(f"nothing came within {timeout_s} s")
            if self._abandoned:
                raise ChannelEnd
            if not self._held:
                if self._error is not None:
                    raise self._error
                raise ChannelEnd
            thing, nbytes = self._held.popleft()
            self._held_nbytes -= nbytes
            self._room.notify_all()
            return thing

    def _ready(self) -> bool:
        return bool(self._held) or self._finished or self._abandoned

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                yield self.get()
            except ChannelEnd:
                return
