"""What every sample of an output surely is, so that a batch of them can be made in place. It makes no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forebay.loader.media_steps import timed_shape
from forebay.loader.steps import Step
from forebay.loader.transforms import Transform
from forebay.sharding import Column, Kind

__all__ = ["TensorSpec", "array_spec", "timed_spec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What every sample of an output surely is, so that a batch of them can be made in place."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool

    def memory_layout(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape in memory of a batch of `count`, and the permutation that gives it the shape it is seen with."""
        if self.channels_last:
            *several, channels, height, width = self.shape
            n = 1 + len(several)
            return (count, *several, height, width, channels), (*range(n), n + 2, n, n + 1)
        return (count, *self.shape), tuple(range(len(self.shape) + 1))


def array_spec(column: Column) -> TensorSpec | None:
    """Of a column of arrays, taken as they are; None where their shape varies, or of another column."""
    if column.kind is not Kind.TENSOR or column.is_variable or column.shape is None:
        return None  # masks have 8 or 16 bits; the rest is stacked as it is
    shape = tuple(size for size in column.shape if size is not None)
    return TensorSpec(shape, torch.from_numpy(np.empty(0, column.dtype)).dtype, channels_last=False)


def timed_spec(kind: Kind, transforms: Sequence[Transform], steps: Sequence[Step]) -> TensorSpec | None:
    """Of audio or video after the steps of these transforms; None where samples may differ."""
    shape = timed_shape(kind, transforms, steps)
    if shape is None:
        return None
    if kind is Kind.AUDIO:
        return TensorSpec(shape, torch.float32, channels_last=False)
    dtype = torch.uint8
    for step in steps:
        dtype = step.dtype_after(dtype)
    return TensorSpec(shape, dtype, channels_last=True)
