"""The first stage of the engine for shards: numbers of batches in, raw bytes out.

Batches are planned one after the other, as soon as there is room for them, and read by one thread; from a far source by
several, each a batch: while one waits for its samples, others have asked for theirs. It decodes nothing.
"""

from __future__ import annotations

import contextlib
import threading

from forebay.loader.batch_work import BatchWork
from forebay.loader.channel import Channel, ChannelClosed
from forebay.loader.engine_settings import EngineSettings
from forebay.loader.pending_batch import PendingBatch
from forebay.loader.stats import StageClock
from forebay.sharding import FarSource

__all__ = ["FAR_READERS", "ReadStage"]

FAR_READERS = 3
"""Batches that are read from a far source at once."""


class ReadStage:
    """Reads the batches of one pass. `threads` threads call `run`; batches may be read out of order.

    Args:
        settings: of the pass.
        work: reads them.
        clock: times it.
        in_flight: takes something for each batch, and so says when there is room.
        fetched: where batches go.
        finished: where those go that could not be read, and at last one that says that there are no more.
    """

    def __init__(
        self,
        settings: EngineSettings,
        work: BatchWork,
        clock: StageClock,
        in_flight: Channel[None],
        fetched: Channel[PendingBatch],
        finished: Channel[PendingBatch],
    ) -> None:
        far = isinstance(settings.data.source, FarSource) and settings.decoded is None
        self.threads = min(FAR_READERS, settings.prefetch) if far else 1
        self._numbers = settings.plan.numbers()
        self._unsized = any(program.unsized for program in settings.maker.programs)
        self._work = work
        self._clock = clock
        self._in_flight, self._fetched, self._finished = in_flight, fetched, finished
        self._lock = threading.Lock()
        self._left = self.threads
        self._planning = threading.Lock()
        self._planned = 0
        self._failed = False
        self._batch_nbytes = 0
        self._sized = threading.Event()  # the size of a whole batch is known, or no longer of interest

    def learn(self, nbytes: int) -> None:
        """A whole batch is known to take so many bytes of memory."""
        self._grow(nbytes)
        self._sized.set()

    def _grow(self, nbytes: int) -> None:
        with self._lock:
            self._batch_nbytes = max(self._batch_nbytes, nbytes)

    def stop(self) -> None:
        """Wait for no size any more; whoever calls it abandons the channels too."""
        self._sized.set()

    def run(self) -> None:
        """Read batches until there are no more, or one cannot be read: none after it is begun then."""
        try:
            while not self._failed and (batch := self._plan()) is not None:
                if batch.failure() is None:
                    self._read(batch)
                if batch.failure() is not None:
                    self._failed = True
                    self._finished.put(batch)
                    return
                self._fetched.put(batch)
        except ChannelClosed:
            pass
        finally:
            self._leave()

    def _plan(self) -> PendingBatch | None:
        """The next batch, its samples known and its room taken."""
        with self._planning:
            number = next(self._numbers, None)
            if number is None:
                return None
            self._planned = number + 1
            self._in_flight.put(None, self._batch_nbytes)
            if number == 1 and self._unsized:
                self._sized.wait()
            batch = PendingBatch(number)
            try:
                self._work.plan(batch)
            except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
                batch.fail(-1, error)
            return batch

    def _read(self, batch: PendingBatch) -> None:
        try:
            with self._clock.work_together(1):
                nbytes = self._work.fill(batch)
            self._clock.add(samples=len(batch.rows))
            self._grow(nbytes)
        except BaseException as error:  # noqa: BLE001 - delivered in the batch's turn
            batch.fail(-1, error)

    def _leave(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            with contextlib.suppress(ChannelClosed):
                self._finished.put(PendingBatch(self._planned, is_end=True))
            self._fetched.finish()
