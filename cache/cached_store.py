"""The shards of one data set behind a cache: found, fetched ahead, or read past it.

It brings the plan, the folder and the source together; what goes and what stays is decided in `plan.py`, who may have
room in `folder.py`.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from forebay.cache.advice import warn_of_size, warn_of_window
from forebay.cache.awaited_file import AwaitedFile
from forebay.cache.cached_reader import CachedReader
from forebay.cache.fetch import ShardFetch, begin_fetch
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.folders import CacheFolders
from forebay.cache.future import Order
from forebay.cache.growing_file import GrowingFile
from forebay.cache.interrupts import Interrupts
from forebay.cache.lookahead import Lookahead, shards_soon
from forebay.cache.plan import fitting_window
from forebay.cache.remote_source import FarFetcher, RemoteFile, RemoteSource
from forebay.cache.reservation import PART
from forebay.cache.store import new_counts
from forebay.cache.verification import check_copy
from forebay.errors import ClosedError, ShardCorruptError, SourceError
from forebay.sharding import FarFile, NodeOrder, ShardReader, ShardSpan, SourceFile, StoredDataset

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
        self._stop = Interrupts(f"the cache of {data.name}")
        self._plan = Lookahead(None, 0, soon=0)
        self._order: Order | None = None
        self._in_hand: dict[int, int] = {}  # shards that a thread of this store is fetching, and which thread
        self._growing: dict[int, ShardFetch] = {}  # shards of a far source that have room and are not whole
        self._wanted: deque[int] = deque()  # those of them that were opened before a thread took them in hand
        self._fetcher: FarFetcher | None = None
        if isinstance(data.source, RemoteSource):
            self._fetcher = data.source.for_store(self._stop)
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._counts = new_counts()
        self._readers = folders.enter(data, stop=self._stop)

    # -- the loader's side -------------------------------------------------------------------------------------------

    def open_shard(self, shard: int) -> ShardReader:
        """See `ShardStore.open_shard`."""
        return self.open_shards([shard])[0]

    def open_shards(self, shards: Sequence[int]) -> list[ShardReader]:
        """See `ShardStore.open_shards`."""
        started = time.monotonic()
        readers: dict[int, ShardReader] = {}
        try:
            with self._condition:
                self._check_usable()
            for shard in shards:
                if (reader := self._resident(shard)) is not None:
                    readers[shard] = reader
            misses = [shard for shard in shards if shard not in readers]
            with self._condition:
                self._counts["hits"] += len(shards) - len(misses)
                self._counts["misses"] += len(misses)
            self._open_misses(misses, readers)
        except BaseException:
            for reader in readers.values():
                reader.close()
            raise
        finally:
            with self._condition:
                self._counts["wait_s"] += time.monotonic() - started
        return [readers[shard] for shard in shards]

    def _open_misses(self, shards: Sequence[int], readers: dict[int, ShardReader]) -> None:
        """Open shards that are not here, far ones together, and put them into `readers`."""
        far: dict[int, SourceFile] = {}
        try:
            for shard in shards:
                kept = not self._of_another_node(shard)
                far_ahead = kept and self._fetcher is not None and bool(self._threads)
                if far_ahead and (file := self._growing_file(shard)) is not None:
                    far[shard] = file
                elif kept and (reader := self._fetched(shard)) is not None:
                    readers[shard] = reader
                else:
                    file = self._in_place(shard)
                    if isinstance(file, FarFile):
                        far[shard] = file
                    else:
                        readers[shard] = self._data.reader(shard, file, self._columns)
        except BaseException:
            for file in far.values():
                file.close()
            raise
        readers.update(zip(far, self._data.readers(list(far), list(far.values()), self._columns), strict=True))

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
            counts = dict(self._counts)
        return counts if self._fetcher is None else counts | self._fetcher.traffic.counts()

    def close(self) -> None:
        """See `ShardStore.close`. Does nothing in a forked child: threads and locks are the parent's."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        with self._condition:
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()
        mine = threading.get_ident()  # a signal handler may close what its own thread was fetching through
        with self._condition:
            self._condition.wait_for(lambda: all(owner == mine for owner in self._in_hand.values()))
            left = list(self._growing.values())
            self._growing.clear()
        for fetch in left:
            fetch.give_up()
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
            return data.readers([shard], [self._source_file(shard)], self._columns)[0]

        try:
            check_copy(data, shard, file, self._folders.config.verify)
            return CachedReader(data.reader(shard, file, self._columns), give_up_copy)
        except ShardCorruptError as error:
            what = str(error).partition(";")[0]
            log.warning("the cache's copy %s is damaged and removed: %s", file.name, what)
            self._drop(folder, name)
            return None

    def _of_another_node(self, shard: int) -> bool:
        """Whether the cache of another node keeps a shard, of which this node reads a few samples at most."""
        return isinstance(self._order, NodeOrder) and not self._order.owns(np.array([shard]))[0]

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

    def _in_place(self, shard: int) -> SourceFile:
        with self._condition:
            self._plan.pass_by(shard)
            self._counts["bypassed"] += 1
        return self._source_file(shard)

    def _source_file(self, shard: int) -> SourceFile:
        if self._fetcher is None:
            return self._data.open_file(shard)
        return RemoteFile(self._fetcher, self._data.shard_name(shard), int(self._data.shard_nbytes[shard]))

    def _growing_file(self, shard: int) -> SourceFile | None:
        """A far shard that is readable while it comes; begun now, if need be. None: some other way is needed.

        Its own bytes are asked for as they are read; the threads bring the rest, before what they fetch ahead.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: shard in self._growing or shard not in self._in_hand or self._stop.is_set()
            )
            self._check_usable()
            if (file := self._held(shard)) is not None:
                return file
            self._in_hand[shard] = threading.get_ident()
        try:
            fetch = self._begin(shard, far=False)
            if fetch is Refusal.BUSY:
                return self._awaited(shard)
            if isinstance(fetch, Refusal):
                return None
            with self._condition:
                self._growing[shard] = fetch
                self._wanted.append(shard)
                return self._held(shard)
        finally:
            self._let_go(shard)

    def _awaited(self, shard: int) -> SourceFile | None:
        """A shard that another process, or another store, is fetching: nobody waits for the whole."""
        if self._fetcher is None:
            return None
        data, nbytes = self._data, int(self._data.shard_nbytes[shard])
        name = data.shard_name(shard)
        look = functools.partial(self._folders.home(data.fingerprint, name).open_shard, data.fingerprint, name)
        return AwaitedFile(self._fetcher, name, nbytes, look)

    def _held(self, shard: int) -> SourceFile | None:
        """A hold of a growing shard; under the lock."""
        fetch = self._growing.get(shard)
        if fetch is None or fetch.growing is None or self._fetcher is None:
            return None
        return GrowingFile(fetch.growing, self._fetcher)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _begin(self, shard: int, *, far: bool) -> ShardFetch | Refusal:
        """Make room for a shard, or say why there is none.

        Raises:
            CacheError, ClosedError: as `begin_fetch`.
        """
        data, nbytes = self._data, int(self._data.shard_nbytes[shard])
        name = data.shard_name(shard)
        folder = self._folders.home(data.fingerprint, name)
        if nbytes > folder.budget:
            warn_of_size(data, shard, folder.budget)
            return Refusal.NO_ROOM
        if name.endswith(PART):  # it would look unfinished
            return Refusal.NO_ROOM
        fetch, evicted = begin_fetch(folder, data, shard, fetcher=self._fetcher, far=far, stop=self._stop)
        with self._condition:
            self._counts["evicted"] += evicted
        return fetch

    def _fetch(self, shard: int, *, far: bool) -> Refusal | None:
        """Fetch a shard; None when it was fetched, or why it was not.

        Raises:
            ShardCorruptError, SourceError: as `ShardFetch.run`.
            CacheError: the folder cannot be used.
            ClosedError: the store was closed.
        """
        with self._condition:
            begun = self._growing.get(shard)
        if begun is None:
            fetch = self._begin(shard, far=far)
            if isinstance(fetch, Refusal):
                return fetch
            if fetch.growing is not None:
                with self._condition:
                    self._growing[shard] = fetch
                    self._condition.notify_all()
        else:
            fetch = begun
        try:
            refusal = fetch.run(self._stop)
        finally:
            with self._condition:
                self._growing.pop(shard, None)
            fetch.give_up()
        if refusal is None:
            with self._condition:
                self._counts["fetched"] += 1
                self._counts["fetched_nbytes"] += int(self._data.shard_nbytes[shard])
        return refusal

    def _fetch_ahead(self) -> None:
        """What the store's threads do. Their end is an error that the next `open_shard` raises, or `close`."""
        try:
            while (taken := self._take()) is not None:
                plan, shard, span, soon = taken
                refusal, failed = None, False
                try:
                    refusal = self._fetch(shard, far=not soon)
                except SourceError as error:  # not yet wanted: whoever opens the shard tries again, and raises
                    log.debug("fetching shard %d of %s ahead failed: %s", shard, self._data.name, str(error))
                    failed = True
                finally:
                    self._let_go(shard)
                with self._condition:
                    if failed:
                        plan.pause()
                    elif refusal is Refusal.NO_ROOM and span is not None:
                        plan.hold(span)
        except BaseException as error:  # noqa: BLE001 - delivered to whoever opens a shard next
            with self._condition:
                if not self._stop.is_set():
                    self._failure = error
                    self._condition.notify_all()

    def _take(self) -> tuple[Lookahead, int, ShardSpan | None, bool] | None:
        """Wait for a shard to fetch and take it in hand: first those that are being read, then those ahead, by plan.

        Returns:
            The plan, the shard, its span when it lies ahead, and whether it is wanted soon; None: the store was closed.
        """
        with self._condition:
            while not self._stop.is_set():
                while self._wanted:
                    shard = self._wanted.popleft()
                    if shard in self._growing and shard not in self._in_hand:
                        self._in_hand[shard] = threading.get_ident()
                        return self._plan, shard, None, True
                span = self._plan.take()
                if span is None:
                    self._condition.wait()
                elif span.shard not in self._in_hand:
                    self._in_hand[span.shard] = threading.get_ident()
                    return self._plan, span.shard, span, self._plan.is_soon(span)
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
