"""The shards of one data set behind a cache: found, fetched ahead, or read past it.

It brings the plan, the folder and the source together; what goes and what stays is decided in `plan.py`, who may have
room in `folder.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence

from forebay.cache.advice import warn_of_size, warn_of_window
from forebay.cache.cached_reader import CachedReader
from forebay.cache.fetch import fetch_shard
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.folders import CacheFolders
from forebay.cache.future import Order
from forebay.cache.lookahead import Lookahead, shards_soon
from forebay.cache.plan import fitting_window
from forebay.cache.reservation import PART
from forebay.cache.store import new_counts
from forebay.cache.verification import check_copy
from forebay.errors import ClosedError, ShardCorruptError, SourceError
from forebay.sharding import ShardReader, ShardSpan, StoredDataset

__all__ = ["CachedStore"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""How often to look whether another process's fetch is done: files are all that processes tell each other."""
ROUNDS = 3
"""How often a shard may be evicted by others between its arrival and its opening before it is read in place."""

log = logging.getLogger(__name__)


class CachedStore:
    """Conforms to `ShardStore`. Threads, which `follow` starts, fetch ahead in order of first use.

    One lock guards the plan and the counts. It is never held while the folder's lock is waited for, nor during a fetch;
    the folder's lock is taken first and this one inside it, for the moment of reading the plan. A thread that wants a
    shard which another thread of the store is fetching waits for that thread; a shard that another process is fetching
    is looked for as long as its file grows. Nobody waits for room: what does not fit is read past the cache. So there
    is no cycle of waiting, and a process that was stopped stops nobody else.

    `close` sets the stop event, which ends copies after the current piece and waits for locks at once, wakes all, joins
    the threads, and waits until fetches of calling threads have given their room back.
    """

    def __init__(
        self, folders: CacheFolders, data: StoredDataset, columns: Sequence[str] | None, *, fetch_threads: int
    ) -> None:
        self._folders = folders
        self._data = data
        self._columns = columns
        self._fetch_threads = fetch_threads
        self._process = os.getpid()
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._plan = Lookahead(None, 0, soon=0)
        self._order: Order | None = None
        self._in_hand: dict[int, int] = {}  # shards that a thread of this store is fetching, and which thread
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._counts = new_counts()
        self._readers = folders.enter(data, stop=self._stop)

    # -- the loader's side -------------------------------------------------------------------------------------------

    def open_shard(self, shard: int) -> ShardReader:
        """See `ShardStore.open_shard`."""
        started = time.monotonic()
        try:
            with self._condition:
                self._check_usable()
            reader = self._resident(shard)
            with self._condition:
                self._counts["hits" if reader is not None else "misses"] += 1
            return reader or self._fetched(shard) or self._in_place(shard)
        finally:
            with self._condition:
                self._counts["wait_s"] += time.monotonic() - started

    def follow(self, order: Order, start: int = 0) -> None:
        """See `ShardStore.follow`. Starts the threads at the first call."""
        if order is not self._order:
            self._folders.follow(self._readers, order, start, stop=self._stop)
            self._order = order
        fits = fitting_window(self._folders.budget, self._data.shard_nbytes)
        plan = Lookahead(order, start, soon=shards_soon(fits, self._fetch_threads))
        with self._condition:
            self._check_usable()
            self._plan = plan
            _live.add(self)
            while len(self._threads) < self._fetch_threads:
                thread = threading.Thread(target=self._fetch_ahead, name=f"forebay-fetch-{len(self._threads)}")
                thread.start()
                self._threads.append(thread)
            self._condition.notify_all()

    def advance(self, position: int) -> None:
        """See `ShardStore.advance`. Never blocks for longer than a lookup."""
        for reader in self._readers:
            reader.advance(position)
        with self._condition:
            if self._plan.advance(position):
                self._condition.notify_all()

    def stats(self) -> dict[str, int | float]:
        """See `ShardStore.stats`."""
        with self._condition:
            return dict(self._counts)

    def close(self) -> None:
        """See `ShardStore.close`. Does nothing in a forked child: threads and locks are the parent's."""
        if os.getpid() != self._process:
            return
        with self._condition:
            self._stop.set()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()
        mine = threading.get_ident()  # a signal handler may close what its own thread was fetching through
        with self._condition:
            self._condition.wait_for(lambda: all(owner == mine for owner in self._in_hand.values()))
        for reader in self._readers:
            reader.close()
        _live.discard(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._stop.is_set()

    def _check_usable(self) -> None:
        if self._stop.is_set():
            raise ClosedError(f"a shard of {self._data.name} was wanted after the store was closed")
        if self._failure is not None:
            raise self._failure

    # -- three ways to a reader --------------------------------------------------------------------------------------

    def _resident(self, shard: int) -> ShardReader | None:
        """A reader over the cache's copy; None when there is none, or none worth keeping."""
        data, name = self._data, self._data.shard_name(shard)
        folder = self._folders.home(data.fingerprint, name)
        file = folder.open_shard(data.fingerprint, name)
        if file is None:
            return None

        def give_up_copy(error: ShardCorruptError) -> ShardReader:
            what = str(error).partition(";")[0]  # not the error itself: a kept log would keep its frames and the map
            log.warning("the cache's copy %s is damaged and removed, its source is read instead: %s", file.name, what)
            self._drop(folder, name)
            return data.open_shard(shard, self._columns)

        try:
            check_copy(data, shard, file, self._folders.config.verify)
            return CachedReader(data.reader(shard, file, self._columns), give_up_copy)
        except ShardCorruptError as error:
            what = str(error).partition(";")[0]
            log.warning("the cache's copy %s is damaged and removed: %s", file.name, what)
            self._drop(folder, name)
            return None

    def _drop(self, folder: CacheFolder, name: str) -> None:
        folder.remove(self._data.fingerprint, name)
        with self._condition:
            self._counts["corrupt"] += 1

    def _fetched(self, shard: int) -> ShardReader | None:
        """A reader over a copy that this thread, another or another process fetches now; None: there will be none."""
        rounds = 0
        pause_s = FIRST_PAUSE_S
        while rounds < ROUNDS:
            with self._condition:
                self._condition.wait_for(lambda: shard not in self._in_hand or self._stop.is_set())
                self._check_usable()
                self._in_hand[shard] = threading.get_ident()
            try:
                refusal = self._fetch(shard, far=False)
            finally:
                self._let_go(shard)
            if refusal is Refusal.NO_ROOM:
                self._warn_of_window(shard)
                return None
            if refusal is Refusal.STALLED:
                return None
            if refusal is Refusal.BUSY:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            reader = self._resident(shard)
            if reader is not None:
                return reader
            rounds += 1
        return None

    def _in_place(self, shard: int) -> ShardReader:
        with self._condition:
            self._plan.pass_by(shard)
            self._counts["bypassed"] += 1
        return self._data.open_shard(shard, self._columns)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, shard: int, *, far: bool) -> Refusal | None:
        """Fetch a shard; None when it was fetched, or why it was not.

        Raises:
            ShardCorruptError, SourceError: as `fetch_shard`.
            CacheError: the folder cannot be used.
            ClosedError: the store was closed.
        """
        data, nbytes = self._data, int(self._data.shard_nbytes[shard])
        name = data.shard_name(shard)
        folder = self._folders.home(data.fingerprint, name)
        if nbytes > folder.budget:
            warn_of_size(data, shard, folder.budget)
            return Refusal.NO_ROOM
        if name.endswith(PART):  # it would look unfinished
            return Refusal.NO_ROOM
        refusal, evicted = fetch_shard(folder, data, shard, far=far, stop=self._stop)
        with self._condition:
            self._counts["evicted"] += evicted
            if refusal is None:
                self._counts["fetched"] += 1
                self._counts["fetched_nbytes"] += nbytes
        return refusal

    def _fetch_ahead(self) -> None:
        """What the store's threads do. Their end is an error that the next `open_shard` raises, or `close`."""
        try:
            while (taken := self._take()) is not None:
                plan, span, soon = taken
                refusal, failed = None, False
                try:
                    refusal = self._fetch(span.shard, far=not soon)
                except SourceError as error:  # not yet wanted: whoever opens the shard tries again, and raises
                    log.debug("fetching shard %d of %s ahead failed: %s", span.shard, self._data.name, str(error))
                    failed = True
                finally:
                    self._let_go(span.shard)
                with self._condition:
                    if failed:
                        plan.pause()
                    elif refusal is Refusal.NO_ROOM:
                        plan.hold(span)
        except BaseException as error:  # noqa: BLE001 - delivered to whoever opens a shard next
            with self._condition:
                if not self._stop.is_set():
                    self._failure = error
                    self._condition.notify_all()

    def _take(self) -> tuple[Lookahead, ShardSpan, bool] | None:
        """Wait for a shard to fetch ahead and take it in hand; None when the store was closed."""
        with self._condition:
            while not self._stop.is_set():
                span = self._plan.take()
                if span is None:
                    self._condition.wait()
                elif span.shard not in self._in_hand:
                    self._in_hand[span.shard] = threading.get_ident()
                    return self._plan, span, self._plan.is_soon(span)
            return None

    def _let_go(self, shard: int) -> None:
        with self._condition:
            self._in_hand.pop(shard, None)
            self._condition.notify_all()

    def _warn_of_window(self, shard: int) -> None:
        """Say, once, that there was no room for a shard because the shuffle window does not fit in the budget."""
        data, budget = self._data, self._folders.budget
        if data.shard_nbytes[shard] > budget:  # it would not fit if it were alone
            return
        with self._condition:
            in_use = self._plan.in_use(data.num_shards)
        warn_of_window(data, in_use, budget)


_live: weakref.WeakSet[CachedStore] = weakref.WeakSet()  # stores with threads


def _close_all() -> None:
    """Close what a script left open, before the interpreter waits for its threads: see `loader/engine.py`."""
    for store in list(_live):
        store.close()


threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # in no stub, used by concurrent.futures alike
os.register_at_fork(after_in_child=_live.clear)
