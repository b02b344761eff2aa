"""torch's iterator without workers, with what we add to the data set's calls and with the state of the pass.

Order, seeds and collation are torch's own code.
"""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from forebay.loader.fetch_replacements import BadFetch
from forebay.loader.fetch_samples import FetchSettings, SampleFetcher
from forebay.loader.shared_queue import Delivery
from forebay.loader.stateful_iterable import IterableState, ResumedIterable
from forebay.loader.stateful_passes import Pass, PassIterator
from forebay.loader.worker_iterator import LoaderView

__all__ = ["InProcessIterator"]


class InProcessIterator(PassIterator, _SingleProcessDataLoaderIter):
    """Batches made in this process, when they are asked for.

    Args:
        view: of the loader.
        fetch: how samples are fetched.
        current: the pass that it goes through.
    """

    def __init__(self, view: LoaderView, fetch: FetchSettings, current: Pass) -> None:
        self.current = current
        self._index: Any = None
        self._bad: list[BadFetch] = []
        self._task = 0
        self._fetcher: SampleFetcher | None = None
        self._iterable: ResumedIterable | None = None
        if current.workers is not None and not isinstance(view.dataset, IterDataPipe):
            self._iterable = ResumedIterable(view.dataset, IterableState.parse(current.workers[0]))
            self._iterable.prepare()
        current.sampler.expect_seed()
        super().__init__(LoaderView(view, _index_sampler=current.sampler))
        if self._iterable is not None:
            self._dataset_fetcher.dataset_iter = self._iterable.follow(self._dataset_fetcher.dataset_iter)
        elif fetch.wraps(view.dataset, self._dataset_kind):
            self._fetcher = SampleFetcher(view.dataset, fetch.seeded(current.seeded(self)), self._bad.append)
            self._dataset_fetcher.dataset = self._fetcher

    def _next_index(self) -> Any:
        self._index = super()._next_index()  # type: ignore[no-untyped-call]
        return self._index

    def _next_data(self) -> Any:
        started, before = time.monotonic(), 0 if self._iterable is None else self._iterable.samples
        batch = None
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self.current.ended = True
            self.close()
            raise
        finally:
            if not self.current.ended:
                self._deliver(batch, started, before)
        return batch

    def _deliver(self, batch: Any, started: float, before: int) -> None:
        notes: dict[str, Any] = {"busy_s": time.monotonic() - started, "bad": tuple(self._bad)}
        self._bad.clear()
        if self._iterable is not None:
            notes |= self._iterable.notes(before)
        self.current.delivered(Delivery(self._task, batch, 0, self._index, notes))
        self._task += 1

    def close(self) -> None:
        """End the threads that fetch. Calling it again does nothing."""
        if self._fetcher is not None:
            self._fetcher.close()

    def __del__(self) -> None:
        self.close()
