"""Rows and lists gathered natively are those of the numpy path, for any shapes; nothing outside a unit is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.loader import row_kernel
from forebay.loader.row_kernel import hash_numbers, list_lengths, take_lists, take_rows

pytestmark = pytest.mark.skipif(row_kernel._native is None, reason="the native part was not built")
DTYPES = ["uint8", "int16", "float32", "float64", "V3", "V80"]


def addresses_of(*parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([[array.ctypes.data for array in part] for part in parts], np.uint64)


def unaligned(array: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    """The same values in memory that begins `by` bytes behind a place where numbers usually begin."""
    memory = np.empty(array.nbytes + 16, np.uint8)
    begin = -memory.ctypes.data % 8 + by
    moved: np.ndarray[Any, Any] = memory[begin : begin + array.nbytes].view(array.dtype)
    moved[:] = array
    return moved


@given(
    dtype=st.sampled_from(DTYPES),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    batch=st.integers(0, 40),
    by=st.integers(0, 7),
)
def test_rows_are_equal_whatever_their_width_and_place(
    dtype: str, sizes: list[int], seed: int, batch: int, by: int
) -> None:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    parts = [unaligned(rng.integers(0, 255, size * kind.itemsize, np.uint8).view(kind), by) for size in sizes]
    rows_of = np.array(sizes, np.int64)
    which = rng.integers(0, len(sizes), batch)
    rows = rng.integers(0, rows_of[which])
    out = np.empty(batch, kind)
    take_rows([[part] for part in parts], addresses_of(parts), rows_of, which, rows, [out])
    wanted = [parts[unit][row].tobytes() for unit, row in zip(which.tolist(), rows.tolist(), strict=True)]
    assert out.tobytes() == b"".join(wanted)


@given(
    lengths=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    batch=st.integers(0, 30),
    most=st.integers(0, 6),
    from_end=st.booleans(),
)
def test_lists_are_those_of_the_numpy_path(
    lengths: list[list[int]], seed: int, batch: int, most: int, from_end: bool
) -> None:
    rng = np.random.default_rng(seed)
    offsets = [np.concatenate([[0], np.cumsum(part)]).astype(np.int64) for part in lengths]
    values = [rng.integers(0, 1000, int(part[-1]), np.int16) for part in offsets]
    sizes = np.array([len(part) for part in lengths], np.int64)
    which = rng.integers(0, len(sizes), batch)
    rows = rng.integers(0, sizes[which])
    places = addresses_of(offsets, values)
    found = list_lengths(offsets, places[0], sizes, which, rows)
    assert found.tolist() == [lengths[unit][row] for unit, row in zip(which.tolist(), rows.tolist(), strict=True)]
    counts = np.minimum(found, most)
    begins = np.arange(batch, dtype=np.int64) * most
    out = np.full((2, batch * most), -1, np.int16)
    native = row_kernel._native
    for kernel, into in zip((native, None), out, strict=True):
        row_kernel._native = kernel
        try:
            take_lists(offsets, values, places, sizes, which, rows, begins, counts, into, from_end=from_end)
        finally:
            row_kernel._native = native
    assert out[0].tolist() == out[1].tolist()


@pytest.mark.parametrize(("which", "row"), [(2, 0), (-1, 0), (0, 3), (0, -1), (1, 0)])
def test_a_row_outside_of_its_unit_is_refused_before_anything_is_read(which: int, row: int) -> None:
    parts = [np.arange(3), np.arange(0)]
    out = np.full(2, 7)
    chosen = np.array([0, which]), np.array([0, row])
    with pytest.raises(IndexError, match="its unit does not have"):
        take_rows([[part] for part in parts], addresses_of(parts), np.array([3, 0]), *chosen, [out])
    assert out.tolist() == [7, 7]
    with pytest.raises(IndexError, match="its unit does not have"):
        list_lengths([np.arange(4), np.arange(1)], addresses_of(parts)[0], np.array([3, 0]), *chosen)


@pytest.mark.parametrize(("begin", "count"), [(0, 3), (3, 2), (-1, 1), (0, -1)])
def test_a_list_that_has_no_room_is_refused(begin: int, count: int) -> None:
    offsets, values = [np.array([0, 2])], [np.array([5, 6])]
    out = np.zeros(4, np.int64)
    begins, counts = np.array([begin]), np.array([count])
    zero = np.zeros(1, np.int64)
    with pytest.raises(IndexError, match="no room"):
        take_lists(
            offsets,
            values,
            addresses_of(offsets, values),
            np.array([1]),
            zero,
            zero,
            begins,
            counts,
            out,
            from_end=False,
        )


def test_arrays_whose_lengths_do_not_agree_are_refused() -> None:
    zero = np.zeros(1, np.int64)
    native: Any = row_kernel._native
    with pytest.raises(ValueError, match="do not agree"):
        native.take(np.zeros(2, np.uint64), zero, zero, np.zeros(1, np.uint64), zero, zero)
    with pytest.raises(ValueError, match="do not agree"):
        native.lengths(np.zeros(1, np.uint64), zero, zero, np.zeros(2, np.int64), zero)
    places = np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match="do not agree"):
        native.take_lists(places, places, zero, zero, zero, zero, zero, zero, 0, False)
    with pytest.raises(ValueError, match="offsets"):
        native.hash(b"abc", np.array([0, 4]), np.zeros(1, np.uint64), 0)


def test_hashes_do_not_depend_on_the_width_of_whole_numbers() -> None:
    values = np.array([0, 1, 127])
    assert hash_numbers(values, 3).tolist() == hash_numbers(values.astype(np.int8), 3).tolist()
