"""The units of a table: what its order mixes, its reader reads and its cache keeps, as shards elsewhere.

A unit is a row group of a file; a large one is divided by rows, small neighbours of one file are joined. Arithmetic on
what the footers say; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST_NBYTES", "SMALLEST_NBYTES", "Units", "plan_units"]

Int64s = npt.NDArray[np.int64]
LARGEST_NBYTES = 64 << 20
"""Arrow data of a unit at most, about: as a shard."""
SMALLEST_NBYTES = 1 << 20
"""Row groups are joined until they have as much."""


@dataclass(frozen=True, slots=True)
class Units:
    """All units, column by column; each array has one value a unit."""

    files: Int64s
    first_groups: Int64s
    end_groups: Int64s
    """Behind the last row group."""
    begins: Int64s
    """The first row, counted from the beginning of the first row group."""
    ends: Int64s
    nbytes: Int64s
    """Arrow data, as estimated."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def rows(self) -> Int64s:
        """Rows as they lie in the file, before any filter."""
        return self.ends - self.begins

    def siblings(self, unit: int) -> range:
        """The units that one row group was divided into, this one among them: decoding it gives them all."""
        group = (self.files[unit], self.first_groups[unit])
        first, end = unit, unit + 1
        while first > 0 and (self.files[first - 1], self.first_groups[first - 1]) == group:
            first -= 1
        while end < len(self) and (self.files[end], self.first_groups[end]) == group:
            end += 1
        return range(first, end)


def plan_units(group_starts: Int64s, group_rows: Int64s, group_nbytes: Int64s) -> Units:
    """Divide and join the row groups of all files.

    Args:
        group_starts: (files + 1,) where each file's row groups begin in the other two.
        group_rows: rows of each row group.
        group_nbytes: bytes that each is estimated to have as Arrow data.
    """
    units: list[tuple[int, int, int, int, int, int]] = []
    rows, nbytes = group_rows.tolist(), group_nbytes.tolist()
    starts = group_starts.tolist()
    for file, (begin, end) in enumerate(pairwise(starts)):
        units.extend((file, *unit) for unit in _units_of_file(rows[begin:end], nbytes[begin:end]))
    table = np.array(units, np.int64).reshape(len(units), 6)
    columns = [np.ascontiguousarray(table[:, k]) for k in range(6)]
    for column in columns:
        column.flags.writeable = False
    return Units(*columns)


def _units_of_file(rows: list[int], nbytes: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    first, joined_rows, joined_nbytes = 0, 0, 0
    for group, (count, size) in enumerate(zip(rows, nbytes, strict=True)):
        if size > LARGEST_NBYTES and count > 1:
            if joined_rows:
                yield first, group, 0, joined_rows, joined_nbytes
            pieces = min(count, -(-size // LARGEST_NBYTES))
            bounds = [count * k // pieces for k in range(pieces + 1)]
            for begin, end in pairwise(bounds):
                yield group, group + 1, begin, end, size * (end - begin) // count
            first, joined_rows, joined_nbytes = group + 1, 0, 0
            continue
        joined_rows, joined_nbytes = joined_rows + count, joined_nbytes + size
        if joined_nbytes >= SMALLEST_NBYTES:
            if joined_rows:
                yield first, group + 1, 0, joined_rows, joined_nbytes
            first, joined_rows, joined_nbytes = group + 1, 0, 0
    if joined_rows:
        yield first, len(rows), 0, joined_rows, joined_nbytes
