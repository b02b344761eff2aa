"""Declared transforms of table columns: vectorised, the same at training and at serving, saved with the model as JSON.

Each takes a column's values as a whole; the functions behind them know no nulls, which have been settled before. Also
called directly, on an array, a tensor or a list of texts: `T.HashBucket(1000)(["a", "b"])`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types
from torch import Tensor

from forebay.errors import ConfigError, SchemaError
from forebay.loader.column_statistics import ColumnStatistics
from forebay.loader.table_cast import cast_decimals, cast_numbers
from forebay.loader.table_values import Array, as_numbers

__all__ = ["Cast", "Clip", "ColumnTransform", "Log1p", "Standardize", "Values", "numbers_only"]

Values: TypeAlias = Array | Any
"""Numbers as numpy has them, or texts and decimals as Arrow has them."""


@dataclass(frozen=True)
class ColumnTransform:
    """What all of them promise; subclasses are frozen dataclasses of numbers and types."""

    def result(self, kind: pa.DataType) -> pa.DataType:
        """The type that values of type `kind` become.

        Raises:
            ConfigError: it cannot take that type; says what can be done.
        """
        raise NotImplementedError

    def apply(self, values: Values) -> Array:
        """New values for all of `values`, none of which is null; they are not written to."""
        raise NotImplementedError

    def __call__(self, values: Any) -> Any:
        """The same for a model that serves: a tensor for a tensor, an array for an array or a list."""
        if isinstance(values, Tensor):
            return torch.from_numpy(np.ascontiguousarray(self(values.numpy())))
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            kind = pa.from_numpy_dtype(values.dtype)
        else:
            values = values if isinstance(values, pa.Array) else pa.array(values)
            kind = values.type
            if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
                values = as_numbers(values)
        self.result(kind)
        return self.apply(values)


def numbers_only(transform: ColumnTransform, kind: pa.DataType) -> None:
    """Raise unless values of type `kind` are numbers.

    Raises:
        ConfigError: they are not; says what to declare.
    """
    if not (types.is_integer(kind) or types.is_floating(kind)):
        name = type(transform).__name__
        advice = (
            "T.Cast(torch.float64) before it" if types.is_decimal(kind) else "a vocabulary, or T.HashBucket(buckets)"
        )
        raise ConfigError(f"{name} takes numbers, and this column holds {kind}; declare {advice}")


def _real(kind: pa.DataType) -> pa.DataType:
    """The floating type that results are rounded to."""
    return pa.float64() if types.is_float64(kind) else pa.float32()


def _rounded(results: Array, values: Values) -> Array:
    return results if values.dtype == np.float64 else results.astype(np.float32)


@dataclass(frozen=True)
class Cast(ColumnTransform):
    """Numbers of another type.

    A value that the type does not hold is an error that names it, with two exceptions: floating numbers are rounded to
    a shorter floating type, decimals to any. Decimals need it, for there is no tensor of them.

    Args:
        dtype: such as torch.float32.
        rounding: also let whole numbers be rounded to the nearest floating one, fractions be cut off, and what is too
            large become infinite.
    """

    dtype: torch.dtype
    rounding: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"Cast({self.dtype!r}): give a torch.dtype, such as torch.float32")
        if self.dtype.is_complex or self.dtype is torch.bfloat16:
            raise ConfigError(f"Cast({self.dtype}): give a bool, a whole or a floating type that numpy has too")

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(str(self.dtype).removeprefix("torch."))

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        if types.is_large_string(kind) or types.is_large_binary(kind):
            raise ConfigError(f"Cast takes numbers, and this column holds {kind}; declare a vocabulary or T.HashBucket")
        return pa.from_numpy_dtype(self._numpy)

    def apply(self, values: Values) -> Array:
        """As the base class."""
        if isinstance(values, pa.Array):
            return cast_decimals(values, self._numpy, rounding=self.rounding)
        return cast_numbers(values, self._numpy, rounding=self.rounding)


@dataclass(frozen=True)
class Standardize(ColumnTransform):
    """(x - mean) / std, computed in float64; float32 comes out, of a float64 column float64. std 0 counts as 1."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise ConfigError(f"Standardize(mean={self.mean}, std={self.std}): give finite numbers, std 0 or more")

    @classmethod
    def of(cls, statistics: ColumnStatistics) -> Standardize:
        """With a column's mean and standard deviation."""
        return cls(statistics.number("mean"), statistics.number("std"))

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        numbers_only(self, kind)
        return _real(kind)

    def apply(self, values: Values) -> Array:
        """As the base class."""
        centred = np.subtract(values, self.mean, dtype=np.float64)
        centred /= self.std or 1.0
        return _rounded(centred, values)


@dataclass(frozen=True)
class Clip(ColumnTransform):
    """Values below `low` become `low`, those above `high` become `high`; the type stays. NaN stays NaN."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ConfigError("Clip(): give low=, high= or both")
        if any(bound is not None and math.isnan(bound) for bound in (self.low, self.high)):
            raise ConfigError(f"Clip(low={self.low}, high={self.high}): give numbers")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"Clip(low={self.low}, high={self.high}): low is above high")

    @classmethod
    def of(cls, statistics: ColumnStatistics, low: float, high: float) -> Clip:
        """With two quantiles of a column, such as 0.01 and 0.99."""
        return cls(statistics.quantile(low), statistics.quantile(high))

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        numbers_only(self, kind)
        return kind

    def apply(self, values: Values) -> Array:
        """As the base class."""
        low, high = self.low, self.high
        if values.dtype.kind in "iu":  # x >= 0.5 is x >= 1, and a bound outside the type bounds nothing
            bounds = np.iinfo(values.dtype)
            low = (
                int(min(max(bounds.min, math.ceil(low)), bounds.max)) if low is not None and low > bounds.min else None
            )
            high = (
                int(max(min(bounds.max, math.floor(high)), bounds.min))
                if high is not None and high < bounds.max
                else None
            )
        if low is None and high is None:
            return values
        clipped: Array = np.clip(values, low, high)
        return clipped.astype(values.dtype, copy=False)


@dataclass(frozen=True)
class Log1p(ColumnTransform):
    """log(1 + x), computed in float64; float32 comes out, of a float64 column float64.

    Args:
        signed: sign(x) * log(1 + |x|), for columns that also go below 0. Otherwise a value of -1 or less is an error.
    """

    signed: bool = False

    def result(self, kind: pa.DataType) -> pa.DataType:
        """As the base class."""
        numbers_only(self, kind)
        return _real(kind)

    def apply(self, values: Values) -> Array:
        """As the base class."""
        if self.signed:
            wide = np.asarray(values, np.float64)
            return _rounded(np.copysign(np.log1p(np.abs(wide)), wide), values)
        if len(values) and np.any(values <= -1):
            raise SchemaError(
                f"Log1p: {np.nanmin(values)} has no logarithm of 1 + x; declare T.Log1p(signed=True) or T.Clip(low=0)"
            )
        return _rounded(np.log1p(values, dtype=np.float64), values)
