"""From a column as Arrow has it to its single values, one after the other, and where each list begins.

It copies where it must (bits to bytes, dictionaries to values) and not otherwise; nulls are told, not settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from forebay.loader.table_columns import TableColumn, is_list
from forebay.loader.table_nulls import Bools, valid_values

__all__ = ["Array", "Unpacked", "as_numbers", "number_type", "unpack"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The values of a column's rows."""

    values: pa.Array
    """Plain numbers or texts, or a dictionary of texts; what lies under a null is anything."""
    valid: Bools | None
    """By value; None: no nulls."""
    offsets: npt.NDArray[np.int64] | None
    """Of lists: the elements of row i are `offsets[i]` to `offsets[i + 1]`; a null row's list is empty."""
    rows_valid: Bools | None
    """Of lists, by row; None: no null lists."""


def unpack(column: TableColumn, array: pa.Array | pa.ChunkedArray) -> Unpacked:
    """The values of a column, from the table's top-level column that it is in."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    for name in column.path[1:]:
        array = _plain(array)
        array = pc.struct_field(array, [array.type.get_field_index(name)])  # a null struct's fields are null
    valid: Bools | None = None
    offsets = rows_valid = None
    while True:
        array = _plain(array)
        if types.is_fixed_size_list(array.type):
            size = array.type.list_size
            valid = _both(valid, valid_values(array))
            valid = None if valid is None else np.repeat(valid, size)
            array = array.values.slice(array.offset * size, len(array) * size)
        elif is_list(array.type):
            rows_valid = valid_values(array)
            lengths = pc.fill_null(pc.list_value_length(array), 0)
            offsets = np.zeros(len(array) + 1, np.int64)
            np.cumsum(lengths.to_numpy(), out=offsets[1:])
            array = array.flatten()  # leaves out what lies under null lists
        else:
            break
    if not types.is_dictionary(array.type):
        array = _with_long_offsets(array)
    return Unpacked(array, _both(valid, valid_values(array)), offsets, rows_valid)


def as_numbers(values: pa.Array) -> Array:
    """Numbers, bools, dates and times as numpy has them, without a copy but for bools; under nulls lies anything."""
    if types.is_boolean(values.type):
        return as_numbers(pc.cast(values, pa.uint8())).view(np.bool_)
    dtype = np.dtype(number_type(values.type).to_pandas_dtype())
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def number_type(kind: pa.DataType) -> pa.DataType:
    """The type of the numbers that a type's values are kept as: dates and times are whole numbers of their unit."""
    if types.is_date32(kind) or types.is_time32(kind):
        return pa.int32()
    return pa.int64() if types.is_temporal(kind) else kind


def _plain(array: pa.Array) -> pa.Array:
    """Without extensions and runs; a dictionary stays where its values are texts, all there."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif types.is_dictionary(array.type) and (not _is_text(array.type.value_type) or array.dictionary.null_count):
            array = array.dictionary_decode()
        else:
            return array


def _is_text(kind: pa.DataType) -> bool:
    binary = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(types.is_string(kind) or types.is_large_string(kind) or binary)


def _with_long_offsets(array: pa.Array) -> pa.Array:
    if types.is_string(array.type) or types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if types.is_binary(array.type) or types.is_binary_view(array.type) or types.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def _both(left: Bools | None, right: Bools | None) -> Bools | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right
