"""What a table's batch consists of, by name: types, shapes, and how each is kept between reading and gathering.

Values only; `table_plan.py` decides them, `table_gather.py` and `table_kept.py` act by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from forebay.loader.table_ragged import Padded, Ragged

__all__ = ["Layout", "TableOutput"]


class Layout(StrEnum):
    """How the rows of an output lie in memory."""

    FIXED = "fixed"
    """The same number of values each."""
    LISTS = "lists"
    """Numbers, as many as there are."""
    TEXTS = "texts"
    """A string or bytes each."""
    TEXT_LISTS = "text lists"
    """Lists of strings or bytes."""


@dataclass(frozen=True, slots=True)
class TableOutput:
    """One entry of a batch, that is kept in its own column."""

    name: str
    layout: Layout
    dtype: torch.dtype | None
    """None: a Python list of strings or bytes."""
    shape: tuple[int, ...]
    """Of a row, or of an element of a row's list."""
    source: tuple[str, ...]
    """What it is made of: each column and its type with unit and zone, such as "seen timestamp[us, tz=UTC]"."""
    ragged: Ragged | None = None
    """Of lists of numbers."""
    binary: bool = False
    """Of texts: whether they are bytes."""
    lengths: str | None = None
    """Name of the output that has the lists' lengths."""

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """The type of numbers as numpy calls it."""
        return np.dtype(str(self.dtype).removeprefix("torch."))

    @property
    def width(self) -> int:
        """Values a row, or an element of a row's list."""
        return math.prod(self.shape)

    @property
    def padded_shape(self) -> tuple[int, ...] | None:
        """Of a row of the batch's tensor where it is known before the batch is; else None."""
        if self.layout is Layout.FIXED:
            return self.shape
        if isinstance(self.ragged, Padded) and self.ragged.length is not None:
            return (self.ragged.length, *self.shape)
        return None
