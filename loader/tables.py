"""A table in Parquet as a data set of samples: what is read of it, what is made of a unit, and samples by index.

Where units come from is the cache's affair, how they become tensors the plan's (`table_plan`), when the engine's.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from forebay.cache import CacheConfig, TablePlace, UnitStore, count_rows, open_notes, open_table, open_units
from forebay.errors import ConfigError, SchemaError
from forebay.loader.outputs import TensorSpec
from forebay.loader.samples import INDEX, VALID, WEIGHT
from forebay.loader.slots import SlotPool
from forebay.loader.table_plan import TablePlan
from forebay.loader.tables_function import UnitFunction
from forebay.sharding import ParquetDataset, SchemaChange, check_filter

__all__ = ["MEMORY_NBYTES", "TableSamples", "TableView"]

Ints = npt.NDArray[np.int64]
MEMORY_NBYTES = 4 << 30
"""Bytes of units in memory, where no cache keeps them: a window of 64 units of 64 MiB."""
KEPT_NBYTES = 1 << 30
"""Bytes of units that `dataset[i]` keeps in memory."""
KEPT_UNITS = 256


class TableView:
    """What is read of a table. Immutable and thread-safe; pickles where source and functions do.

    Args:
        place: where its files lie, as they were found.
        cache: where footers and counts are kept.
        columns: that are read, or, with a `table_transform`, given to it.
        expression: `filter`.
        schema_change: what may differ between files.
        table_transform: applied to whole units.
        memory_nbytes: of units that one pass holds, where no cache keeps them.
        options: of `TablePlan`: stack, nulls, vocabularies, ragged, transforms.

    Raises:
        SourceError, ShardCorruptError, SchemaError, ConfigError: as `ShardDataset`.
    """

    def __init__(
        self,
        place: TablePlace,
        *,
        cache: CacheConfig | None,
        columns: Sequence[str] | None,
        expression: Any,
        schema_change: SchemaChange,
        table_transform: Callable[..., Any] | None,
        memory_nbytes: int,
        options: Mapping[str, Any],
    ) -> None:
        if isinstance(memory_nbytes, bool) or not isinstance(memory_nbytes, int) or memory_nbytes < 1:
            raise ConfigError(
                f"memory_nbytes={memory_nbytes!r}; give a whole, positive number of bytes, by default {MEMORY_NBYTES}"
            )
        self.memory_nbytes = memory_nbytes
        if expression is not None:
            check_filter(expression)
        self._function = None if table_transform is None else UnitFunction(table_transform)
        notes = open_notes(cache)
        table = open_table(place, notes, schema_change=schema_change)
        if self._function is None:
            self.plan = TablePlan(table.schema, columns=columns, **options)
            read: Sequence[str] = self.plan.columns
        else:
            read = table.schema.names if columns is None else _top_level(columns, table.schema, table.name)
            given = pa.schema([table.schema.field(name) for name in read])
            self.made: pa.Schema = self._function.schema_of(given, table.name)
            """Columns that the function gives."""
            self.plan = TablePlan(self.made, columns=None, **options)
        counts = None if expression is None else count_rows(table, read, expression, notes)
        identity = b"" if self._function is None else self._function.identity
        self.data = ParquetDataset(table, columns=read, expression=expression, identity=identity, counts=counts)

    def only(self, outputs: Sequence[str]) -> TableView:
        """The same view, of which batches hold fewer outputs. Units stay as they are; with no outputs none is read."""
        fewer = copy.copy(self)
        fewer.plan = self.plan.only(outputs)
        return fewer

    def open_store(self, cache: CacheConfig | None) -> UnitStore:
        """The way to prepared units. Whoever opens it closes it.

        Raises:
            CacheError: the cache's folder cannot hold a cache.
            ConfigError: the table lies within it.
        """
        return open_units(self.data, cache, self.prepare, identity=self.plan.identity)

    def prepare(self, unit: int, table: pa.Table) -> pa.RecordBatch:
        """What is kept of a unit's rows: the function's, ready to gather from.

        Raises:
            SampleError: the function failed, or gave another number of rows.
            SchemaError: it gave other columns than with no rows; or the plan refuses values, such as nulls.
        """
        where = self.data.where(unit)
        if self._function is not None:
            table = self._function.make(table, unit, where, self.made)
        return self.plan.prepare(table, where)

    def gather(self, units: Sequence[Any], which: Ints, rows: Ints, slots: SlotPool | None = None) -> dict[str, Any]:
        """The outputs of a batch: row `rows[i]` of unit `units[which[i]]` in place i.

        Args:
            units: opened by the plan.
            which: int64 (B,).
            rows: int64 (B,).
            slots: reused memory for outputs of known shape; new tensors when None.
        """
        out = {}
        for output in self.plan.outputs:
            if output.name not in self.plan.names:
                continue
            if slots is not None and (shape := output.padded_shape) is not None and output.dtype is not None:
                out[output.name] = slots.take(len(rows), TensorSpec(tuple(shape), output.dtype, channels_last=False))
        return dict(self.plan.gather(units, which, rows, out))


class TableSamples:
    """Samples by index: opens the store when first asked, and anew in each process that it is copied to. Thread-safe.

    Args:
        view: of the table.
        cache: where units are kept.
    """

    def __init__(self, view: TableView, cache: CacheConfig | None) -> None:
        self._view = view
        self._cache = cache
        self._lock = threading.Lock()
        self._process = -1
        self._store: UnitStore | None = None
        self._units: OrderedDict[int, tuple[Any, int]] = OrderedDict()

    def samples(self, indices: Ints, virtual: Sequence[str]) -> list[dict[str, Any]]:
        """The samples at these places, each a dict by output name."""
        view = self._view
        shards, rows = view.data.find(indices)
        units, which = np.unique(shards, return_inverse=True)
        with self._lock:
            outputs = view.gather([self._unit(unit) for unit in units.tolist()], which, rows)
        if INDEX in virtual:
            outputs[INDEX] = torch.from_numpy(indices)
        if VALID in virtual:
            outputs[VALID] = torch.ones(len(indices), dtype=torch.bool)
        if WEIGHT in virtual:
            outputs[WEIGHT] = torch.ones(len(indices), dtype=torch.float64)
        columns = {name: _one_by_one(value) for name, value in outputs.items()}
        return [{name: values[i] for name, values in columns.items()} for i in range(len(indices))]

    def _unit(self, unit: int) -> Any:
        if self._store is None or self._process != os.getpid():
            self._process, self._units = os.getpid(), OrderedDict()
            self._store = self._view.open_store(self._cache)
        if unit in self._units:
            self._units.move_to_end(unit)
        else:
            held = self._store.load(unit)
            self._units[unit] = self._view.plan.open(held.batch), held.memory_nbytes
            while len(self._units) > 1 and (
                len(self._units) > KEPT_UNITS or sum(nbytes for _, nbytes in self._units.values()) > KEPT_NBYTES
            ):
                self._units.popitem(last=False)
        return self._units[unit][0]

    def close(self) -> None:
        """Let go of the units, and close the store. It can be used again."""
        with self._lock:
            store, self._store = self._store, None
            mine = self._process == os.getpid()
            self._units.clear()
        if store is not None and mine:
            store.close()

    def __reduce__(self) -> Any:
        return type(self), (self._view, self._cache)


def _one_by_one(value: Any) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return value.unbind()
    return list(value)


def _top_level(columns: Sequence[str], schema: pa.Schema, where: str) -> list[str]:
    for name in columns:
        if name not in schema.names:
            raise SchemaError(
                f"there is no column {name!r} in {where}; there are {', '.join(schema.names[:20])}", column=name
            )
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns={list(columns)}: one is named twice")
    return list(columns)
