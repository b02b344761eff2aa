"""Rows of many units gathered into one batch, and hashes of many values: natively, or by numpy with equal results.

The C source is `native/rows.c`; it releases the GIL once a call. Nothing here knows what a column means.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from forebay.errors import ShardCorruptError
from forebay.loader.table_values import Array

__all__ = ["check_offsets", "hash_numbers", "hash_texts", "list_lengths", "take_lists", "take_rows"]

Places = npt.NDArray[np.int64]

_native: Any = None
try:
    _native = importlib.import_module("forebay.loader._rows")
except ImportError:  # the numpy path does the same
    _native = None


def take_rows(
    parts: Sequence[Sequence[Array]],
    addresses: npt.NDArray[np.uint64],
    sizes: Places,
    which: Places,
    rows: Places,
    out: Sequence[Array],
) -> None:
    """Fill `out` with rows of fixed width.

    Args:
        parts: by unit, by column: (rows of the unit, ...), C order; held by the caller.
        addresses: uint64 (columns, units) of their memory.
        sizes: int64 (units,) rows of each.
        which: int64 (B,) the unit of each row.
        rows: int64 (B,) its place there.
        out: by column, (B, ...) in C order, of the column's dtype. Nobody else may use it during the call.

    Raises:
        IndexError: a row that its unit does not have.
    """
    if _native is not None:
        widths = np.array([_row_nbytes(array) for array in out], np.int64)
        outs = np.array([array.ctypes.data for array in out], np.uint64)
        _native.take(addresses, sizes, widths, outs, which, rows)
        return
    for unit, places, inside in _by_unit(sizes, which, rows):
        for part, array in zip(parts[unit], out, strict=True):
            array[places] = part[inside]


def list_lengths(
    offsets: Sequence[Places], addresses: npt.NDArray[np.uint64], sizes: Places, which: Places, rows: Places
) -> Places:
    """Elements of each row's list, int64 (B,); `offsets` by unit, (rows + 1,), `addresses` of their memory."""
    lengths = np.empty(len(which), np.int64)
    if _native is not None:
        _native.lengths(addresses, sizes, which, rows, lengths)
        return lengths
    for unit, places, inside in _by_unit(sizes, which, rows):
        lengths[places] = offsets[unit][inside + 1] - offsets[unit][inside]
    return lengths


def take_lists(
    offsets: Sequence[Places],
    values: Sequence[Array],
    addresses: npt.NDArray[np.uint64],
    sizes: Places,
    which: Places,
    rows: Places,
    begins: Places,
    counts: Places,
    out: Array,
    *,
    from_end: bool,
) -> None:
    """Put `counts[i]` elements of row i's list, its first or its last ones, behind element `begins[i]` of `out`.

    Args:
        offsets: by unit, int64 (rows + 1,).
        values: by unit, (elements, ...), C order.
        addresses: uint64 (2, units): of offsets and of values.
        sizes: int64 (units,) rows of each.
        which: int64 (B,) the unit of each row.
        rows: int64 (B,) its place there.
        begins: int64 (B,).
        counts: int64 (B,), none more than the list's length.
        out: (elements, ...) in C order.
        from_end: whether the last elements are taken.

    Raises:
        IndexError: a row that its unit does not have, or a list that has no room.
    """
    if _native is not None:
        width = _row_nbytes(out)
        flat = out.reshape(-1).view(np.uint8)
        _native.take_lists(addresses[0], addresses[1], sizes, which, rows, begins, counts, flat, width, from_end)
        return
    for unit, places, inside in _by_unit(sizes, which, rows):
        size = counts[places]
        first = offsets[unit][inside + 1] - size if from_end else offsets[unit][inside]
        steps = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        out[np.repeat(begins[places], size) + steps] = values[unit][np.repeat(first, size) + steps]


def hash_texts(values: pa.Array, seed: int) -> Array:
    """xxh3-64 of each text's UTF-8, or of bytes, uint64 (n,)."""
    if not (pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)):
        text = pa.types.is_string(values.type) or pa.types.is_string_view(values.type)
        values = values.cast(pa.large_string() if text else pa.large_binary())
    if not len(values):
        return np.empty(0, np.uint64)
    _, bounds, data = values.buffers()
    offsets = np.frombuffer(bounds, np.int64, len(values) + 1, values.offset * 8)
    return _hash_pieces(b"" if data is None else data, offsets, seed)


def hash_numbers(values: Array, seed: int) -> Array:
    """xxh3-64 of the 8 bytes of each whole number, little-endian, uint64 (n,)."""
    wide = values.astype("<u8" if values.dtype == np.uint64 else "<i8", order="C", copy=False)
    return _hash_pieces(wide.view(np.uint8), np.arange(len(values) + 1, dtype=np.int64) * 8, seed)


def _hash_pieces(data: Any, offsets: Places, seed: int) -> Array:
    hashes = np.empty(len(offsets) - 1, np.uint64)
    if _native is not None:
        _native.hash(data, offsets, hashes, seed)
        return hashes
    view = memoryview(data).cast("B")
    bounds = offsets.tolist()
    for i in range(len(hashes)):
        hashes[i] = xxhash.xxh3_64_intdigest(view[bounds[i] : bounds[i + 1]], seed)
    return hashes


def _row_nbytes(array: Array) -> int:
    return array.itemsize * math.prod(array.shape[1:])


def _by_unit(sizes: Places, which: Places, rows: Places) -> list[tuple[int, Places, Places]]:
    """Unit, places in the batch, rows in the unit: of each unit that the batch has rows of."""
    if not len(which):
        return []
    outside = (which < 0) | (which >= len(sizes)) | (rows < 0)
    if outside.any() or (rows >= sizes[which]).any():
        raise IndexError("a row that its unit does not have")
    order = np.argsort(which, kind="stable")
    units, begins = np.unique(which[order], return_index=True)
    parts = np.split(order, begins[1:])
    return [(int(unit), places, rows[places]) for unit, places in zip(units, parts, strict=True)]


def check_offsets(offsets: Places, elements: int, name: str) -> None:
    """Raise unless each list lies within the values, so that no gather reads outside of a unit.

    Raises:
        ShardCorruptError: one does not.
    """
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > elements or np.any(offsets[1:] < offsets[:-1])):
        raise ShardCorruptError(
            f"column {name!r}: the offsets of its lists lead outside of its values; delete the cached file"
        )
