"""Transforms that make a code of a value: by boundaries, or by its hash.

Their codes are whole numbers from 0 on, for embeddings; codes by value are a vocabulary's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from forebay.errors import ConfigError
from forebay.loader.column_statistics import ColumnStatistics
from forebay.loader.row_kernel import hash_numbers, hash_texts
from forebay.loader.table_columns import plain_type
from forebay.loader.table_transforms import ColumnTransform, Values, numbers_only
from forebay.loader.table_values import Array, as_numbers

__all__ = ["Bucketize", "HashBucket"]


@dataclass(frozen=True)
class Bucketize(ColumnTransform):
    """How many boundaries are at or below the value, int64: 0 to `len(boundaries)`. NaN is in the last bucket."""

    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        ordered = all(low < high for low, high in itertools.pairwise(self.boundaries))
        if not self.boundaries or not ordered or any(map(math.isnan, self.boundaries)):
            raise ConfigError(f"Bucketize({self.boundaries}): give one or more boundaries, each above the one before")

    @classmethod
    def of(cls, statistics: ColumnStatistics, buckets: int) -> Bucketize:
        """Buckets of about as many values each, by a column's quantiles; fewer where one value fills several."""
        if buckets < 2:
            raise ConfigError(f"Bucketize.of(buckets={buckets}): give 2 or more")
        return cls(tuple(sorted({statistics.quantile(k / buckets) for k in range(1, buckets)})))

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        numbers_only(self, kind)
        return pa.int64()

    def apply(self, values: Values) -> Array:
        """As the base class."""
        if values.dtype.kind == "f":
            boundaries = np.array(self.boundaries, np.float64)
            return np.searchsorted(boundaries, values.astype(np.float64, copy=False), side="right")
        kept, below = [], 0  # whole boundaries, since float64 does not hold all of int64
        info = np.iinfo(values.dtype)
        for boundary in self.boundaries:
            if boundary <= info.min:
                below += 1
            elif boundary <= info.max:
                kept.append(math.ceil(boundary))
        return np.searchsorted(np.array(kept, dtype=values.dtype), values, side="right") + below


@dataclass(frozen=True)
class HashBucket(ColumnTransform):
    """A bucket from 0 to `buckets` - 1 by the value's hash, int64; for values too many for a vocabulary.

    It is `xxh3_64(bytes, seed) % buckets`, of a text's UTF-8, of bytes as they are, and of a whole number's 8 bytes as
    a little-endian int64 (uint64 beyond it): stable everywhere and for good.
    """

    buckets: int
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.buckets) is not int or not 0 < self.buckets < 1 << 63:
            raise ConfigError(f"HashBucket({self.buckets!r}): give a whole number of buckets, 1 or more")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"HashBucket(seed={self.seed!r}): give a whole number of 64 bits")

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        kind = plain_type(kind)
        texts = types.is_large_string(kind) or types.is_large_binary(kind)
        if not (texts or types.is_integer(kind) or types.is_boolean(kind)):
            raise ConfigError(
                f"HashBucket takes texts, bytes and whole numbers, and this column holds {kind}; declare T.Bucketize"
            )
        return pa.int64()

    def apply(self, values: Values) -> Array:
        """As the base class."""
        if isinstance(values, pa.DictionaryArray):
            return self.apply(values.dictionary)[as_numbers(pc.cast(values.indices, pa.int64()))]
        hashes = hash_texts(values, self.seed) if isinstance(values, pa.Array) else hash_numbers(values, self.seed)
        return (hashes % np.uint64(self.buckets)).astype(np.int64)
