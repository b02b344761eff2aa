"""Batches made by threads of this process, in torch's order, for data sets that release the GIL or cannot be pickled.

Which samples form which batch is torch's own code; when and by which thread is decided here.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from forebay.errors import ClosedError
from forebay.loader.fetch_replacements import BadFetch
from forebay.loader.fetch_samples import FetchSettings, SampleFetcher
from forebay.loader.shared_queue import Delivery
from forebay.loader.stateful_iterable import IterableState, ResumedIterable
from forebay.loader.stateful_passes import Pass, PassIterator
from forebay.loader.worker_iterator import LoaderView

__all__ = ["ThreadIterator"]


class _Stopped(BaseException):
    """Ends a thread's work on a batch that nobody waits for. Not an `Exception`: no data set is to catch it."""


class _Work:
    """What the threads of one iterator do: fetch and collate one batch after the other, until told to stop."""

    def __init__(self, iterator: ThreadIterator, view: LoaderView, fetch: FetchSettings, current: Pass) -> None:
        self.stopped = False
        """Set to have the threads stop at their next sample."""
        self._pin_memory = iterator._pin_memory
        self._device = iterator._pin_memory_device
        self._kind = iterator._dataset_kind
        self._dataset = view.dataset
        self._settings = (view._auto_collation, view.collate_fn, view.drop_last)
        self._fetch = fetch.seeded(current.seeded(iterator))
        self._seen = weakref.WeakSet[SampleFetcher]()
        self._local = threading.local()
        self._iterable: ResumedIterable | None = None
        self._stream: Any = None
        if current.workers is not None:
            if not isinstance(view.dataset, IterDataPipe):
                self._iterable = ResumedIterable(view.dataset, IterableState.parse(current.workers[0]))
            self._stream = self._fetcher(self._dataset if self._iterable is None else self._iterable)

    def _fetcher(self, dataset: Any) -> Any:
        return _DatasetKind.create_fetcher(self._kind, dataset, *self._settings)  # type: ignore[no-untyped-call]

    def __call__(self, task: int, index: Any) -> Delivery:
        """Make one batch. An iterable data set has one thread."""
        started, bad, notes = time.monotonic(), [], {}  # type: ignore[var-annotated]
        self._check()
        if self._stream is not None:
            before = 0 if self._iterable is None else self._iterable.samples
            batch = self._stream.fetch(index)
            if self._iterable is not None:
                notes = self._iterable.notes(before)
        else:
            batch, bad = self._fetch_map(index)
        if self._pin_memory:
            batch = pin_memory(batch, self._device)  # type: ignore[no-untyped-call]
        return Delivery(task, batch, 0, index, {"busy_s": time.monotonic() - started, "bad": bad, **notes})

    def _fetch_map(self, index: Any) -> tuple[Any, list[BadFetch]]:
        local = self._local
        if "fetcher" not in local.__dict__:
            local.bad = []
            local.samples = SampleFetcher(_Stoppable(self._dataset, self._check), self._fetch, local.bad.append)
            local.fetcher = self._fetcher(local.samples if self._fetch.wraps(self._dataset, 0) else self._dataset)
            self._seen.add(local.samples)
        local.bad.clear()
        batch = local.fetcher.fetch(index)
        return batch, list(local.bad)

    def _check(self) -> None:
        if self.stopped:
            raise _Stopped

    def close_fetchers(self) -> None:
        """End the threads within batches; nobody fetches any more."""
        for fetcher in list(self._seen):
            fetcher.close()


class _Stoppable:
    """A data set that raises once the loader is closed, so that no batch is finished for nobody."""

    def __init__(self, dataset: Any, check: Any) -> None:
        self._dataset = dataset
        self._check = check
        many = getattr(dataset, "__getitems__", None)
        if many:
            self.__getitems__ = many

    def __getitem__(self, index: Any) -> Any:
        self._check()
        return self._dataset[index]


_Started = tuple[int, Any, concurrent.futures.Future[Delivery]]
"""Number and indices of a batch that is made, or waits to be."""


class ThreadIterator(PassIterator, _BaseDataLoaderIter):
    """Batches made by threads. Closes when it ends, fails to come in time, is closed, or is no longer referenced.

    Args:
        view: of the loader.
        fetch: how samples are fetched.
        current: the pass that it begins with.
    """

    def __init__(self, view: LoaderView, fetch: FetchSettings, current: Pass) -> None:
        current.sampler.expect_seed()
        super().__init__(LoaderView(view, _index_sampler=current.sampler))  # type: ignore[arg-type]
        self.current = current
        self._ahead = view.prefetch_factor * view.num_workers
        self._in_order = view.in_order
        self._threads = view.num_workers if current.workers is None else 1
        self._fetch = fetch
        self._started: collections.deque[_Started] = collections.deque()
        self._open(view)

    def _open(self, view: LoaderView) -> None:
        self._tasks = itertools.count()
        work = _Work(self, view, self._fetch, self.current)
        pool = concurrent.futures.ThreadPoolExecutor(self._threads, "forebay-worker")
        self._work, self._pool = work, pool
        self._finalizer = weakref.finalize(self, _close, work, pool)
        self._finalizer.atexit = False
        _open_work.add(work)
        self._fill()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self.close()
        self._started.clear()
        self._fetch = replace(self._fetch, epoch=self.current.epoch)
        self._open(LoaderView(loader))

    def _fill(self) -> None:
        while len(self._started) < self._ahead:
            try:
                index = self._next_index()  # type: ignore[no-untyped-call]
            except StopIteration:
                return
            task = next(self._tasks)
            self._started.append((task, index, self._pool.submit(self._work, task, index)))

    def _next_data(self) -> Any:
        if not self._started:
            return self._end()
        if not self._finalizer.alive:
            raise ClosedError("this iterator was closed; iter(loader) begins the next epoch")
        ready = self._first_ready()
        if ready is None:
            self._finalizer.detach()
            self._work.stopped = True
            self._pool.shutdown(wait=False, cancel_futures=True)  # the thread that hangs cannot be waited for
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        self._started.remove(ready)
        task, index, future = ready
        error = future.exception()
        if isinstance(error, StopIteration) and self.current.workers is not None:
            return self._end()
        self._fill()
        delivery = future.result() if error is None else Delivery(task, None, 0, index)
        self.current.delivered(delivery)
        if error is not None:
            raise error
        return delivery.batch

    def _first_ready(self) -> _Started | None:
        waiting = [self._started[0]] if self._in_order else list(self._started)
        done, _ = concurrent.futures.wait(
            [future for _, _, future in waiting], self._timeout or None, concurrent.futures.FIRST_COMPLETED
        )
        return next((started for started in waiting if started[2] in done), None)

    def _end(self) -> Iterator[Any]:
        self.current.ended = True
        self.close()
        self._started.clear()
        raise StopIteration

    def close(self) -> None:
        """End the threads, which stop at the next sample. Calling it again does nothing."""
        self._finalizer()


def _close(work: _Work, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    work.stopped = True
    pool.shutdown(wait=True, cancel_futures=True)
    work.close_fetchers()


_open_work: weakref.WeakSet[_Work] = weakref.WeakSet()


def _stop_all() -> None:
    """At exit the pool's threads are joined; they should not finish what they have in hand for nobody."""
    for work in list(_open_work):
        work.stopped = True


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # in no stub
