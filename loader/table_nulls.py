"""What becomes of nulls, declared by column: a value, a mask beside the column, or NaN.

Without a rule a null is an error that names the column and the row group. This module knows rules and finds nulls; what
is done with them in a column stands in `table_values.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import ConfigError, SchemaError

__all__ = ["MASK_SUFFIX", "AsNaN", "Bools", "Fill", "Mask", "NullRule", "refuse_nulls", "valid_values"]

MASK_SUFFIX = "__mask"
"""Ends the name of an output that says where another one's values were: True where there was one."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Fill:
    """Put `value` in the place of each null, before any transform.

    Args:
        value: of the column's own kind; for dates and times, the number in the column's unit. A null list becomes an
            empty one, a null in a list becomes `value`. None, for texts and bytes alone, leaves None there.
    """

    value: Any

    def __post_init__(self) -> None:
        if self.value is not None and not isinstance(self.value, bool | int | float | str | bytes):
            raise ConfigError(f"Fill({self.value!r}): give a number, a bool, a text, bytes or None")


@dataclass(frozen=True)
class Mask:
    """Keep nulls as 0 (False, "") after all transforms, and say where they are not in a tensor beside it.

    Of a column `age` it is the output `age__mask`, bool, of `age`'s shape: True where there was a value. In lists it
    says so of each place; in a padded one the padding is False too.
    """


@dataclass(frozen=True)
class AsNaN:
    """Make each null a NaN, after all transforms; what comes out must be a floating type."""


NullRule = Fill | Mask | AsNaN
"""What `nulls={"column": ...}` takes."""


def valid_values(values: pa.Array) -> Bools | None:
    """Where there are values, bool (n,); None when all are."""
    if not values.null_count:
        return None
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def refuse_nulls(name: str, valid: Bools, where: str) -> SchemaError:
    """The error of nulls that no rule was declared for."""
    count = int(len(valid) - np.count_nonzero(valid))
    first = int(np.argmin(valid))
    return SchemaError(
        f"column {name!r} has {count} null{'' if count == 1 else 's'} in {where}, the first at place {first}; say what "
        f"becomes of them: nulls={{{name!r}: T.Fill(0)}}, T.Mask() or T.AsNaN()",
        column=name,
        where=where,
        nulls=count,
        first=first,
    )
