"""Numbers of one type as numbers of another: exactly, or with the rounding that was asked for.

It decides by the values that are there; which types a declaration may leave to chance is decided by its callers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from forebay.errors import SchemaError
from forebay.loader.table_values import Array, as_numbers

__all__ = ["cast_decimals", "cast_numbers", "holds_all"]

_DIGITS = {"float16": 11, "float32": 24, "float64": 53}
"""Bits of a floating type's significand: whole numbers up to 2 to this power are exact."""


def holds_all(target: np.dtype[Any], source: np.dtype[Any]) -> bool:
    """Whether every value of type `source` is one of type `target` too."""
    if source == target or source.kind == "b":
        return True
    if target.kind == "f":
        bits = source.itemsize * 8 - (source.kind == "i")
        return source.itemsize <= target.itemsize if source.kind == "f" else bits <= _DIGITS[target.name]
    return target.kind in "iu" and source.kind in "iu" and bool(np.can_cast(source, target))


def cast_numbers(values: Array, dtype: np.dtype[Any], *, rounding: bool) -> Array:
    """`values` as `dtype`.

    Raises:
        SchemaError: a value that would not stay what it is, without `rounding`; or that no value of `dtype` is near.
    """
    if dtype == values.dtype:
        return values
    if dtype.kind == "b":
        _demand((values == 0) | (values == 1), values, dtype, "0 and 1 are bools")
        return values.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
        if holds_all(dtype, values.dtype):
            return cast
        if dtype.kind == "f":
            if not rounding:
                sound = np.isfinite(cast) | ~np.isfinite(values) if values.dtype.kind == "f" else _same(cast, values)
                _demand(sound, values, dtype, "declare T.Cast(..., rounding=True) or a wider type")
            return cast
        info = np.iinfo(dtype)
        inside = (
            (values >= info.min) & (values < 2.0 ** _bits(info)) if values.dtype.kind == "f" else _within(values, info)
        )
        _demand(inside, values, dtype, "declare T.Clip before it, or a wider type")
        if values.dtype.kind == "f" and not rounding:
            _demand(cast == values, values, dtype, "declare T.Cast(..., rounding=True), which cuts fractions off")
    return cast


def cast_decimals(values: pa.Array, dtype: np.dtype[Any], *, rounding: bool) -> Array:
    """Decimals as `dtype`: rounded to the nearest floating number, or whole.

    Raises:
        SchemaError: a value that a whole type does not hold.
    """
    assert types.is_decimal(values.type)
    if dtype.kind == "f":
        return cast_numbers(as_numbers(pc.cast(values, pa.float64())), dtype, rounding=rounding)
    try:
        whole = pc.cast(values, pa.int64(), safe=not rounding)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{values.type} does not fit into {dtype} ({error}); declare T.Cast(torch.float64)"
        ) from error
    return cast_numbers(as_numbers(whole), dtype, rounding=rounding)


def _bits(info: Any) -> int:
    return int(info.bits) - int(info.min < 0)


def _within(values: Array, info: Any) -> Array:
    have = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
    inside = np.ones(len(values), np.bool_)
    if have is not None and have.min < info.min:
        inside &= values >= values.dtype.type(info.min)
    if have is not None and have.max > info.max:
        inside &= values <= values.dtype.type(info.max)
    return inside


def _same(cast: Array, values: Array) -> Array:
    """Whether whole numbers are still the same as floating ones; no cast back, which would wrap around."""
    limit = 1 << _DIGITS[cast.dtype.name]
    magnitude = np.abs(values) if values.dtype.kind == "u" else np.maximum(values, -(values + 1)) + 0
    near = magnitude < limit
    if near.all():
        return near
    wide = np.iinfo(values.dtype)
    top = np.isfinite(cast) & (cast.astype(np.float64) < 2.0 ** _bits(wide))
    back = np.where(top, cast, 0).astype(values.dtype)
    same: Array = near | (top & (back == values))
    return same


def _demand(sound: Array, values: Array, dtype: np.dtype[Any], advice: str) -> None:
    if not np.all(sound):
        place = int(np.argmin(sound))
        raise SchemaError(
            f"{values[place]} at place {place} ({values.dtype}) is no value of {dtype}; {advice}",
            value=values[place].item(),
            place=place,
        )
