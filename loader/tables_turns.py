"""Hands finished batches over in the order of their numbers, whoever finishes first."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from forebay.loader.channel import ChannelEnd

__all__ = ["Turns"]

T = TypeVar("T")


class Turns(Generic[T]):
    """Things by number, from several threads to one. How many there may be is bounded by whoever gives numbers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._finished: dict[int, T | BaseException] = {}
        self._next = 0
        self._end: int | None = None
        self._abandoned = False

    def put(self, number: int, thing: T) -> None:
        """What is to come in turn `number`."""
        with self._condition:
            self._finished[number] = thing
            self._condition.notify_all()

    def fail(self, number: int, error: BaseException) -> None:
        """Raise this in turn `number`, after all before it."""
        with self._condition:
            self._finished[number] = error
            self._condition.notify_all()

    def end(self, number: int) -> None:
        """There are so many."""
        with self._condition:
            self._end = number
            self._condition.notify_all()

    def abandon(self) -> None:
        """Wake whoever waits, and drop what was finished. Calling it again does nothing."""
        with self._condition:
            self._abandoned = True
            self._finished.clear()
            self._condition.notify_all()

    def get(self, timeout_s: float | None = None) -> T:
        """The next one in turn.

        Raises:
            ChannelEnd: there are no more, or it was abandoned.
            TimeoutError: it did not come within `timeout_s` seconds.
            BaseException: what failed in its place.
        """
        with self._condition:
            if not self._condition.wait_for(self._ready, timeout_s):
                raise TimeoutError(f"nothing came within {timeout_s} s")
            if self._abandoned or self._next not in self._finished:
                raise ChannelEnd
            thing = self._finished.pop(self._next)
            self._next += 1
        if isinstance(thing, BaseException):
            raise thing
        return thing

    def _ready(self) -> bool:
        return self._abandoned or self._next in self._finished or (self._end is not None and self._next >= self._end)
