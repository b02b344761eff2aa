"""The engine for tables: loads units ahead and gathers the batches of one pass, while the training loop is at work.

    order of first use ── load × N ──(window of units)── gather × M ──(in turn)── next()
    numbers of batches ── order ──(rows of each batch)──────┘

N threads bring units into the window, out of the cache or by decoding, each a whole unit; one finds the rows of batches
and M gather them; they come out in turn. Every error comes in the place of its batch. `close` wakes everybody, closes
the store (whoever waits for another process returns), joins, then frees; a thread that decodes ends its unit first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forebay.cache import Order, UnitStore
from forebay.errors import ClosedError, ConfigError
from forebay.loader.batch_plans import BatchPlan, PlannedSamples
from forebay.loader.channel import Channel, ChannelClosed
from forebay.loader.collector import collecting_garbage, in_another_thread
from forebay.loader.device import DeviceCopy, on_stream
from forebay.loader.engine_settings import Delivery
from forebay.loader.samples import INDEX, VALID, WEIGHT
from forebay.loader.slots import LoaderMemory
from forebay.loader.stats import Meter
from forebay.loader.tables import TableView
from forebay.loader.tables_turns import Turns
from forebay.loader.tables_window import UnitWindow

__all__ = ["TableEngine", "TableSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSettings:
    """All that fixes what one pass over a table delivers, and with how much memory and how many threads."""

    view: TableView
    virtual: tuple[str, ...]
    """Which of `__index__`, `__valid__` and `__weight__` the user wants."""
    plan: BatchPlan
    threads: int
    """That load units; half as many gather batches, and one finds their rows."""
    prefetch: int
    """Batches in the making or ready, the one in the user's hands not counted."""
    prefetch_nbytes: int
    """Bytes that these may take together; one batch always fits."""
    pin_memory: bool
    device: torch.device | None


class TableEngine:
    """One pass. Started by the constructor; `next` from one thread, `close` from any, any number of times."""

    def __init__(self, settings: TableSettings, store: UnitStore, meter: Meter, memory: LoaderMemory) -> None:
        self._settings = settings
        self._store = store
        self._meter = meter
        self._memory = memory
        self._copy = None if settings.device is None else DeviceCopy(settings.device)
        data = settings.view.data
        self._window: UnitWindow[Any] = UnitWindow(
            self._load,
            nbytes=data.shard_nbytes,
            limit_nbytes=settings.view.memory_nbytes,
            ahead=2 * settings.threads,
            name=data.name,
        )
        self._in_flight: Channel[None] = Channel(capacity=settings.prefetch, capacity_nbytes=settings.prefetch_nbytes)
        self._turns: Turns[Delivery] = Turns()
        self._planned: Channel[tuple[int, PlannedSamples]] = Channel(capacity=1 << 30)  # bounded by those in flight
        self._reached: dict[int, int] = {}  # batches in the making, and a position that none of their samples precedes
        self._position = 0
        self._batch_nbytes = 0
        self._counted_nbytes = 0
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        lanes = max(1, settings.threads // 2)
        self._limited = threading.Barrier(1 + lanes)
        self._threads = [
            threading.Thread(target=self._window.run, name=f"forebay-unit-{i}") for i in range(settings.threads)
        ]
        self._threads.append(threading.Thread(target=self._number, name="forebay-order"))
        self._threads += [threading.Thread(target=self._gather, name=f"forebay-gather-{i}") for i in range(lanes)]
        _live.add(self)
        settings.plan.follow(self)
        self._start()

    def _start(self) -> None:
        """Start the threads; those that gather run torch with one thread of its own, which torch makes the default."""
        default = torch.get_num_threads()
        try:
            for thread in self._threads:
                thread.start()
            self._limited.wait()
        except RuntimeError as error:
            self._close()
            raise ConfigError(
                f"the loader's {len(self._threads)} threads cannot be started ({error}): lower num_workers "
                f"({self._settings.threads}), or raise the limits of processes and memory (ulimit -u, ulimit -v)"
            ) from error
        except BaseException:  # Ctrl-C
            self._close()
            raise
        finally:
            torch.set_num_threads(default)

    def follow(self, order: Order, start: int = 0) -> None:
        """What the plan tells of the order, for the cache and for reading ahead."""
        self._store.follow(order, start)
        self._window.follow(order, start)

    def next(self, timeout_s: float | None) -> Delivery:
        """The next batch, in order.

        Raises:
            ChannelEnd: there is none.
            TimeoutError: none came within `timeout_s` seconds.
            ClosedError: this is a forked child, and the threads are the parent's.
            BaseException: what went wrong with this batch.
        """
        if os.getpid() != self._process:
            raise ClosedError(
                f"this iterator belongs to process {self._process}, and its threads with it; in the forked process "
                f"{os.getpid()} begin another: iter(loader)"
            )
        delivery = self._turns.get(timeout_s)
        self._in_flight.get()  # its room: until now it counted as made ahead
        if self._copy is not None and delivery.copied is not None:
            self._copy.finish(delivery.batch, delivery.copied)
        return delivery

    def close(self) -> None:
        """Stop, wake, join, free. Nothing in a forked child. See `ShardEngine.close` for the garbage collector."""
        if os.getpid() != self._process:
            return
        if collecting_garbage():
            in_another_thread(self._close)
        else:
            self._close()

    def _close(self) -> None:
        self.measure(closed=True)
        with self._lock:
            first, self._closed = not self._closed, True
        self._settings.plan.close()
        self._limited.abort()
        self._in_flight.abandon()
        self._planned.abandon()
        self._turns.abandon()
        self._window.close()
        if first:
            self._store.close()
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join()
        self._window.close()
        _live.discard(self)

    def measure(self, *, closed: bool = False) -> None:
        """Bring the meter's counts of bytes and of the store up to now."""
        with self._lock:
            if not self._closed:
                counts = self._store.stats()
                self._meter.count_store(counts, closed=closed)
                counted, self._counted_nbytes = self._counted_nbytes, int(counts["source_nbytes"])
                self._meter.read_nbytes += self._counted_nbytes - counted

    # -- load: numbers of units in, units that can be gathered from out -----------------------------------------------

    def _load(self, unit: int) -> tuple[Any, int]:
        view = self._settings.view
        if not view.plan.names:  # nothing is gathered
            return None, 0
        with self._meter.read.work(int(view.data.shard_rows[unit])):
            held = self._store.load(unit)
            return view.plan.open(held.batch), held.memory_nbytes

    # -- gather: numbers of batches in, batches out -------------------------------------------------------------------

    def _number(self) -> None:
        """What one thread does, as plans want it: take numbers, and find the samples of each."""
        plan, number = self._settings.plan, 0
        try:
            for number in plan.numbers():
                self._in_flight.put(None, self._batch_nbytes)
                planned = plan.samples(number)
                with self._lock:
                    self._reached[number] = planned.position
                self._planned.put((number, planned))
                number += 1
            if not self._closed:
                self._turns.end(number)
            self._planned.finish()
        except ChannelClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the training loop, after what came before
            self._turns.fail(number, error)
            self._planned.finish()

    def _gather(self) -> None:
        torch.set_num_threads(1)
        with contextlib.suppress(threading.BrokenBarrierError):  # closed before all had started: all end
            self._limited.wait()
        for number, planned in self._planned:
            try:
                delivery = self._made(number, planned)
            except BaseException as error:  # noqa: BLE001 - raised in the training loop, in the batch's turn
                self._turns.fail(number, error)
                return
            self._turns.put(number, delivery)
            del delivery, planned

    def _made(self, number: int, planned: PlannedSamples) -> Delivery:
        s = self._settings
        mine, which = _distinct(planned.shards, s.view.data.num_shards)
        opened = self._window.take(mine)
        stream = None if self._copy is None else self._copy.stream
        try:
            with self._meter.collate.work(len(planned.rows)), on_stream(stream):
                outputs = s.view.gather(opened, which, planned.rows, self._memory.slots)
                if INDEX in s.virtual:
                    outputs[INDEX] = torch.from_numpy(s.view.data.shard_starts[planned.shards] + planned.rows)
                if VALID in s.virtual:
                    outputs[VALID] = torch.from_numpy(planned.valid)
                if WEIGHT in s.virtual:
                    outputs[WEIGHT] = torch.tensor(planned.weight, dtype=torch.float64)
        finally:
            del opened
            self._window.release(mine, self._pass_by(number))
        copied = None
        if s.pin_memory:
            outputs = {name: _pinned(value) for name, value in outputs.items()}
        if self._copy is not None:
            outputs, copied = self._copy.start(outputs, lambda moved: moved)
        nbytes = sum(int(getattr(value, "nbytes", 0)) for value in outputs.values())
        with self._lock:
            self._batch_nbytes = max(self._batch_nbytes, nbytes)
        return Delivery(batch=outputs, samples=len(planned.rows), bad=[], copied=copied, excess=planned.excess)

    def _pass_by(self, number: int) -> int:
        """A batch is gathered: up to which position none is in the making or to come."""
        with self._lock:
            position = self._reached.pop(number)
            self._position = max(self._position, min(self._reached.values(), default=position))
            position = self._position
        self._store.advance(position)
        return position


def _distinct(shards: npt.NDArray[np.int64], count: int) -> tuple[list[int], npt.NDArray[np.int64]]:
    """The different numbers below `count`, ascending, and by sample the place of its own among them."""
    if count > 8 * len(shards):
        units, which = np.unique(shards, return_inverse=True)
        return units.tolist(), which
    used = np.bincount(shards, minlength=count) > 0
    if used.all():
        return list(range(count)), shards
    return np.flatnonzero(used).tolist(), (np.cumsum(used) - 1)[shards]


def _pinned(value: Any) -> Any:
    loose = isinstance(value, torch.Tensor) and not value.is_cuda and value.layout is torch.strided
    return value.pin_memory() if loose and not value.is_pinned() else value


_live: weakref.WeakSet[TableEngine] = weakref.WeakSet()


def _close_all() -> None:
    """Close what a script left open, before the interpreter waits for its threads: see `engine.py`."""
    for engine in list(_live):
        engine.close()


threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # in no stub, used by concurrent.futures alike
os.register_at_fork(after_in_child=_live.clear)
