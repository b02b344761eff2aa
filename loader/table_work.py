"""What is done to one column of a table: nulls settled, values encoded and transformed, as its plan declares.

Decided once, when the plan is made; refused then when it cannot work. It does not know how rows reach a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigError, SchemaError
from forebay.loader.table_columns import TableColumn
from forebay.loader.table_nulls import AsNaN, Bools, Fill, Mask, NullRule, refuse_nulls
from forebay.loader.table_transforms import Cast, ColumnTransform
from forebay.loader.table_values import Array, Unpacked, as_numbers, number_type, unpack
from forebay.loader.vocabulary import Vocabulary

__all__ = ["ColumnWork", "Made"]

Step = Vocabulary | ColumnTransform


@dataclass(frozen=True, slots=True)
class Made:
    """A column's rows, ready to be kept."""

    values: Array | pa.Array
    """Numbers one after the other, or texts."""
    offsets: np.ndarray[Any, np.dtype[np.int64]] | None
    """Of lists."""
    mask: Bools | None
    """By value, where there was one; only where a mask was declared."""


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """A column and what its declarations make of it; `ColumnWork.plan` makes one."""

    column: TableColumn
    rule: NullRule | None
    steps: tuple[Step, ...]
    dtype: np.dtype[Any] | None
    """Of what comes out; None: texts."""

    @classmethod
    def plan(
        cls,
        column: TableColumn,
        rule: NullRule | None,
        vocabulary: Vocabulary | None,
        transforms: Sequence[ColumnTransform],
    ) -> ColumnWork:
        """Check that a column's declarations fit it.

        Raises:
            ConfigError: they do not.
        """
        name = column.name
        steps: tuple[Step, ...] = (*([] if vocabulary is None else [vocabulary]), *transforms)
        if column.is_decimal and not (steps and isinstance(steps[0], Cast)):
            raise ConfigError(
                f"column {name!r} is {column.value}, for which there is no type of tensor; declare "
                f"transforms={{{name!r}: [T.Cast(torch.float64)]}}, or leave the column out with columns=",
                column=name,
            )
        kind = number_type(column.value)
        for step in steps:
            try:
                kind = step.result(kind)
            except ConfigError as error:
                raise ConfigError(f"column {name!r}: {error}", column=name) from error
        text = column.is_text and not steps
        dtype = None if text else np.dtype(kind.to_pandas_dtype())
        work = cls(column, rule, steps, dtype)
        work._check_rule()
        return work

    def _check_rule(self) -> None:
        name, rule = self.column.name, self.rule
        if rule is None:
            return
        if not isinstance(rule, Fill | Mask | AsNaN):
            raise ConfigError(f"nulls={{{name!r}: {rule!r}}}: give T.Fill(value), T.Mask() or T.AsNaN()", column=name)
        if isinstance(rule, AsNaN) and (self.dtype is None or self.dtype.kind != "f"):
            raise ConfigError(
                f"column {name!r} becomes {self.dtype or 'texts'}, which has no NaN; declare "
                f"transforms={{{name!r}: [T.Cast(torch.float64)]}} too, T.Fill(value) or T.Mask()",
                column=name,
            )
        if not isinstance(rule, Fill):
            return
        if self.column.is_text:
            binary = pa.types.is_large_binary(self.column.value)
            sound = isinstance(rule.value, bytes if binary else str) or (rule.value is None and self.dtype is None)
        else:
            sound = _is_value_of(rule.value, self._filled_dtype())
        if not sound:
            raise ConfigError(f"column {name!r} is {self.column.value}, and has no value {rule.value!r}", column=name)

    def _filled_dtype(self) -> np.dtype[Any]:
        dtype = self.column.dtype
        if dtype is None:  # decimals are filled when they are numbers
            dtype = np.dtype(self.steps[0].result(self.column.value).to_pandas_dtype())
        return dtype

    def make(self, array: pa.Array | pa.ChunkedArray, where: str) -> Made:
        """The column's rows.

        Args:
            array: the table's top-level column that it is in.
            where: for errors, file and row group.

        Raises:
            SchemaError: a null without a rule, or a value that a step refuses.
        """
        name = self.column.name
        found = unpack(self.column, array)
        if self.rule is None:
            for valid in (found.rows_valid, found.valid):
                if valid is not None and not valid.all():
                    raise refuse_nulls(name, valid, where)
        try:
            values = self._numbers(found) if self.dtype is not None else self._texts(found)
        except SchemaError as error:
            raise SchemaError(f"column {name!r} in {where}: {error}", column=name, where=where) from error
        mask = None
        if isinstance(self.rule, Mask):
            mask = np.ones(len(values), np.bool_) if found.valid is None else found.valid
        return Made(values, found.offsets, mask)

    def _texts(self, found: Unpacked) -> pa.Array:
        values = found.values
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        values = values.cast(self.column.value)
        if found.valid is not None and not (isinstance(self.rule, Fill) and self.rule.value is None):
            fill = self.rule.value if isinstance(self.rule, Fill) else _empty(self.column)
            values = pc.fill_null(values, pa.scalar(fill, self.column.value))
        return values

    def _numbers(self, found: Unpacked) -> Array:
        valid, steps = found.valid, list(self.steps)
        values: Any = found.values
        if valid is not None and steps and isinstance(steps[0], Vocabulary) and not isinstance(self.rule, Fill):
            values = steps.pop(0).apply(pc.if_else(pa.array(valid), values, None))  # a null is no unknown value
        elif self.column.is_text:
            values = self._texts(found) if valid is not None else values
        elif self.column.is_decimal:
            values = steps.pop(0).apply(values if valid is None else pc.fill_null(values, pa.scalar(0, values.type)))
        else:
            values = as_numbers(values)
        last = np.nan if isinstance(self.rule, AsNaN) else 0
        if valid is not None and isinstance(values, np.ndarray):
            values = values.copy()
            values[~valid] = self.rule.value if isinstance(self.rule, Fill) else 0 if steps else last
        for step in steps:
            values = step.apply(values)
        numbers: Array = values
        if steps and valid is not None and not isinstance(self.rule, Fill):
            numbers = np.array(numbers)
            numbers[~valid] = last
        return numbers


def _empty(column: TableColumn) -> str | bytes:
    return b"" if pa.types.is_large_binary(column.value) else ""


def _is_value_of(value: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if dtype.kind == "f":
        return True
    info = np.iinfo(dtype)
    return isinstance(value, int) and info.min <= value <= info.max
