"""Finding intervals: what a search by halves finds, with and without the table, in the worst clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.sharding.intervals import Intervals

SIZES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**6), st.just(0)), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(sizes=SIZES.filter(any), table=st.booleans(), seed=st.integers(0, 100))
def test_each_number_is_in_the_interval_that_is_found(sizes: list[int], table: bool, seed: int) -> None:
    ends = np.cumsum(sizes)
    random = np.random.default_rng(seed).integers(0, ends[-1], 50)
    numbers = np.concatenate([random, [0, ends[-1] - 1], np.maximum(ends - 1, 0), ends[ends < ends[-1]]])
    found = Intervals(ends, table=table).find(numbers)
    assert (numbers < ends[found]).all()
    assert (numbers >= ends[found] - np.array(sizes)[found]).all()


def test_many_tiny_intervals_beside_a_huge_one_are_found() -> None:
    ends = np.cumsum(np.concatenate([np.ones(1000, np.int64), [10**12], np.ones(1000, np.int64)]))
    numbers = np.concatenate([np.arange(1000), [1000, 10**12 + 999], np.arange(1000) + 10**12 + 1000])
    expected = np.concatenate([np.arange(1000), [1000, 1000], np.arange(1000) + 1001])
    assert np.array_equal(Intervals(ends, table=True).find(numbers), expected)


@pytest.mark.parametrize("table", [False, True])
def test_no_intervals_hold_no_numbers(table: bool) -> None:
    nothing = np.empty(0, np.int64)
    assert len(Intervals(nothing, table=table).find(nothing)) == 0
