"""A unit's rows as an Arrow record batch, an output a column, in one piece without nulls; and back as numpy's views.

Fixed rows are primitive or fixed-size lists, row after row; lists are large lists; bools take a byte. What lies in one
piece already is copied neither way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.errors import SchemaError
from forebay.loader.row_kernel import check_offsets
from forebay.loader.table_outputs import Layout, TableOutput
from forebay.loader.table_values import Array
from forebay.loader.table_work import Made

__all__ = ["Kept", "Unit", "keep", "kept_schema", "open_unit"]

Kept = Array | tuple[np.ndarray[Any, np.dtype[np.int64]], Array] | pa.Array
"""Rows (rows, ...); offsets (rows + 1,) and elements (elements, ...); or texts."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The rows of a unit as views: whoever holds it holds the memory, a map of a file or an array."""

    rows: int
    fixed: tuple[Array, ...]
    lists: tuple[tuple[np.ndarray[Any, np.dtype[np.int64]], Array], ...]
    texts: tuple[pa.Array, ...]
    fixed_addresses: np.ndarray[Any, np.dtype[np.uint64]]
    """uint64 (fixed,)."""
    list_addresses: np.ndarray[Any, np.dtype[np.uint64]]
    """uint64 (lists, 2): of offsets and of elements."""
    owner: pa.RecordBatch
    """What the views look at."""


def kept_schema(outputs: Sequence[TableOutput]) -> pa.Schema:
    """The types that `keep` makes columns of."""
    return pa.schema([pa.field(output.name, _kept_type(output), nullable=_may_be_null(output)) for output in outputs])


def keep(outputs: Sequence[TableOutput], made: Mapping[str, Made | Array], rows: int) -> pa.RecordBatch:
    """A record batch of `kept_schema`."""
    schema = kept_schema(outputs)
    arrays = [_array(output, made[output.name], schema.field(i).type, rows) for i, output in enumerate(outputs)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def open_unit(outputs: Sequence[TableOutput], batch: pa.RecordBatch) -> Unit:
    """Views of a batch that `keep` made, or that was written to a file and mapped.

    Raises:
        SchemaError: the batch is of another plan.
        ShardCorruptError: lists that lead outside of their values.
    """
    if not batch.schema.equals(kept_schema(outputs)):
        raise SchemaError("this unit was prepared by another plan; delete the cached file")
    fixed: list[Array] = []
    lists: list[tuple[np.ndarray[Any, np.dtype[np.int64]], Array]] = []
    texts: list[pa.Array] = []
    for output, array in zip(outputs, batch.columns, strict=True):
        if output.layout is Layout.FIXED:
            fixed.append(_view(output, array, len(array)))
        elif output.layout is Layout.LISTS:
            offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
            check_offsets(offsets, len(array.values), output.name)
            lists.append((offsets, _view(output, array.values, len(array.values))))
        else:
            texts.append(array)
    return Unit(
        rows=batch.num_rows,
        fixed=tuple(fixed),
        lists=tuple(lists),
        texts=tuple(texts),
        fixed_addresses=np.array([view.ctypes.data for view in fixed], np.uint64),
        list_addresses=np.array(
            [(offsets.ctypes.data, values.ctypes.data) for offsets, values in lists], np.uint64
        ).reshape(-1, 2),
        owner=batch,
    )


def _may_be_null(output: TableOutput) -> bool:
    return output.layout in (Layout.TEXTS, Layout.TEXT_LISTS)


def _is_list(array: pa.Array) -> bool:
    return bool(pa.types.is_fixed_size_list(array.type))


def _kept_type(output: TableOutput) -> pa.DataType:
    if output.dtype is None:
        text = pa.large_binary() if output.binary else pa.large_string()
        return pa.large_list(text) if output.layout is Layout.TEXT_LISTS else text
    dtype = np.dtype(np.uint8) if output.numpy_dtype == np.bool_ else output.numpy_dtype
    kind = pa.from_numpy_dtype(dtype)
    if output.shape:
        kind = pa.list_(_item(kind), output.width)
    return pa.large_list(_item(kind)) if output.layout is Layout.LISTS else kind


def _item(kind: pa.DataType) -> pa.Field:
    return pa.field("item", kind, nullable=False)


def _array(output: TableOutput, made: Made | Array, kind: pa.DataType, rows: int) -> pa.Array:
    values, offsets = (made, None) if isinstance(made, np.ndarray) else (made.values, made.offsets)
    if output.layout is Layout.TEXTS:
        return values
    if output.layout is Layout.TEXT_LISTS:
        return pa.LargeListArray.from_arrays(pa.array(offsets), values).cast(kind)
    if output.layout is Layout.FIXED:
        return _numbers(values, kind, rows)
    assert offsets is not None
    elements = _numbers(values, kind.value_type, len(values) // output.width)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets)], children=[elements])


def _numbers(values: Array, kind: pa.DataType, count: int) -> pa.Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.bool_:
        flat = flat.view(np.uint8)
    inner = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    array = pa.Array.from_buffers(inner, len(flat), [None, pa.py_buffer(flat)])
    if inner is kind:
        return array
    return pa.Array.from_buffers(kind, count, [None], children=[array])


def _view(output: TableOutput, array: pa.Array, count: int) -> Array:
    begin, dtype = array.offset, output.numpy_dtype
    if _is_list(array):
        begin = begin * output.width + array.values.offset
        array = array.values
    buffer = array.buffers()[1]
    if buffer is None or not count:
        return np.empty((0, *output.shape), dtype)
    flat = np.frombuffer(buffer, dtype, count * output.width, begin * dtype.itemsize)
    return flat.reshape(count, *output.shape)
