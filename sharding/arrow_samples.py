"""Arrow columns as columns of samples: how each is declared for a `ShardWriter`, and its value in each row.

Nothing is narrowed or filled in: what a data set of shards cannot hold as it is, is refused by name. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import SchemaError

__all__ = ["declare_columns", "samples_of"]

PIECE_ROWS = 4096
"""Rows that are Python objects at a time: a number takes 32 bytes then."""


def declare_columns(schema: pa.Schema, where: str) -> dict[str, str]:
    """The declaration of each column, as `Schema.from_spec` reads it.

    Numbers and truth values stay what they are, texts are str, binary values bytes, lists of numbers tensors (with a
    dimension that varies, unless they are of fixed size); a dictionary is what its values are.

    Raises:
        SchemaError: columns of other types, each with its type, or two of one name.
    """
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaError(f"{where} has two columns called {twice!r}; rename one", column=twice)
    specs = {field.name: _spec(field.type) for field in schema}
    refused = [f"{name!r} {schema.field(name).type}" for name, spec in specs.items() if spec is None]
    if refused:
        raise SchemaError(
            f"{where}: shards have no kind for {', '.join(refused[:10])}{' and others' if refused[10:] else ''}; leave "
            f"such columns out, or make numbers, texts, bytes or lists of numbers of them by --table-transform",
            columns=refused,
        )
    return {name: spec for name, spec in specs.items() if spec is not None}


def samples_of(table: pa.Table, specs: Mapping[str, str], where: str) -> Iterator[dict[str, Any]]:
    """The samples of a table, row by row: a value for each column, as `ShardWriter.write` takes it.

    Args:
        table: of the schema that was declared.
        specs: of `declare_columns`.
        where: for errors, the file and row groups.

    Raises:
        SchemaError: a null, or a text that is not valid Unicode; names the column.
    """
    names = list(specs)
    for name in names:
        _refuse_nulls(table.column(name), name, where)
    for begin in range(0, table.num_rows, PIECE_ROWS):
        piece = table.slice(begin, PIECE_ROWS)
        columns = [_values(_one_array(piece.column(name)), name, where) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _spec(kind: pa.DataType) -> str | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return "bool"
    if (number := _number(kind)) is not None:
        return number
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "str"
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    ):
        return None if pa.types.is_decimal(kind) else "bytes"
    shape, inner = _dimensions(kind)
    number = _number(inner)
    return f"{number}[{','.join(shape)}]" if shape and number is not None else None


def _number(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    return None


def _dimensions(kind: pa.DataType) -> tuple[list[str], pa.DataType]:
    """Sizes of nested lists, `*` where rows differ, which only the outermost may; and what the innermost hold."""
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation in (None, list(range(len(kind.shape)))):
        return [str(size) for size in kind.shape], kind.value_type
    shape = []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        shape, kind = ["*"], kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(str(kind.list_size))
        kind = kind.value_type
    return shape, kind


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    return whole


def _values(array: pa.Array, name: str, where: str) -> Sequence[Any]:
    _refuse_nulls(array, name, where)
    kind = array.type
    if isinstance(array, pa.FixedShapeTensorArray):
        _refuse_nulls(array.storage.flatten(), name, where)
        return list(array.to_numpy_ndarray())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = array.offsets.to_numpy().tolist()
        rows = _rows(array.flatten(), name, where)
        first = offsets[0]
        return [rows[begin - first : end - first] for begin, end in pairwise(offsets)]
    if pa.types.is_fixed_size_list(kind):
        return list(_rows(array, name, where))
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{where}: column {name!r} has a text that is not valid Unicode ({error.reason}); cast it to binary by "
            f"--table-transform",
            column=name,
        ) from error


def _rows(array: pa.Array, name: str, where: str) -> npt.NDArray[Any]:
    """Numbers, or nested lists of fixed size, as an array (rows, ...)."""
    rows, shape = len(array), []
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
        _refuse_nulls(array, name, where)
    _refuse_nulls(array, name, where)
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(rows, *shape)


def _refuse_nulls(array: pa.Array | pa.ChunkedArray, name: str, where: str) -> None:
    if array.null_count:
        raise SchemaError(
            f"{where}: column {name!r} has {array.null_count} nulls, and shards hold none; fill them in, or drop their "
            f"rows, by --table-transform",
            column=name,
        )
