"""Errors of the user's code in a worker: type, traceback and place come through, and the pass goes on as with torch.

Deaths of processes, and samples that never come, are tested elsewhere.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from forebay import DataLoader
from tests.dropin.same import LOADERS, assert_same, assert_same_outcome, forget, outcome
from tests.dropin.samples import Listed, Numbers, as_is

Make = Callable[..., Any]


class TwoArgumentsError(Exception):
    """One that cannot be made from a message alone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)


class ByNameError(Exception):
    """One whose arguments have names only."""

    def __init__(self, *, path: str) -> None:
        super().__init__(path)


class NoArgumentsError(Exception):
    """One that takes none."""

    def __init__(self) -> None:
        super().__init__("fixed words")


class UnprintableError(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Raises(Numbers):
    """Sample 5 raises."""

    def __init__(self, error: BaseException, count: int = 12) -> None:
        super().__init__(count)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise self.error
        return super().__getitem__(index)


ERRORS = [
    ValueError("a value"),
    KeyError("a key"),
    IndexError("an index"),
    TwoArgumentsError(3, "why"),
    ByNameError(path="/nowhere"),
    NoArgumentsError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    FileNotFoundError(2, "No such file", "/nowhere"),
    StopIteration("early"),
    StopAsyncIteration("early"),
    AssertionError(),
    MemoryError("too much"),
    NotImplementedError("later"),
    TimeoutError("slow"),
    EOFError("short"),
    ConnectionResetError(104, "reset"),
    BrokenPipeError(32, "broken"),
    UserWarning("a warning raised"),
    GeneratorExit(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_comes_through_as_with_torch_whatever_its_constructor(error: BaseException, workers: int) -> None:
    if isinstance(error, (StopIteration, GeneratorExit)):
        workers = 0

    def use(make: Make) -> Any:
        try:
            return list(make(Raises(error), 3, num_workers=workers))
        except GeneratorExit:
            return "left"

    expected, ours = (outcome(use, make) for make in LOADERS)
    assert type(ours.error) is type(expected.error)
    assert_same(expected.value, ours.value)
    if workers:
        assert isinstance(ours.error, Exception)
        assert f"Caught {type(error).__name__} in DataLoader worker process 0" in str(ours.error)
        assert re.search(
            r'(?s)Traceback.*test_worker_errors\.py", line \d+, in __getitem__.*raise self\.error', str(ours.error)
        )


def test_a_stop_iteration_of_a_map_style_set_ends_the_pass_from_workers_too() -> None:
    """It is what torch does, in the worker and without: the rest of the epoch is not read, and nobody says so."""
    for workers in (0, 1):
        batches = list(DataLoader(Raises(StopIteration("early")), 3, num_workers=workers))
        assert [batch.flatten().tolist() for batch in batches] == [[0, 1, 2]]
        gc.collect()


def test_an_error_that_cannot_be_printed_is_an_error_not_a_hang() -> None:
    def use(make: Make) -> Any:
        return list(make(Raises(UnprintableError()), 3, num_workers=1, timeout=60))

    error = outcome(use, DataLoader).error
    assert isinstance(error, Exception)
    assert "timed out" not in str(type(error))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("in_order", [True, False])
def test_after_an_error_the_next_batch_comes(workers: int, in_order: bool) -> None:
    def use(make: Make) -> Any:
        iterator = iter(make(Raises(ValueError("bad")), 2, num_workers=workers, in_order=in_order))
        got: list[Any] = []
        for _ in range(6):
            try:
                got.append(next(iterator).flatten().tolist())
            except ValueError as error:
                got.append(str(type(forget(error))))
        with pytest.raises(StopIteration):
            next(iterator)
        return got if in_order else sorted(map(str, got))

    got = assert_same_outcome(use)
    assert str(ValueError) in got
    assert len(got) == 6


def test_an_error_is_raised_in_its_place() -> None:
    iterator = iter(DataLoader(Raises(ValueError("bad")), 2, num_workers=2))
    assert [next(iterator).flatten().tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    assert len(list(iterator)) == 3


def broken(batch: Any) -> Any:
    raise LookupError("cannot collate")


def test_an_error_of_collate_fn_is_told_as_the_data_set_s_are() -> None:
    def use(make: Make) -> Any:
        return list(make(Numbers(4), 2, num_workers=1, collate_fn=broken))

    assert_same_outcome(use)
    error = outcome(use, DataLoader).error
    assert "cannot collate" in str(error)
    assert "in broken" in str(error)


class Breaks(IterableDataset[Any]):
    """Raises after three samples, or at once."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def __iter__(self) -> Iterator[Any]:
        if self.at_once:
            raise LookupError("cannot begin")
        return self.samples()

    def samples(self) -> Iterator[Any]:
        yield from range(3)
        raise LookupError("cannot go on")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_of_a_stream_ends_it_as_with_torch(at_once: bool, workers: int) -> None:
    def use(make: Make) -> Any:
        got: list[Any] = []
        iterator = iter(make(Breaks(at_once), None, num_workers=workers))
        for _ in range(8):
            try:
                got.append(next(iterator))
            except LookupError as error:
                got.append(type(forget(error)))
            except StopIteration:
                got.append("end")
        return got

    assert_same_outcome(use)


class Unpicklable(Numbers):
    """Sample 5 is something that goes to no other process."""

    def __getitem__(self, index: int) -> Any:
        return (lambda: index) if index == 5 else index


def test_a_batch_that_cannot_be_sent_is_an_error_within_the_timeout(capfd: pytest.CaptureFixture[str]) -> None:
    """torch's queue drops such a batch, prints why, and its loop waits for it: hence the timeout."""

    def use(make: Make) -> Any:
        return list(make(Unpicklable(12), 3, num_workers=1, collate_fn=as_is, timeout=5))

    error = outcome(use, DataLoader).error
    assert isinstance(error, (RuntimeError, AttributeError, TypeError))
    assert "lambda" in str(error) + capfd.readouterr().err


def test_a_shape_that_does_not_fit_is_an_error_that_shows_both_and_where() -> None:
    samples = [torch.zeros(3)] * 5 + [torch.zeros(4)]

    def use(make: Make) -> Any:
        return list(make(Listed(samples), 3, num_workers=2))

    error = outcome(use, DataLoader).error
    assert isinstance(error, RuntimeError)
    assert re.search(r"(?s)in DataLoader worker process 1.*\[3\] at entry 0 and \[4\] at entry 2", str(error))
