"""The units that batches are gathered from: loaded by threads ahead of their first use, held until their last.

What a unit is and how it is loaded is told by whoever makes the window; how batches use units, by `take`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from forebay.cache import Order
from forebay.errors import ClosedError
from forebay.sharding import ShardSpan

__all__ = ["UnitWindow"]

T = TypeVar("T")
UNKNOWN = 1 << 62
"""The position of a last use that nobody knows."""


@dataclass(slots=True)
class _Held(Generic[T]):
    unit: T
    nbytes: int


class UnitWindow(Generic[T]):
    """Units of one pass. Thread-safe; `run` is what its threads do, and `close` ends them and whoever waits.

    A unit is dropped when the order does not use it again. In an order that is not known ahead units stay as long as
    there is room, and the one that is needed last goes first.

    Args:
        load: brings a unit, and tells the bytes of memory that it takes.
        nbytes: int64 (units,) estimates of these.
        limit_nbytes: for units that no batch waits for yet; what a batch needs is loaded in any case.
        ahead: units that are loaded before a batch asks for them.
        name: of the data set, for messages.
    """

    def __init__(
        self,
        load: Callable[[int], tuple[T, int]],
        *,
        nbytes: npt.NDArray[np.int64],
        limit_nbytes: int,
        ahead: int,
        name: str,
    ) -> None:
        self._load = load
        self._nbytes = nbytes
        self._limit = limit_nbytes
        self._most_ahead = ahead
        self._name = name
        self._condition = threading.Condition()
        self._held: dict[int, _Held[T]] = {}
        self._loading: set[int] = set()
        self._failed: dict[int, BaseException] = {}
        self._asked: deque[int] = deque()
        self._in_use: list[list[int]] = []  # units of the batches that are gathered, or wait for one
        self._unused: set[int] = set()  # loaded or loading ahead, and asked for by no batch so far
        self._order: Order | None = None
        self._spans: Iterator[ShardSpan] = iter(())
        self._next: ShardSpan | None = None
        self._ends: dict[int, int] = {}
        self._position = 0
        self._first_end = 0  # before this position no unit is used for the last time
        self._held_nbytes = 0
        self.most_nbytes = 0
        """Bytes of memory that the held units took at most."""
        self._closed = False

    def follow(self, order: Order, start: int) -> None:
        """Take the order of the pass; the same again when more of it is known."""
        with self._condition:
            self._order, self._spans, self._next = order, order.spans(start), None
            self._position = max(self._position, start)
            self._condition.notify_all()

    # -- batches -------------------------------------------------------------------------------------------------------

    def take(self, units: list[int]) -> list[T]:
        """The units that a batch is gathered from; waits for those that are not there. `release` the same list then.

        Raises:
            ClosedError: the window was closed.
            BaseException: what loading one of them raised; then none is taken.
        """
        with self._condition:
            if self._unused:
                self._unused.difference_update(units)
                self._condition.notify_all()
            if any(unit not in self._held for unit in units):
                self._wait_for(units)
            if self._closed:
                raise ClosedError(f"units of {self._name} were wanted after the loader was closed")
            self._in_use.append(units)
            return [self._held[unit].unit for unit in units]

    def _wait_for(self, units: list[int]) -> None:
        self._in_use.append(units)
        try:
            for unit in units:
                if unit not in self._held and unit not in self._loading and unit not in self._failed:
                    self._loading.add(unit)
                    self._asked.append(unit)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._closed or self._there(units))
            for unit in units:
                if unit in self._failed:
                    raise self._failed[unit]
        finally:
            self._let_go(units)

    def _there(self, units: Sequence[int]) -> bool:
        return any(unit in self._failed for unit in units) or all(unit in self._held for unit in units)

    def _let_go(self, units: list[int]) -> None:
        self._in_use.pop(next(k for k, each in enumerate(self._in_use) if each is units))

    def release(self, units: list[int], position: int) -> None:
        """A batch is gathered, and no batch before `position` is to come."""
        dropped = []
        with self._condition:
            self._let_go(units)
            self._position = max(self._position, position)
            if self._position >= self._first_end or self._held_nbytes > self._limit:
                used = set().union(*self._in_use)
                free = [unit for unit in self._held if unit not in used]
                dropped = [self._drop(unit) for unit in free if self._end_of(unit) <= self._position]
                if self._held_nbytes > self._limit:
                    dropped += self._drop_farthest([unit for unit in free if unit in self._held])
                self._first_end = min((end for end in map(self._end_of, self._held)), default=UNKNOWN)
            if self._next is not None or self._order is None:
                self._condition.notify_all()
        del dropped  # unmapped outside the lock

    def _end_of(self, unit: int) -> int:
        return self._ends.get(unit, UNKNOWN)

    def _drop(self, unit: int) -> _Held[T]:
        held = self._held.pop(unit)
        self._held_nbytes -= held.nbytes
        self._unused.discard(unit)
        return held

    def _drop_farthest(self, free: list[int]) -> list[_Held[T]]:
        free = [unit for unit in free if self._held[unit].nbytes]
        if not free or self._order is None:
            return []
        uses = self._order.next_use(np.array(free, np.int64), min(self._position, self._order.samples))
        dropped = []
        for place in np.argsort(-uses, kind="stable").tolist():
            if self._held_nbytes <= self._limit or uses[place] <= self._position:
                break
            dropped.append(self._drop(free[place]))
        return dropped

    # -- threads -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Load units until the window is closed."""
        while (unit := self._pick()) is not None:
            try:
                loaded, nbytes = self._load(unit)
            except BaseException as error:  # noqa: BLE001 - raised by the batch that needs it
                with self._condition:
                    self._loading.discard(unit)
                    if any(unit in units for units in self._in_use):
                        self._failed[unit] = error
                    self._unused.discard(unit)  # not wanted yet: whoever needs it has it tried again
                    self._condition.notify_all()
                continue
            with self._condition:
                self._loading.discard(unit)
                if not self._closed:
                    self._held[unit] = _Held(loaded, nbytes)
                    self._first_end = min(self._first_end, self._end_of(unit))
                    self._held_nbytes += nbytes
                    self.most_nbytes = max(self.most_nbytes, self._held_nbytes)
                self._condition.notify_all()
            del loaded

    def _pick(self) -> int | None:
        """Wait for a unit to load: one that a batch waits for, or else the next of the order, if there is room."""
        with self._condition:
            while not self._closed:
                if self._asked:
                    return self._asked.popleft()
                if (span := self._ahead()) is not None:
                    self._loading.add(span.shard)
                    self._unused.add(span.shard)
                    return span.shard
                self._condition.wait()
            return None

    def _ahead(self) -> ShardSpan | None:
        while True:
            if self._next is None:
                self._next = next(self._spans, None)
                if self._next is None:
                    return None
                self._ends[self._next.shard] = self._next.last
                self._first_end = min(self._first_end, self._next.last)
            span = self._next
            if span.last <= self._position or span.shard in self._held or span.shard in self._loading:
                self._next = None
                continue
            coming = sum(int(self._nbytes[unit]) for unit in self._loading) + int(self._nbytes[span.shard])
            if len(self._unused) >= self._most_ahead or self._held_nbytes + coming > self._limit:
                return None
            self._next = None
            return span

    def close(self) -> None:
        """Wake everybody, and let go of all units. Calling it again does nothing."""
        with self._condition:
            self._closed = True
            self._asked.clear()
            held, self._held = self._held, {}
            self._held_nbytes = 0
            self._condition.notify_all()
        held.clear()
