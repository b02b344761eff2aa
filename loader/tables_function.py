"""A user's function on whole units of a table, applied before the cache: how it is called, and what it may give.

What it is, so that a changed function never meets old rows, is told by `function_identity`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from forebay.errors import ConfigError, SampleError, SchemaError
from forebay.loader.function_identity import function_identity
from forebay.loader.randomness import DrawKey, generator

__all__ = ["UnitFunction"]


class UnitFunction:
    """`table_transform`: takes a `pyarrow.RecordBatch`, or a polars or pandas frame where its annotation says so.

    A second positional parameter gets a `numpy.random.Generator` whose numbers depend on the unit alone: what is made
    is kept, and the same in every epoch.

    Args:
        function: of the user.
        keeps_rows: refuse what has more or fewer rows than were given.

    Raises:
        ConfigError: it is no function, or nothing tells what it is.
    """

    def __init__(self, function: Callable[..., Any], *, keeps_rows: bool = True) -> None:
        if not callable(function):
            raise ConfigError(f"table_transform={function!r}; give a function of a pyarrow.RecordBatch")
        self._function = function
        self._keeps_rows = keeps_rows
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.identity = function_identity(function)
        self._frame, self._draws = _parameters(function)

    def __call__(self, table: pa.Table, unit: int, where: str) -> pa.Table:
        """What the function makes of a unit.

        Raises:
            SampleError: it raised, gave no table, or another number of rows where it has to keep them.
        """
        given = _to_frame(table, self._frame)
        rng = [generator(DrawKey(0, "forebay.table_transform", self.name, 0), index=unit, occurrence=0)]
        try:
            made = _to_table(self._function(given, *(rng if self._draws else ())))
        except Exception as error:
            raise SampleError(
                f"table_transform {self.name} on {where}: {type(error).__name__}: {error}; mend the function, which "
                f"gets {table.num_rows} rows of {', '.join(table.schema.names[:10])}",
                stage="table_transform",
                where=where,
            ) from error
        if self._keeps_rows and made.num_rows != table.num_rows:
            raise SampleError(
                f"table_transform {self.name} on {where} gave {made.num_rows} rows for {table.num_rows}: positions of "
                f"the order are rows of the files; drop rows by filter=, or write a new data set with `forebay shard "
                f"--table-transform`, which may drop and add rows",
                stage="table_transform",
                where=where,
            )
        return made

    def schema_of(self, schema: pa.Schema, where: str) -> pa.Schema:
        """The columns that it gives, asked with no rows.

        Raises:
            SchemaError: it does not bear that.
        """
        try:
            return self(schema.empty_table(), 0, f"{where}, no rows").schema.remove_metadata()
        except SampleError as error:
            raise SchemaError(
                f"{error}. It is called once with no rows, to learn which columns it gives: let it bear that"
            ) from error

    def make(self, table: pa.Table, unit: int, where: str, schema: pa.Schema) -> pa.Table:
        """What the function makes of a unit, of the columns that `schema_of` said.

        Raises:
            SampleError: as calling it.
            SchemaError: it gave other columns.
        """
        made = self(table, unit, where)
        if made.schema.remove_metadata().equals(schema):
            return made
        said = "; ".join(
            f"{name!r} {_type_of(made.schema, name)} instead of {_type_of(schema, name)}"
            for name in dict.fromkeys([*schema.names, *made.schema.names])
            if _type_of(made.schema, name) != _type_of(schema, name)
        )
        if said or made.schema.names != schema.names:
            raise SchemaError(
                f"table_transform {self.name} on {where} gave other columns than with no rows: "
                f"{said or 'another order'}; cast what it gives to one type, with `pyarrow.compute.cast`"
            )
        return made.cast(schema)


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "no column"


def _parameters(function: Callable[..., Any]) -> tuple[str, bool]:
    """Which kind of frame it takes, and whether it takes a generator."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "RecordBatch", False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    if not parameters:
        raise ConfigError(f"table_transform={function!r} takes nothing; give a function of a pyarrow.RecordBatch")
    wanted: Any = parameters[0].annotation
    if isinstance(wanted, str):
        try:
            hints = typing.get_type_hints(inspect.unwrap(function))
            wanted = hints.get(parameters[0].name, wanted)
        except (NameError, TypeError, AttributeError):
            pass
    said = (
        wanted if isinstance(wanted, str) else f"{getattr(wanted, '__module__', '')}.{getattr(wanted, '__name__', '')}"
    )
    kind = "RecordBatch"
    if said.startswith(("polars", "pl.")):
        kind = "polars"
    elif said.startswith(("pandas", "pd.")):
        kind = "pandas"
    elif said.endswith("Table"):
        kind = "Table"
    return kind, len(needed) == 2


def _to_frame(table: pa.Table, kind: str) -> Any:
    if kind == "Table":
        return table
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    if kind == "pandas":
        return table.to_pandas()
    batches = table.combine_chunks().to_batches()
    return (
        batches[0]
        if batches
        else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)
    )


def _to_table(made: Any) -> pa.Table:
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    if isinstance(made, pa.Table):
        return made
    module = type(made).__module__.partition(".")[0]
    if module == "polars":
        return made.to_arrow()
    if module == "pandas":
        return pa.Table.from_pandas(made, preserve_index=False)
    if isinstance(made, Mapping):
        return pa.table(dict(made))
    raise TypeError(f"it gave a {type(made).__name__}; a RecordBatch, a Table, a frame or a dict of arrays is wanted")
