"""One schema for all files of a table, and where its columns lie among the leaves of each file.

Two rules: `error` wants the same columns everywhere, `promote` adds nulls for missing ones and widens numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from forebay.errors import SchemaError

__all__ = ["SchemaChange", "fixed_width", "leaves_of", "unify_schemas"]

SchemaChange = Literal["error", "promote"]
_DEEPEST = 64


def unify_schemas(schemas: Sequence[tuple[str, pa.Schema]], rule: SchemaChange, where: str) -> pa.Schema:
    """The schema that all files are read with.

    Args:
        schemas: different ones, each with the first file that has it.
        rule: what may differ. Whether a column may hold nulls always may.
        where: the table, for messages.

    Raises:
        SchemaError: they differ by more; names both files and the column.
    """
    first_name, first = schemas[0]
    if rule == "error":
        for name, schema in schemas[1:]:
            _check_equal(first_name, first, name, schema, where)
        return first
    unified = first
    for name, schema in schemas[1:]:
        try:
            unified = pa.unify_schemas([unified, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"{where}: {name} and the files before it, as {first_name}, have columns that cannot be promoted to "
                f"one type: {' '.join(str(error).split())}; convert the files, or leave some out",
                path=name,
            ) from error
    return unified


def _check_equal(first_name: str, first: pa.Schema, name: str, schema: pa.Schema, where: str) -> None:
    advice = 'pass schema_change="promote" to fill missing columns with nulls and widen numbers, or leave files out'
    for column in [*first.names, *schema.names]:
        one, other = _type_of(first, column), _type_of(schema, column)
        if one != other:
            raise SchemaError(
                f"{where}: column {column!r} is {one or 'missing'} in {first_name} and {other or 'missing'} in {name}; "
                f"{advice}",
                column=column,
                path=name,
            )


def _type_of(schema: pa.Schema, column: str) -> pa.DataType | None:
    place = schema.get_field_index(column)
    return None if place < 0 else schema.field(place).type


def leaves_of(schema: pa.Schema) -> list[range]:
    """For each column of a file, which of the file's leaf columns make it up: what pyarrow is asked for.

    Names would not do: `a.b` is a column of that name, or `b` within the struct `a`.
    """
    ranges, start = [], 0
    for field in schema:
        count = _count_leaves(field.type, 0)
        ranges.append(range(start, start + count))
        start += count
    return ranges


def _count_leaves(kind: pa.DataType, depth: int) -> int:
    if depth > _DEEPEST:
        raise SchemaError(f"a column is nested more than {_DEEPEST} deep; leave it out by columns=")
    if isinstance(kind, pa.BaseExtensionType):
        return _count_leaves(kind.storage_type, depth + 1)
    if pa.types.is_dictionary(kind):
        return _count_leaves(kind.value_type, depth + 1)
    return sum(_count_leaves(kind.field(k).type, depth + 1) for k in range(kind.num_fields)) if kind.num_fields else 1


def fixed_width(kind: pa.DataType) -> int | None:
    """Bytes of a value in memory; None where values differ in length."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_width(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        width = fixed_width(kind.value_type)
        return None if width is None else width * kind.list_size
    if pa.types.is_struct(kind):
        widths = [fixed_width(kind.field(k).type) for k in range(kind.num_fields)]
        return None if None in widths else sum(width or 0 for width in widths)
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width) // 8)
    return None
