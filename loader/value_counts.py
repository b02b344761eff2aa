"""How often each value of a column comes, in bounded memory: exact while there are few, else short by a known number.

When there are too many values, all counts are lowered and the rarest dropped (Misra and Gries 1982, merged as in
Agarwal et al. 2012): a value that comes more often than `short_by` times is always there, and no count is too high.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigError
from forebay.loader.table_columns import TableColumn
from forebay.loader.table_values import as_numbers, unpack
from forebay.loader.vocabulary import Vocabulary

__all__ = ["ValueCounts"]

_PENDING_ROWS = 1 << 20


class ValueCounts:
    """A column's values in, a vocabulary out. Not safe in threads.

    Args:
        column: of texts, bytes or whole numbers, or of lists of them.
        max_values: different values that are counted at once.

    Raises:
        ConfigError: the column holds something else.
    """

    def __init__(self, column: TableColumn, *, max_values: int) -> None:
        if not (column.is_text or pa.types.is_integer(column.value)):
            raise ConfigError(
                f"column {column.name!r} is {column.type}; a vocabulary is made of texts, bytes and whole numbers, for "
                "other numbers declare T.Bucketize"
            )
        if max_values < 1:
            raise ConfigError(f"max_values={max_values}; give 1 or more")
        self._column, self._max_values = column, max_values
        self._counts = pa.table({"value": pa.array([], column.value), "count": pa.array([], pa.int64())})
        self._pending: list[pa.Table] = []
        self.values = self.nulls = self.short_by = 0

    def empty(self) -> ValueCounts:
        """Another one of the same column, that took nothing yet, to be merged into this one."""
        return ValueCounts(self._column, max_values=self._max_values)

    def update(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take a table's rows."""
        found = unpack(self._column, table.column(self._column.path[0]))
        values = found.values
        if found.valid is not None:
            self.nulls += int(np.count_nonzero(~found.valid))
            values = values.filter(pa.array(found.valid))
        self.values += len(values)
        counted = pc.value_counts(values)
        kinds = counted.field(0)
        if isinstance(kinds, pa.DictionaryArray):
            kinds = kinds.dictionary_decode()
        self._add(pa.table({"value": kinds.cast(self._column.value), "count": counted.field(1)}))

    def merge(self, other: ValueCounts) -> None:
        """Take what another one of the same column took."""
        other._settle()
        self.values += other.values
        self.nulls += other.nulls
        self.short_by += other.short_by
        self._add(other._counts)

    def _add(self, counted: pa.Table) -> None:
        self._pending.append(counted)
        if sum(len(table) for table in self._pending) > max(_PENDING_ROWS, self._max_values // 4):
            self._settle()

    def _settle(self) -> None:
        both = pa.concat_tables([self._counts, *self._pending])
        self._pending = []
        summed = both.group_by("value", use_threads=False).aggregate([("count", "sum")])
        counts = pa.table({"value": summed["value"], "count": summed["count_sum"]}).combine_chunks()
        if len(counts) > self._max_values:
            numbers = counts["count"].to_numpy()
            kept = max(self._max_values // 2, 1)  # half, so that it is not done again at once
            less = int(np.partition(numbers, len(numbers) - kept - 1)[len(numbers) - kept - 1])
            self.short_by += less
            lowered = pa.table({"value": counts["value"], "count": pa.array(numbers - less)})
            counts = lowered.filter(pa.array(numbers > less))
        self._counts = counts

    @property
    def distinct(self) -> int:
        """Different values that are counted now."""
        self._settle()
        return len(self._counts)

    def vocabulary(self, *, min_count: int = 1, max_size: int | None = None) -> Vocabulary:
        """The values by falling count; those of equal count in their own order.

        Args:
            min_count: values that came less often, as far as was counted, are left out.
            max_size: as many values at most.
        """
        self._settle()
        counts = self._counts.filter(pc.greater_equal(self._counts["count"], min_count))
        keys = [("count", "descending"), ("value", "ascending")]
        counts = counts.take(pc.sort_indices(counts, sort_keys=keys))
        if max_size is not None:
            counts = counts.slice(0, max_size)
        values = (
            pa.concat_arrays(counts["value"].chunks) if counts["value"].num_chunks else pa.array([], self._column.value)
        )
        numbers = as_numbers(counts["count"].combine_chunks())
        return Vocabulary(values, counts=numbers.tolist(), counts_short_by=self.short_by)
