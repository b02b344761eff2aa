"""Several columns as one tensor: which type holds them all, and their values side by side in memory.

It decides by types alone, when a plan is made; a column that does not fit says what to declare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forebay.errors import ConfigError
from forebay.loader.table_cast import holds_all
from forebay.loader.table_values import Array

__all__ = ["Stack", "interleave", "stack_dtype"]

_BLOCK_ROWS = 2048
"""Written column by column while they are in the processor's cache: 1.3 times as fast as all rows at once."""


@dataclass(frozen=True)
class Stack:
    """Columns that become one tensor (B, F), in this order; a fixed-size list takes as many places as it has values.

    Args:
        columns: their names; each is part of the stack then, and no output by itself.
        dtype: of the tensor; None takes the smallest that holds all values of all columns.
    """

    columns: Sequence[str]
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or not self.columns:
            raise ConfigError(f"Stack({self.columns!r}): give a list of one or more names of columns")
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.dtype is not None and (not isinstance(self.dtype, torch.dtype) or self.dtype is torch.bfloat16):
            raise ConfigError(
                f"Stack(dtype={self.dtype!r}): give a torch.dtype that numpy has too, such as torch.float32"
            )


def stack_dtype(name: str, stack: Stack, members: Sequence[tuple[str, np.dtype[Any]]]) -> np.dtype[Any]:
    """The type of a stack.

    Raises:
        ConfigError: a column's type holds values that the stack's does not; says what to declare.
    """
    if stack.dtype is not None:
        target = np.dtype(str(stack.dtype).removeprefix("torch."))
    else:
        target = np.result_type(*(dtype for _, dtype in members))
    for column, dtype in members:
        if not holds_all(target, dtype):
            raise ConfigError(
                f"stack {name!r} is {target}, which does not hold every value of column {column!r}, {dtype}; declare "
                f"transforms={{{column!r}: [T.Cast(torch.{target})]}}, which refuses a value that would change, "
                f"T.Cast(torch.{target}, rounding=True), which rounds it, or T.Stack([...], dtype=...) of another type",
                stack=name,
                column=column,
            )
    return target


def interleave(columns: Sequence[Array], rows: int, dtype: np.dtype[Any]) -> Array:
    """`columns`, each (rows,) or (rows * width,), as (rows, F) of `dtype`, row after row."""
    widths = [len(column) // rows if rows else 1 for column in columns]
    out = np.empty((rows, sum(widths)), dtype)
    parts = [column.reshape(rows, width) for column, width in zip(columns, widths, strict=True)]
    for first in range(0, rows, _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        begin = 0
        for part, width in zip(parts, widths, strict=True):
            out[block, begin : begin + width] = part[block]
            begin += width
    return out
