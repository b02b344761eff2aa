"""Loops left early, iterators dropped, loaders rebuilt: no process, thread, descriptor or shared memory stays behind.

And the next pass begins at its beginning.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from forebay import DataLoader
from tests.dropin.same import assert_same_outcome, read
from tests.dropin.samples import Augmented, Numbers, Split

Make = Callable[..., Any]


def left() -> tuple[int, int, list[Any]]:
    return len(os.listdir("/proc/self/fd")), threading.active_count(), multiprocessing.active_children()


@pytest.mark.parametrize("data", [Numbers(1000, 3000), Split(1000)])
def test_iterators_dropped_forty_times_over_leave_nothing(data: Any) -> None:
    next(iter(DataLoader(data, 4, num_workers=1)))
    gc.collect()
    before = left()
    for taken in itertools.chain.from_iterable(itertools.repeat(range(4), 10)):
        iterator = iter(DataLoader(data, 4, num_workers=1))
        for _ in range(taken):
            next(iterator)
        del iterator
    gc.collect()
    assert left() == before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", [Augmented(24), Split(24)])
def test_after_a_break_the_next_epoch_is_torch_s(workers: int, persistent: bool, data: Any) -> None:
    """A break with batches in flight, twice, then two whole epochs: none repeated, none from the middle."""

    def use(make: Make) -> Any:
        loader = make(data, 3, num_workers=workers, persistent_workers=persistent and workers > 0)
        seen = []
        for stop in (2, 1):
            for i, batch in enumerate(loader):
                if i == stop:
                    break
                seen.append(batch)
        seen.extend(read(loader, 2))
        loader._iterator = None
        return seen

    *_, last = assert_same_outcome(use)
    assert len(last) == 8


def test_an_exception_in_the_loop_s_body_ends_the_workers() -> None:
    def fail(batch: Any) -> None:
        raise LookupError(str(batch))

    def loop() -> None:
        for batch in DataLoader(Numbers(100), 4, num_workers=2):
            fail(batch)

    try:
        loop()
    except LookupError as error:
        error.with_traceback(None)
    gc.collect()
    assert not multiprocessing.active_children()


def test_iterators_that_end_in_another_thread_leave_nothing() -> None:
    loader = DataLoader(Numbers(40), 4, num_workers=1)
    iterator = iter(loader)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(int(x) for batch in iterator for x in batch))
    thread.start()
    thread.join()
    assert got == list(range(40))
    assert not multiprocessing.active_children()


def test_a_loader_inside_a_reference_cycle_is_collected_with_its_workers() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.loader = DataLoader(Numbers(40), 4, num_workers=1, persistent_workers=True)
            self.iterator = iter(self.loader)
            self.me = self

    trainer = Trainer()
    next(trainer.iterator)
    del trainer
    gc.collect()
    assert not multiprocessing.active_children()
