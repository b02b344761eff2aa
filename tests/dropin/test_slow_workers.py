"""Samples that are slow or never come, and workers that end before the others: order, timeouts, and nobody starved.

A gate of the test's says what is slow; no clock does, except the loader's own timeout.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from forebay import DataLoader
from tests.dropin.same import assert_same_outcome, outcome
from tests.dropin.samples import Numbers

Make = Callable[..., Any]


class Hangs(Numbers):
    """Sample 5 never comes."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            time.sleep(1000)
        return index


def test_a_data_set_that_hangs_runs_into_the_timeout_and_the_worker_is_ended() -> None:
    def use(make: Make) -> Any:
        return list(make(Hangs(12), 3, num_workers=1, timeout=1))

    error = outcome(use, DataLoader).error
    assert isinstance(error, RuntimeError)
    assert str(error) == "DataLoader timed out after 1 seconds"
    gc.collect()  # since Python 3.13 the error's frames keep the iterator alive, torch's as well
    assert not multiprocessing.active_children()


class Slow(Numbers):
    """Sample 0 takes as long as worker 1 needs for all that it may make ahead."""

    gate: Any = multiprocessing.get_context("fork").Semaphore(0)

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            for _ in range(2):
                assert self.gate.acquire(timeout=60)
        elif index % 2:
            self.gate.release()
        return index


def test_one_slow_sample_changes_no_order_and_starves_nobody() -> None:
    while Slow.gate.acquire(block=False):
        pass
    loader = DataLoader(Slow(20), None, num_workers=2, timeout=60)
    assert list(loader) == list(range(20))


def test_a_worker_that_ends_early_leaves_its_share_to_nobody_and_the_others_go_on() -> None:
    class Uneven(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            info: Any = get_worker_info()
            return iter(range(100 * info.id, 100 * info.id + (1 if info.id == 0 else 9)))

    def use(make: Make) -> Any:
        return list(make(Uneven(), 2, num_workers=2))

    batches = assert_same_outcome(use)
    assert [batch.tolist() for batch in batches] == [[0], [100, 101], [102, 103], [104, 105], [106, 107], [108]]
