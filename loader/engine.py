"""The engine for shards: reads, decodes and collates the batches of one pass over an epoch, ahead of the training loop.

    order ─ read ──(fetched)── kernel × 2 ──(work)── make × N ──(finished)── collate ──(ready)── next()
              └──────────────(in flight: batches and bytes, returned by collate)──────────────┘

One thread reads bytes, several where each read takes a round trip; two in turn let the native kernel decode whole
batches into their slots, with N threads of its own (while one waits for the GIL, the other's batch is decoded), or one
drives DALI in their place; N make in Python what these leave (other formats, callables, doubtful pictures; everything
where there is neither); one puts batches back into order. Every hand-over is bounded, every error travels with its
batch and is raised in its turn, and `close` wakes and joins everybody: it abandons the channels, closes the store (a
reader that waits for a fetch returns), joins, then frees.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Sequence

import torch

from forebay.cache import ShardStore
from forebay.errors import ClosedError, ConfigError
from forebay.loader.batch_work import BatchWork, nbytes_of
from forebay.loader.channel import Channel, ChannelClosed, ChannelEnd
from forebay.loader.collector import collecting_garbage, in_another_thread
from forebay.loader.dali_stage import DaliDecoder, DaliStage
from forebay.loader.device import DeviceCopy, on_stream
from forebay.loader.engine_settings import Delivery, EngineSettings
from forebay.loader.pending_batch import PendingBatch
from forebay.loader.read_stage import ReadStage
from forebay.loader.slots import LoaderMemory
from forebay.loader.stats import Meter

__all__ = ["CHUNK", "ShardEngine"]

LANES = 2
"""Threads that call the kernel: one whose batch is decoded, one whose batch is next."""

CHUNK = 4
"""Samples that a thread makes at a time: few, so that a slow one holds up no others; one by one with callables."""


class ShardEngine:
    """One pass. Started by the constructor; `next` from one thread, `close` from any, any number of times."""

    def __init__(
        self,
        settings: EngineSettings,
        store: ShardStore,
        meter: Meter,
        memory: LoaderMemory,
        dali: DaliDecoder | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._meter = meter
        self._batch_work = BatchWork(settings, store, memory, meter.storing)
        self._dali = dali
        self._copy = None
        if settings.device is not None:
            self._copy = DeviceCopy(settings.device, None if dali is None else dali.stream)
        self._chunk = 1 if any(program.opaque for program in settings.maker.programs) else CHUNK
        self._lanes_left = LANES if dali is None else 1
        self._in_flight: Channel[None] = Channel(capacity=settings.prefetch, capacity_nbytes=settings.prefetch_nbytes)
        self._fetched: Channel[PendingBatch] = Channel(capacity=1 << 30)
        self._work: Channel[tuple[PendingBatch, Sequence[int]]] = Channel(capacity=1 << 30)
        self._finished: Channel[PendingBatch] = Channel(capacity=1 << 30)
        self._ready: Channel[Delivery] = Channel(capacity=1)
        self._lock = threading.Lock()
        self._counted_nbytes = 0
        self._closed = False
        self._limited = threading.Barrier(1 + settings.threads + 1)
        self._process = os.getpid()
        self._reading = ReadStage(
            settings, self._batch_work, meter.read, self._in_flight, self._fetched, self._finished
        )
        self._threads = [
            threading.Thread(target=self._reading.run, name=f"forebay-read-{i}") for i in range(self._reading.threads)
        ]
        if dali is None:
            self._threads += [
                threading.Thread(target=self._run_kernel, name=f"forebay-kernel-{i}") for i in range(LANES)
            ]
        else:
            self._threads.append(threading.Thread(target=self._run_dali, args=(dali,), name="forebay-dali"))
        self._threads += [
            threading.Thread(target=self._make, name=f"forebay-decode-{i}") for i in range(settings.threads)
        ]
        self._threads.append(threading.Thread(target=self._collate, name="forebay-collate"))
        _live.add(self)
        settings.plan.follow(store)
        self._start()

    def _start(self) -> None:
        """Start the threads, those that run torch with one thread of its own: a picture is too small to be divided.

        torch keeps the number for each thread, and the newest one as the default of threads to come: that is put back.
        """
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

    def _limit_torch(self) -> None:
        torch.set_num_threads(1)
        with contextlib.suppress(threading.BrokenBarrierError):  # closed before all had started: all end
            self._limited.wait()

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
        self._settings.plan.close()
        self._batch_work.cancel()
        self._reading.stop()
        self._limited.abort()
        for channel in (self._in_flight, self._fetched, self._work, self._finished, self._ready):
            channel.abandon()
        if first:
            self._store.close()
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join()
        if first:
            self._batch_work.close()
        _live.discard(self)

    def measure(self, *, closed: bool = False) -> None:
        """Bring the meter's counts of bytes and of the store up to now."""
        with self._lock:
            if not self._closed:
                self._meter.count_store(self._store.stats(), closed=closed)
                self._meter.count_decoded(self._batch_work.decoded_stats(), closed=closed)
                counted, self._counted_nbytes = self._counted_nbytes, self._batch_work.read_nbytes
                self._meter.read_nbytes += self._counted_nbytes - counted

    # -- kernel: whole batches of bytes in, pixels in the batch's slot out --------------------------------------------

    def _run_kernel(self) -> None:
        try:
            for batch in self._fetched:
                try:
                    left = self._decode(batch)
                except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                    batch.fail(-1, error)
                    left = []
                if self._closed:
                    return
                self._hand_on(batch, left)
        except ChannelClosed:
            pass
        finally:
            self._leave_lane()

    def _hand_on(self, batch: PendingBatch, left: list[int]) -> None:
        """To those who make what is left, or straight on."""
        if not left:
            self._finished.put(batch)
            return
        chunks = [left[low : low + self._chunk] for low in range(0, len(left), self._chunk)]
        batch.chunks_left = len(chunks)
        for chunk in chunks:
            self._work.put((batch, chunk))

    def _leave_lane(self) -> None:
        with self._lock:
            self._lanes_left -= 1
            last = self._lanes_left == 0
        if last:
            self._work.finish()

    # -- DALI: in the kernel's place -----------------------------------------------------------------------------------

    def _run_dali(self, dali: DaliDecoder) -> None:
        work = self._batch_work
        assert self._settings.plan.largest is not None
        stage = DaliStage(dali, work.rules, work.given, self._settings.plan.largest)
        try:
            with contextlib.closing(stage.run(self._fetched)) as decoded:
                while not self._closed:
                    with self._meter.decode.work_together(self._settings.threads):
                        batch = next(decoded, None)
                    if batch is None:
                        return
                    left = work.decode(batch)
                    self._meter.decode.add(samples=len(batch.rows) - len(left))
                    self._hand_on(batch, left)
        except ChannelClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
            with contextlib.suppress(ChannelClosed, ChannelEnd):
                batch = stage.pending[0] if stage.pending else self._fetched.get()
                batch.fail(-1, error)
                self._finished.put(batch)
        finally:
            self._leave_lane()

    def _decode(self, batch: PendingBatch) -> list[int]:
        if self._settings.decoder != "native":
            return self._batch_work.decode(batch)
        with self._meter.decode.work_together(self._settings.threads):
            left = self._batch_work.decode(batch)
        self._meter.decode.add(samples=len(batch.rows) - len(left))
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
                            self._batch_work.make(batch, i)
                        except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                            batch.fail(i, error)
                with self._lock:
                    batch.chunks_left -= 1
                    last = batch.chunks_left == 0
                if last:
                    self._finished.put(batch)
        except ChannelClosed:
            pass

    # -- collate: whole batches, in order ----------------------------------------------------------------------------

    def _collate(self) -> None:
        self._limit_torch()
        pending: dict[int, PendingBatch] = {}
        error: BaseException | None = None
        try:
            for number in itertools.count():
                while number not in pending:
                    batch = self._finished.get()
                    pending[batch.number] = batch
                batch = pending.pop(number)
                error = batch.failure()
                if batch.is_end or error is not None:
                    break
                delivery = self._deliver(batch)
                del batch  # before the wait: it holds pictures that are stacked already
                self._ready.put(delivery)
                del delivery
        except (ChannelClosed, ChannelEnd):
            return
        except BaseException as raised:  # noqa: BLE001 - raised in the training loop, after what came before
            error = raised
        self._ready.finish(error)

    def _deliver(self, batch: PendingBatch) -> Delivery:
        stream = None if self._copy is None else self._copy.stream
        with self._meter.collate.work(len(batch.rows)), on_stream(stream):
            outputs = self._batch_work.assemble(batch)
            self._reading.learn(nbytes_of(list(outputs.values())))
            copied = None
            if self._copy is None:
                outputs = self._batch_work.finish(batch, outputs)
            else:
                outputs, copied = self._copy.start(
                    self._batch_work.pin(outputs), lambda moved: self._batch_work.finish(batch, moved)
                )
        bad = [batch.bad[i] for i in sorted(batch.bad)]
        return Delivery(
            batch=outputs,
            samples=len(batch.rows),
            bad=bad,
            excess=batch.excess,
            unread_nbytes=batch.unread_nbytes,
            copied=copied,
        )


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
