"""The columns of a table as single values: structs flattened by name, lists, dictionaries and extensions peeled off.

It says what each column holds and refuses what no tensor can; it reads no data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from forebay.errors import ConfigError, SchemaError

__all__ = ["TableColumn", "find_columns", "is_list", "plain_type"]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column, or one field of a struct column."""

    name: str
    """Of the output: the path's names with dots between."""
    path: tuple[str, ...]
    """The table's column, and the names of fields down from there."""
    type: pa.DataType
    """As the table has it."""
    ragged: bool
    """Whether each row is a list of its own length."""
    shape: tuple[int, ...]
    """Of a row, or of each element of a row's list: what fixed-size lists make of it."""
    value: pa.DataType
    """Of a single value, when all else is peeled off."""

    @property
    def width(self) -> int:
        """Values a row, or an element of a row's list."""
        return math.prod(self.shape)

    @property
    def is_text(self) -> bool:
        """Whether values are strings or bytes."""
        return bool(types.is_large_string(self.value) or types.is_large_binary(self.value))

    @property
    def is_decimal(self) -> bool:
        """Whether values are decimals, for which there is no type of tensor."""
        return bool(types.is_decimal(self.value))

    @property
    def dtype(self) -> np.dtype[np.generic] | None:
        """Of the numbers; None where values are texts or decimals."""
        if self.is_text or self.is_decimal:
            return None
        if types.is_boolean(self.value):
            return np.dtype(np.bool_)
        if types.is_date32(self.value) or types.is_time32(self.value):
            return np.dtype(np.int32)
        if types.is_temporal(self.value):
            return np.dtype(np.int64)
        dtype: np.dtype[np.generic] = np.dtype(self.value.to_pandas_dtype())
        return dtype


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists of any length."""
    variable = types.is_list(kind) or types.is_large_list(kind)
    return bool(variable or types.is_list_view(kind) or types.is_large_list_view(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type without the ways it may be stored in: extensions, dictionaries, runs, short offsets, views."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.large_binary()
    return kind


def find_columns(schema: pa.Schema, wanted: Sequence[str] | None) -> list[TableColumn]:
    """The columns that a table's outputs are made of.

    Args:
        schema: of the table.
        wanted: names of columns, of structs (all of their fields) or of fields (`user.age`); None takes all columns.

    Raises:
        ConfigError: a name that is not there, or that is given twice.
        SchemaError: two columns of one name, or a type that no tensor holds.
    """
    found = list(_flatten(schema, ()))
    is_unique = len({path for path, _ in found}) == len(found)
    if wanted is not None:
        found = [leaf for name in wanted for leaf in _matching(found, name)]
    columns = [_peel(path, kind) for path, kind in found]
    for name, count in Counter(column.name for column in columns).items():
        if count == 1:
            continue
        if is_unique and len({column.path for column in columns}) < len(columns):
            raise ConfigError(
                f"columns={list(wanted or ())}: {name!r} is there twice; give each name once", column=name
            )
        raise SchemaError(
            f"two columns are called {name!r}; name others in columns=, or write the table anew with other names",
            column=name,
        )
    return columns


def _flatten(fields: pa.Schema | pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for field in fields:
        here = (*path, field.name)
        kind = plain_type(field.type) if isinstance(field.type, pa.BaseExtensionType) else field.type
        if types.is_struct(kind) and len(kind):
            yield from _flatten(kind, here)
        else:
            yield here, field.type


def _matching(found: list[tuple[tuple[str, ...], pa.DataType]], name: str) -> list[tuple[tuple[str, ...], pa.DataType]]:
    exact = [leaf for leaf in found if ".".join(leaf[0]) == name]
    inside = [leaf for leaf in found if any(".".join(leaf[0][:depth]) == name for depth in range(1, len(leaf[0])))]
    if not exact and not inside:
        names = sorted({".".join(path) for path, _ in found})
        shown = ", ".join(names[:20]) + (f", ... ({len(names)} columns)" if len(names) > 20 else "")
        raise ConfigError(f"column {name!r} is not in the table; it has {shown}", column=name)
    return exact or inside


def _peel(path: tuple[str, ...], kind: pa.DataType) -> TableColumn:
    name = ".".join(path)
    inner, ragged, shape = kind, False, tuple[int, ...]()
    while True:
        inner = plain_type(inner)
        if types.is_fixed_size_list(inner):
            shape += (inner.list_size,)
        elif is_list(inner) and not ragged and not shape:
            ragged = True
        else:
            break
        inner = inner.value_type
    column = TableColumn(name, path, kind, ragged, shape, inner)
    if isinstance(kind, pa.FixedShapeTensorType):
        permutation = kind.permutation
        if permutation is not None and list(permutation) != sorted(permutation):
            raise _refuse(name, kind, "its dimensions are permuted")
        column = TableColumn(name, path, kind, False, (*kind.shape, *shape[1:]), inner)
    numeric = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner) or column.is_decimal
    if types.is_null(inner):
        raise _refuse(name, kind, "it holds nothing but nulls")
    if not (numeric or column.is_text or (types.is_temporal(inner) and not types.is_interval(inner))):
        raise _refuse(name, kind, "no tensor holds that")
    if not column.width or (column.is_text and shape):
        raise _refuse(name, kind, "no tensor holds that")
    return column


def _refuse(name: str, kind: pa.DataType, reason: str) -> SchemaError:
    return SchemaError(
        f"column {name!r} is {kind}: {reason}; leave it out with columns=[...], or make numbers, lists of numbers or "
        "texts of it in table_transform=",
        column=name,
        type=str(kind),
    )
