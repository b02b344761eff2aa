"""A filter over rows, a `pyarrow.compute.Expression`: what it reads, what it is called, and which row groups it spares.

It decides by what it is given; files are read elsewhere.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import xxhash

from forebay.errors import ConfigError, SchemaError
from forebay.sharding.parquet_footer import read_reasons

__all__ = ["check_filter", "filter_columns", "filter_identity", "groups_left", "identity_of", "matching"]


def check_filter(expression: object) -> None:
    """Refuse what is no expression.

    Raises:
        ConfigError: says how one is written.
    """
    if not isinstance(expression, pc.Expression):
        raise ConfigError(
            f"filter={expression!r:.200} is a {type(expression).__name__}; give an expression of pyarrow: "
            'import pyarrow.compute as pc; filter=pc.field("age") > 18'
        )


def filter_identity(expression: pc.Expression) -> bytes:
    """All that the expression is: its printed form leaves out values of long lists."""
    return bytes(expression.__reduce__()[1][0])


def filter_columns(expression: pc.Expression, schema: pa.Schema, where: str) -> list[str]:
    """The columns that an expression reads.

    Raises:
        SchemaError: there is no such column, or it does not fit the columns' types.
    """
    empty = schema.empty_table()
    try:
        empty.filter(expression)
    except read_reasons as error:
        raise SchemaError(
            f"filter={expression} does not fit {where}: {' '.join(str(error).split())}; its columns are "
            f"{', '.join(schema.names[:20])}{', ...' if len(schema) > 20 else ''}"
        ) from error
    needed = [name for name in schema.names if name in str(expression)]
    try:
        empty.select(needed).filter(expression)
    except read_reasons:  # a name that is printed in another way
        return list(schema.names)
    for name in list(needed):
        rest = [other for other in needed if other != name]
        try:
            empty.select(rest).filter(expression)
        except read_reasons:
            continue
        needed = rest
    return needed


def groups_left(
    footer: bytes, expression: pc.Expression, partition: dict[str, pa.Scalar], schema: pa.Schema
) -> set[int] | None:
    """Which row groups of a file may hold rows that match, by the statistics in its footer; None: all of them may."""
    guarantee = None
    for name, value in partition.items():
        known = pc.field(name).is_null() if not value.is_valid else pc.field(name) == value
        guarantee = known if guarantee is None else guarantee & known
    try:
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(
            pa.BufferReader(footer), **({} if guarantee is None else {"partition_expression": guarantee})
        )
        left = fragment.subset(filter=expression, schema=schema).row_groups
    except read_reasons:  # statistics that pyarrow does not understand: the rows decide
        return None
    return {group.id for group in left}


def matching(table: pa.Table, expression: pc.Expression) -> pa.Table:
    """The rows that match; those of which an expression says null do not."""
    return table.filter(expression)


def identity_of(*parts: bytes) -> bytes:
    """xxh3-128 of several things, none of which can run into its neighbour."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
