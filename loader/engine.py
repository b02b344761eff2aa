"""The engine for shards: reads, decodes and collates the batches of one pass over an epoch, ahead of the training loop.

    order ─ read ──(fetched)── kernel ──(work)── make × N ──(finished)── collate ──(ready)── next()
              └──────────────(in flight: batches and bytes, returned by collate)──────────────┘

One thread reads bytes, one lets the native kernel decode whole batches into their slots with N threads of its own, N
make in Python what the kernel leaves (other formats, callables, doubtful pictures; everything where there is no
kernel), one puts batches back into order. Every hand-over is bounded, every error travels with its batch and is raised
in its turn, and `close` wakes and joins everybody: it abandons the channels, closes the store (a reader that waits for
a fetch returns), joins, then frees.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.cache import ShardStore
from forebay.errors import SampleError
from forebay.loader.bad_samples import REPLACEMENT_TRIES, replacement_rows
from forebay.loader.channel import Channel, ChannelClosed, ChannelEnd
from forebay.loader.collector import collecting_garbage, in_another_thread
from forebay.loader.device import DeviceCopy
from forebay.loader.engine_settings import Delivery, EngineSettings
from forebay.loader.head_work import BatchHeads
from forebay.loader.outputs import TensorSpec
from forebay.loader.pending_batch import PendingBatch, Places
from forebay.loader.randomness import DrawKey, generator
from forebay.loader.readers import ReaderPool
from forebay.loader.samples import INDEX, VALID, StageFailed, collate
from forebay.loader.slots import SlotPool
from forebay.loader.stats import Meter

__all__ = ["CHUNK", "ShardEngine"]

CHUNK = 4
"""Samples that a thread makes at a time: few, so that a slow one holds up no others; one by one with callables."""


class ShardEngine:
    """One pass. Started by the constructor; `next` from one thread, `close` from any, any number of times."""

    def __init__(self, settings: EngineSettings, store: ShardStore, meter: Meter) -> None:
        self._settings = settings
        self._store = store
        self._meter = meter
        self._pool = ReaderPool(store, settings.data.schema, settings.maker.columns, in_use=settings.order.window)
        self._slots = SlotPool(pin_memory=settings.pin_memory, idle_limit=settings.prefetch + 2)
        self._copy = DeviceCopy(settings.device) if settings.device is not None else None
        self._rules = settings.maker.head_rules(native=settings.native)
        self._chunk = 1 if any(program.opaque for program in settings.maker.programs) else CHUNK
        self._cancel = np.zeros(1, np.int32)
        self._in_flight: Channel[None] = Channel(capacity=settings.prefetch, capacity_nbytes=settings.prefetch_nbytes)
        self._fetched: Channel[PendingBatch] = Channel(capacity=1 << 30)
        self._work: Channel[tuple[PendingBatch, Sequence[int]]] = Channel(capacity=1 << 30)
        self._finished: Channel[PendingBatch] = Channel(capacity=1 << 30)
        self._ready: Channel[Delivery] = Channel(capacity=1)
        names = [type(transform).__name__ for transform in settings.batch_transforms]
        self._batch_keys = [f"{name}#{names[:k].count(name)}" for k, name in enumerate(names)]
        self._lock = threading.Lock()
        self._batch_nbytes = 0
        self._counted_nbytes = 0
        self._closed = False
        self._sized = threading.Event()  # the size of a whole batch is known, or no longer of interest
        self._limited = threading.Barrier(1 + 1 + settings.threads + 1)
        self._process = os.getpid()
        self._unsized = any(program.unsized for program in settings.maker.programs)
        self._threads = [threading.Thread(target=self._read, name="forebay-read")]
        self._threads.append(threading.Thread(target=self._run_kernel, name="forebay-kernel"))
        self._threads += [
            threading.Thread(target=self._make, name=f"forebay-decode-{i}") for i in range(settings.threads)
        ]
        self._threads.append(threading.Thread(target=self._collate, name="forebay-collate"))
        _live.add(self)
        store.follow(settings.order.spans(settings.grid.start), settings.order.next_use)
        self._start()

    def _start(self) -> None:
        """Start the threads, each with one torch thread: a picture is too small to be divided, and they would fight.

        torch keeps the number for each thread, and the newest one as the default of threads to come: that is put back.
        """
        default = torch.get_num_threads()
        try:
            for thread in self._threads:
                thread.start()
            self._limited.wait()
        except BaseException:  # no more threads to be had, or Ctrl-C
            self._close()
            raise
        finally:
            torch.set_num_threads(default)

    def _limit_torch(self) -> None:
        torch.set_num_threads(1)
        with contextlib.suppress(threading.BrokenBarrierError):  # closed before all had started: all end
            self._limited.wait()

    def next(self, timeout_s: float | None) -> Delivery:
        """The next batch, in order.

        Raises:
            ChannelEnd: there is none.
            TimeoutError: none came within `timeout_s` seconds.
            BaseException: what went wrong with this batch.
        """
        delivery = self._ready.get(timeout_s)
        self._in_flight.get()  # its room: until now it counted as made ahead
        if self._copy is not None and delivery.copied is not None:
            self._copy.finish(delivery.batch, delivery.copied)
        return delivery

    def close(self) -> None:
        """Stop, wake, join, free. Prompt: at most one sample a thread is finished first. Nothing in a forked child.

        An abandoned iterator that is part of a reference cycle is closed by the garbage collector, which interrupts any
        thread anywhere, perhaps under a lock that closing needs: then another thread does it.
        """
        if os.getpid() != self._process:
            return  # the threads, and whoever holds the locks, are the parent's
        if collecting_garbage():
            in_another_thread(self._close)
        else:
            self._close()

    def _close(self) -> None:
        self.measure(closed=True)
        with self._lock:
            first, self._closed = not self._closed, True
        self._cancel[0] = 1
        self._sized.set()
        self._limited.abort()
        for channel in (self._in_flight, self._fetched, self._work, self._finished, self._ready):
            channel.abandon()
        if first:
            self._store.close()
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join()
        if first:
            self._pool.close()
            self._slots.close()
        _live.discard(self)

    def measure(self, *, closed: bool = False) -> None:
        """Bring the meter's counts of bytes and of the store up to now."""
        with self._lock:
            if not self._closed:
                self._meter.count_store(self._store.stats(), closed=closed)
                counted, self._counted_nbytes = self._counted_nbytes, self._pool.read_nbytes
                self._meter.read_nbytes += self._counted_nbytes - counted

    # -- read: positions in, raw bytes out ---------------------------------------------------------------------------

    def _read(self) -> None:
        grid = self._settings.grid
        try:
            for number in range(len(grid)):
                self._in_flight.put(None, self._batch_nbytes)
                if number == 1 and self._unsized:
                    self._sized.wait()
                batch = PendingBatch(number, grid.bounds(number)[0])
                try:
                    self._fill(batch)
                except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                    batch.fail(-1, error)
                    self._finished.put(batch)
                    return
                self._fetched.put(batch)
        except ChannelClosed:
            pass
        finally:
            self._fetched.finish()

    def _fill(self, batch: PendingBatch) -> None:
        s = self._settings
        positions, batch.valid = s.grid.rank_positions(batch.number, rank=s.rank, world_size=s.world_size)
        with self._meter.read.work(len(positions)):
            shards, rows = s.order.locate(positions)
            self._store.advance(int(positions[0]))
            batch.shards, batch.rows = shards.tolist(), rows.tolist()
            batch.indices = s.data.shard_starts[shards] + rows
            occurrences = np.where(batch.valid, 0, 1).astype(np.int64)
            batch.draws = [
                program.draw(seed=s.seed, epoch=s.epoch, indices=batch.indices, occurrences=occurrences)
                for program in s.maker.programs
            ]
            self._take_slots(batch)
            heads = batch.heads
            for i, (shard, row) in enumerate(zip(batch.shards, batch.rows, strict=True)):
                raw = self._pool.read(shard, row, functools.partial(heads.rows, i))
                heads.add(i, raw)
                batch.raw.append(raw)
        slots_nbytes = sum(slot.nbytes for slots in batch.slots for slot in slots if slot is not None)
        self._batch_nbytes = max(self._batch_nbytes, slots_nbytes + _nbytes(batch.raw))

    def _take_slots(self, batch: PendingBatch) -> None:
        count, programs = len(batch.rows), self._settings.maker.programs
        batch.slots = [
            tuple(None if spec is None else self._slots.take(count, spec) for spec in program.specs)
            for program in programs
        ]
        batch.pieces = [
            tuple(None if slot is None else torch.split(slot, 1) for slot in slots) for slots in batch.slots
        ]
        batch.made = [[()] * count for _ in programs]
        outs: list[Tensor | None] = []
        for head, slots in zip(self._rules.heads, batch.slots, strict=True):
            slot = slots[0] if head is not None else None
            if head is not None and slot is None and self._rules.native:  # a callable goes on from the head's pixels
                slot = self._slots.take(count, TensorSpec((3, *head.size), head.dtype, channels_last=True))
            outs.append(slot)
        batch.heads = BatchHeads(self._rules, batch.draws, count, outs)

    # -- kernel: whole batches of bytes in, pixels in the batch's slot out --------------------------------------------

    def _run_kernel(self) -> None:
        self._limit_torch()
        try:
            for batch in self._fetched:
                try:
                    left = self._decode(batch)
                except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                    batch.fail(-1, error)
                    left = []
                if self._closed:
                    return
                if not left:
                    self._finished.put(batch)
                    continue
                chunks = [left[low : low + self._chunk] for low in range(0, len(left), self._chunk)]
                batch.chunks_left = len(chunks)
                for chunk in chunks:
                    self._work.put((batch, chunk))
        except ChannelClosed:
            pass
        finally:
            self._work.finish()

    def _decode(self, batch: PendingBatch) -> list[int]:
        """Let the kernel do what it can; return the places of samples that something is left to do for."""
        programs, count = self._settings.maker.programs, len(batch.rows)
        if not self._rules.native:
            return list(range(count))
        with self._meter.decode.work(0, threads=self._settings.threads):
            batch.heads.run(self._settings.threads, self._cancel)
        complete = np.ones(count, np.bool_)
        for p, program in enumerate(programs):
            if program.scalar:
                batch.made[p] = [(raw[program.columns[0]],) for raw in batch.raw if raw is not None]
            elif program.head is not None and program.specs[0] is not None:
                complete &= batch.heads.done(p)
            else:
                complete[:] = False
        left: list[int] = np.flatnonzero(~complete).tolist()
        self._meter.decode.add(samples=count - len(left))
        if not left:
            batch.raw = []  # the bytes are done with
        return left

    # -- make: what is left, a sample at a time ----------------------------------------------------------------------

    def _make(self) -> None:
        self._limit_torch()
        try:
            for batch, places in self._work:
                with self._meter.decode.work(len(places)):
                    for i in places:
                        if self._closed:
                            return
                        try:
                            self._make_one(batch, i)
                        except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                            batch.fail(i, error)
                with self._lock:
                    batch.chunks_left -= 1
                    last = batch.chunks_left == 0
                if last:
                    self._finished.put(batch)
        except ChannelClosed:
            pass

    def _make_one(self, batch: PendingBatch, i: int) -> None:
        raw = batch.raw[i]
        assert raw is not None
        batch.raw[i] = None
        try:
            self._make_from(raw, batch, i, batch.heads)
        except StageFailed as failed:
            name = self._settings.data.shard_name(batch.shards[i])
            error = failed.at(dataset=self._settings.data.name, shard=name, row=batch.rows[i])
            if self._settings.on_error == "raise":
                raise error from failed.__cause__
            self._replace(batch, i, error)

    def _make_from(self, raw: dict[str, Any], batch: PendingBatch, i: int, heads: BatchHeads | None) -> None:
        out = [tuple(None if pieces is None else pieces[i] for pieces in slots) for slots in batch.pieces]
        for made, values in zip(batch.made, self._settings.maker.make(raw, batch.draws, i, out, heads), strict=True):
            made[i] = values

    def _replace(self, batch: PendingBatch, i: int, error: SampleError) -> None:
        """Fill the place of a bad sample from its shard; the numbers drawn for the place stay as they are."""
        s, shard = self._settings, batch.shards[i]
        rows = int(s.data.shard_rows[shard])
        for row in replacement_rows(seed=s.seed, epoch=s.epoch, index=int(batch.indices[i]), rows=rows):
            try:
                self._make_from(self._pool.read(shard, row), batch, i, None)
            except StageFailed:
                continue
            batch.rows[i] = row
            batch.indices[i] = s.data.shard_starts[shard] + row
            batch.valid[i] = False
            batch.bad[i] = error
            return
        raise SampleError(
            f"{error.dataset}: shard {error.shard}: row {error.row} is bad, and so were {REPLACEMENT_TRIES} rows "
            "drawn to fill its place: the shard is refused; write it again from its source. "
            f"The first reason: {error.reason}",
            dataset=error.dataset,
            shard=error.shard,
            row=error.row,
            stage=error.stage,
            reason=error.reason,
        )

    # -- collate: whole batches, in order ----------------------------------------------------------------------------

    def _collate(self) -> None:
        self._limit_torch()
        pending: dict[int, PendingBatch] = {}
        error: BaseException | None = None
        try:
            for number in range(len(self._settings.grid)):
                while number not in pending:
                    batch = self._finished.get()
                    pending[batch.number] = batch
                batch = pending.pop(number)
                error = batch.failure()
                if error is not None:
                    break
                delivery = self._assemble(batch)
                self._sized.set()
                del batch  # before the wait: it holds pictures that are stacked already
                self._ready.put(delivery)
                del delivery
        except (ChannelClosed, ChannelEnd):
            return
        except BaseException as raised:  # noqa: BLE001 - raised in the training loop, after what came before
            error = raised
        self._ready.finish(error)

    def _assemble(self, batch: PendingBatch) -> Delivery:
        s = self._settings
        with self._meter.collate.work(len(batch.rows)):
            places = Places(s.data, batch)
            outputs: dict[str, Any] = {}
            for program, slots, made in zip(s.maker.programs, batch.slots, batch.made, strict=True):
                for k, name in enumerate(program.names):
                    slot = slots[k]
                    if slot is None:
                        slot = collate(name, [values[k] for values in made], places, ragged=program.ragged[k])
                    outputs[name] = slot
            if INDEX in s.virtual:
                outputs[INDEX] = torch.from_numpy(batch.indices)
            if VALID in s.virtual:
                outputs[VALID] = torch.from_numpy(batch.valid)
            for key, transform in zip(self._batch_keys, s.batch_transforms, strict=True):
                rng = generator(DrawKey(s.seed, "forebay.batch", key, s.epoch), index=batch.start, occurrence=s.rank)
                outputs = transform(outputs, rng, s.data.schema)
            if s.pin_memory:
                outputs = {
                    k: v.pin_memory() if isinstance(v, Tensor) and not v.is_pinned() else v for k, v in outputs.items()
                }
            self._batch_nbytes = max(self._batch_nbytes, sum(map(_nbytes, outputs.values())))
            copied = None
            if self._copy is not None:
                outputs, copied = self._copy.start(outputs)
        bad = [batch.bad[i] for i in sorted(batch.bad)]
        return Delivery(batch=outputs, samples=len(batch.rows), bad=bad, copied=copied)


def _nbytes(value: Any) -> int:
    """Bytes of what a batch holds: tensors, arrays, views, and lists and dicts of them."""
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, list):
        return sum(map(_nbytes, value))
    return int(getattr(value, "nbytes", 0))


_live: weakref.WeakSet[ShardEngine] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: the engines are the parent's."""
    _live.clear()


os.register_at_fork(after_in_child=_forget_all)


def _close_all() -> None:
    """Close what a script left open, before the interpreter waits for its threads.

    Threads that are not daemons are joined at exit, ahead of `atexit`; a loader abandoned in mid-epoch by a script that
    ends would keep the process alive for ever. `concurrent.futures` uses the same hook for the same reason.
    """
    for engine in list(_live):
        engine.close()


threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # in no stub; a test asserts that it exists
