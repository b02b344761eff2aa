"""The order's native part gives what numpy gives, of every input, and reads and writes nothing beside its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.sharding import EpochOrder, intervals, permutation
from forebay.sharding.intervals import Intervals
from forebay.sharding.permutation import Permutation, PermutationFamily

pytestmark = pytest.mark.skipif(permutation._permute is None, reason="the native part was not built")
T = TypeVar("T")
KEYS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(st.integers(0, 12), st.integers(200, 300), st.integers(1, 10**6), st.integers(2**30, 2**62))


def both(work: Callable[[], T]) -> tuple[T, T]:
    """What the work gives natively, and by numpy."""
    native = work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "_permute", None)
        patch.setattr(intervals, "_find", None)
        return native, work()


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=8), key=KEYS, count=st.integers(0, 60), seed=st.integers(0, 99))
def test_families_permute_alike(sizes: list[int], key: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranges = np.array(sizes, np.int64)
    which = rng.permutation(np.resize(np.flatnonzero(ranges), count if ranges.any() else 0))
    indices = rng.integers(0, ranges[which])
    native, plain = both(lambda: PermutationFamily(ranges, key, np.arange(len(sizes))).permute(indices, which))
    assert native.dtype == plain.dtype
    assert native.tolist() == plain.tolist()


@settings(max_examples=200, deadline=None)
@given(
    size=SIZES.filter(bool), key=KEYS, start=st.integers(0, 2**62), count=st.integers(0, 100), step=st.integers(1, 3)
)
def test_ranges_and_every_second_number_of_them_permute_alike(
    size: int, key: int, start: int, count: int, step: int
) -> None:
    first = start % size
    numbers = np.arange(first, min(first + count, size))[::step]  # not contiguous
    native, plain = both(lambda: Permutation(size, key).permute(numbers))
    assert native.tolist() == plain.tolist()


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**6), st.just(0)), max_size=60),
    table=st.booleans(),
    ascending=st.booleans(),
    seed=st.integers(0, 99),
)
def test_intervals_are_found_alike(sizes: list[int], table: bool, ascending: bool, seed: int) -> None:
    ends = np.cumsum(np.array(sizes, np.int64))
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, sum(sizes), 80) if any(sizes) else np.empty(0, np.int64)
    if ascending:
        numbers.sort()
    native, plain = both(lambda: Intervals(ends, table=table).find(numbers))
    assert [part.tolist() for part in native] == [part.tolist() for part in plain]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 700)), min_size=1, max_size=30),
    window=st.one_of(st.none(), st.integers(1, 30)),
    shuffle=st.booleans(),
    seed=st.integers(),
    epoch=st.integers(0, 3),
)
def test_whole_orders_are_alike(rows: list[int], window: int | None, shuffle: bool, seed: int, epoch: int) -> None:
    def order() -> list[npt.NDArray[np.int64]]:
        made = EpochOrder(np.array(rows), fingerprint="f", seed=seed, epoch=epoch, shuffle=shuffle, window=window)
        return list(made.locate(np.arange(made.samples)))

    native, plain = both(order)
    assert [part.dtype for part in native] == [part.dtype for part in plain]
    assert [part.tolist() for part in native] == [part.tolist() for part in plain]


@pytest.mark.parametrize(("index", "which"), [(5, 0), (-1, 0), (0, 1), (300, 2), (2**62, 2), (0, 3), (0, -4)])
def test_an_index_outside_of_its_range_is_refused_by_both(index: int, which: int) -> None:
    family = PermutationFamily(np.array([5, 0, 300]), 7, np.arange(3))

    def refused() -> None:
        with pytest.raises(IndexError):
            family.permute(np.array([0, index]), np.array([0, which]))

    both(refused)


def test_arrays_whose_lengths_do_not_agree_are_refused() -> None:
    permute: Any = permutation._permute
    find: Any = intervals._find
    members, rounds = np.ones((1, 5), np.uint64), np.ones(24, np.uint64)
    two, three, none = np.zeros(2, np.int64), np.zeros(3, np.int64), np.empty(0, np.int64)
    for which, out in ((three, two), (none, three), (two, none)):
        with pytest.raises(ValueError, match="do not agree"):
            permute(members, rounds, two, which, out)
    for found, inside in ((three, two), (two, three)):
        with pytest.raises(ValueError, match="do not agree"):
            find(np.array([5]), np.empty(0, np.int32), 0, two, found, inside)
    for shift in (-1, 63):
        with pytest.raises(ValueError, match="shift"):
            find(np.array([5]), np.empty(0, np.int32), shift, two, two.copy(), two.copy())


@pytest.mark.parametrize("member", [[5, 1, 2, 0, 10], [5, 1, 2, 3, 26], [5, 1, 2, 3, 9]])
def test_a_permutation_that_cannot_be_walked_is_refused(member: list[int]) -> None:
    permute: Any = permutation._permute
    with pytest.raises(IndexError):
        permute(
            np.array([member], np.uint64),
            np.ones(24, np.uint64),
            np.zeros(2, np.int64),
            np.empty(0, np.int64),
            np.zeros(2, np.int64),
        )


@pytest.mark.parametrize("guess", [-1, 1, 2, 3, 2**31 - 1])
def test_a_wrong_guess_is_not_believed(guess: int) -> None:
    find: Any = intervals._find
    found, inside = np.empty(2, np.int64), np.empty(2, np.int64)
    find(np.array([2, 5]), np.full(8, guess, np.int32), 0, np.array([1, 4]), found, inside)
    assert found.tolist() == [0, 1]
    assert inside.tolist() == [1, 2]


def test_memory_that_may_not_be_written_is_refused() -> None:
    permute: Any = permutation._permute
    out = np.zeros(2, np.int64)
    out.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        permute(np.ones((1, 5), np.uint64), np.ones(24, np.uint64), np.zeros(2, np.int64), np.empty(0, np.int64), out)
