"""Ending the waits of a store at once: whoever closes it wakes those that wait for the network.

It knows who waits, not what for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.errors import ClosedError

__all__ = ["Interrupts"]


class Interrupts(threading.Event):
    """An event that also calls those who wait for something else. Set once, for good. Thread-safe.

    Args:
        name: of what is closed, for messages.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._wakers: dict[object, Callable[[], object]] = {}
        self._guard = threading.RLock()  # a signal handler may close what its own thread waits in

    def set(self) -> None:
        """Wake everybody, now and from now on. Calling it again does nothing."""
        super().set()
        with self._guard:
            wakers = list(self._wakers.values())
            self._wakers.clear()
        for wake in wakers:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within it, `set` calls `wake`, in the thread of whoever sets.

        Raises:
            ClosedError: it was set before.
        """
        key = object()
        with self._guard:
            if self.is_set():
                raise ClosedError(f"{self.name} was read after it was closed")
            self._wakers[key] = wake
        try:
            yield
        finally:
            with self._guard:
                self._wakers.pop(key, None)
