"""Intervals are found natively and by numpy, with and without a table, as a search by halves does, in clusters too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.sharding import intervals
from forebay.sharding.intervals import Intervals

SIZES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**6), st.just(0)), min_size=1, max_size=60)


@pytest.fixture(autouse=True, params=["native", "numpy"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(intervals, "_find", None)
        elif intervals._find is None:
            pytest.skip("forebay was installed without its native parts")
        yield


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES.filter(any), table=st.booleans(), seed=st.integers(0, 100))
def test_each_number_is_in_the_interval_that_is_found(sizes: list[int], table: bool, seed: int) -> None:
    ends = np.cumsum(sizes)
    random = np.random.default_rng(seed).integers(0, ends[-1], 50)
    numbers = np.concatenate([random, [0, ends[-1] - 1], np.maximum(ends - 1, 0), ends[ends < ends[-1]]])
    found, inside = Intervals(ends, table=table).find(numbers)
    assert (numbers < ends[found]).all()
    assert (numbers >= ends[found] - np.array(sizes)[found]).all()
    assert np.array_equal(inside, numbers - ends[found] + np.array(sizes)[found])


def test_many_tiny_intervals_beside_a_huge_one_are_found() -> None:
    ends = np.cumsum(np.concatenate([np.ones(1000, np.int64), [10**12], np.ones(1000, np.int64)]))
    numbers = np.concatenate([np.arange(1000), [1000, 10**12 + 999], np.arange(1000) + 10**12 + 1000])
    expected = np.concatenate([np.arange(1000), [1000, 1000], np.arange(1000) + 1001])
    assert np.array_equal(Intervals(ends, table=True).find(numbers)[0], expected)


@pytest.mark.parametrize("table", [False, True])
def test_no_intervals_hold_no_numbers(table: bool) -> None:
    nothing = np.empty(0, np.int64)
    assert [len(part) for part in Intervals(nothing, table=table).find(nothing)] == [0, 0]


@pytest.mark.parametrize("number", [-1, 5, 2**62])
@pytest.mark.parametrize("table", [False, True])
def test_a_number_in_no_interval_is_refused(number: int, table: bool) -> None:
    with pytest.raises(IndexError, match="none of the intervals"):
        Intervals(np.array([2, 5]), table=table).find(np.array([0, number]))
