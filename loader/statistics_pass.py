"""Statistics of columns in one pass over tables of any size: what `forebay stats` shows.

Memory is a few MiB a column, whatever the data. Reading is somebody else's; it takes tables and gives values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import SchemaError
from forebay.loader.column_statistics import ColumnStatistics
from forebay.loader.distinct_count import DistinctCount
from forebay.loader.quantile_sketch import QuantileSketch
from forebay.loader.row_kernel import hash_numbers, hash_texts
from forebay.loader.table_columns import TableColumn, find_columns
from forebay.loader.table_values import Array, as_numbers, unpack

__all__ = ["QUANTILES", "StatisticsPass"]

QUANTILES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Which are told; `Bucketize.of` and `Clip.of` go between them by straight lines."""


class StatisticsPass:
    """Tables in, statistics out; those of parts can be merged. Not safe in threads.

    Args:
        schema: of the tables.
        columns: columns, structs or fields to look at; None takes all that numbers or texts can be made of.

    Raises:
        SchemaError: one of `columns` is of a type that has no statistics.
        ConfigError: one of `columns` is not there.
    """

    def __init__(self, schema: pa.Schema, columns: list[str] | None = None) -> None:
        self.left_out: dict[str, str] = {}
        """Columns that have no statistics, and why."""
        self._columns: list[_ColumnPass] = []
        if columns is not None:
            self._columns = [_ColumnPass(column) for column in find_columns(schema, columns)]
            return
        for field in schema:
            try:
                self._columns += [_ColumnPass(column) for column in find_columns(pa.schema([field]), None)]
            except SchemaError as error:
                self.left_out[field.name] = str(error)

    def empty(self) -> StatisticsPass:
        """Another one of the same columns, that took nothing yet, to be merged into this one."""
        other = StatisticsPass(pa.schema([]))
        other._columns = [_ColumnPass(one.column) for one in self._columns]
        return other

    @property
    def columns(self) -> list[str]:
        """The tables' columns that are needed."""
        return list(dict.fromkeys(one.column.path[0] for one in self._columns))

    def update(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take a table's rows."""
        for one in self._columns:
            one.update(table)

    def merge(self, other: StatisticsPass) -> None:
        """Take what another one of equal columns took."""
        for mine, theirs in zip(self._columns, other._columns, strict=True):
            mine.merge(theirs)

    def statistics(self) -> list[ColumnStatistics]:
        """Of each column, in the order of the schema."""
        return [one.statistics() for one in self._columns]


class _ColumnPass:
    def __init__(self, column: TableColumn) -> None:
        self.column = column
        self._count = self._nulls = self._nans = 0
        self._min: Any = None
        self._max: Any = None
        self._moments = (0, 0.0, 0.0)
        self._quantiles = QuantileSketch()
        self._distinct = DistinctCount()
        self._lengths = QuantileSketch()

    def update(self, table: pa.Table | pa.RecordBatch) -> None:
        found = unpack(self.column, table.column(self.column.path[0]))
        values = found.values
        if found.offsets is not None:
            self._lengths.update(np.diff(found.offsets))
            if found.rows_valid is not None:
                self._nulls += int(np.count_nonzero(~found.rows_valid))
        if found.valid is not None:
            self._nulls += int(np.count_nonzero(~found.valid))
            values = values.filter(pa.array(found.valid))
        self._count += len(values)
        if not len(values):
            return
        if self.column.is_text:
            self._update_texts(values)
        else:
            self._update_numbers(as_numbers(pc.cast(values, pa.float64()) if self.column.is_decimal else values))

    def merge(self, other: _ColumnPass) -> None:
        self._count += other._count
        self._nulls += other._nulls
        self._nans += other._nans
        if other._min is not None:
            self._bound(other._min, other._max)
        self._moments = _together(self._moments, other._moments)
        self._quantiles.merge(other._quantiles)
        self._distinct.merge(other._distinct)
        self._lengths.merge(other._lengths)

    def _update_texts(self, values: pa.Array) -> None:
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary.take(pc.unique(values.indices))
        self._distinct.update(hash_texts(values, 0))
        bounds = pc.min_max(values.cast(self.column.value))
        self._bound(bounds["min"].as_py(), bounds["max"].as_py())

    def _update_numbers(self, values: Array) -> None:
        if values.dtype.kind == "f":
            sound = ~np.isnan(values)
            self._nans += int(len(values) - np.count_nonzero(sound))
            values = values[sound] if not sound.all() else values
            if not len(values):
                return
        self._bound(values.min().item(), values.max().item())
        whole = values.astype(np.int64) if values.dtype == np.bool_ else values
        bits = (values.astype(np.float64) + 0.0).view(np.int64) if values.dtype.kind == "f" else whole  # -0.0 is 0.0
        self._distinct.update(hash_numbers(bits, 0))
        wide = whole.astype(np.float64)
        if not (finite := np.isfinite(wide)).all():
            wide = wide[finite]
        if len(wide):
            with np.errstate(over="ignore"):  # of numbers near the end of float64
                mean = float(wide.mean())
                self._moments = _together(self._moments, (len(wide), mean, float(np.square(wide - mean).sum())))
        self._quantiles.update(wide)

    def _bound(self, low: Any, high: Any) -> None:
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)

    def statistics(self) -> ColumnStatistics:
        column = self.column
        count, mean, squares = self._moments
        low, high = (_plain(bound) for bound in (self._min, self._max))
        return ColumnStatistics(
            name=column.name,
            type=str(column.type),
            count=self._count,
            nulls=self._nulls,
            nans=self._nans,
            min=low,
            max=high,
            mean=_finite(mean) if count else None,
            std=_finite(math.sqrt(squares / count)) if count and squares >= 0 else None,
            quantiles=_told(self._quantiles) if count else {},
            lengths=_told(self._lengths) if column.ragged else {},
            distinct=self._distinct.estimate(),
            distinct_is_exact=self._distinct.is_exact,
        )


def _together(left: tuple[int, float, float], right: tuple[int, float, float]) -> tuple[int, float, float]:
    """Count, mean and sum of squared distances of two parts as one (Chan, Golub and LeVeque 1979)."""
    count = left[0] + right[0]
    if not count:
        return left
    apart = right[1] - left[1]
    mean = left[1] + apart * (right[0] / count)
    return count, mean, left[2] + right[2] + apart * apart * (left[0] * (right[0] / count))


def _told(sketch: QuantileSketch) -> dict[str, float]:
    values = zip(QUANTILES, sketch.quantiles(QUANTILES), strict=True)
    return {str(fraction): value for fraction, value in values if math.isfinite(value)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """As JSON has it: bytes as hexadecimal digits, infinities as texts."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
