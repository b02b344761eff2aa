"""The head of a program: the declared steps that a decoder can do by itself, while it decodes.

Geometry becomes one `View` of the picture, and whatever is done to single values becomes a table of what each of the
256 does become, computed by the very steps that it stands for, so that the results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from forebay.loader.draws import NO_NUMBERS, Draws
from forebay.loader.geometry import Ints, Views
from forebay.loader.steps import Step

__all__ = ["Head", "compile_head"]

_LARGEST_VALUE = 8
"""Bytes of a value in a table."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first steps of a program on one image column. Thread-safe: it keeps nothing."""

    steps: tuple[Step, ...]
    """In order; geometry, and functions of single values."""
    size: tuple[int, int]
    """Height and width after it, of every sample."""
    dtype: torch.dtype
    table: npt.NDArray[np.uint8] | None
    """uint8 (3, 256 * itemsize): what each value of each channel becomes in memory; None: it stays."""
    first: int = 0
    """Which step of the program is the first of these."""

    @property
    def end(self) -> int:
        """Which step of the program comes next."""
        return self.first + len(self.steps)

    @property
    def resizes(self) -> bool:
        """Whether pictures are interpolated."""
        return any(step.resizes for step in self.steps)

    def views(self, heights: Ints, widths: Ints, draws: Draws, samples: Ints) -> Views:
        """Where the pixels of some samples of a batch come from, in upright pictures of these sizes.

        Unknown are those where the steps are not one view: edges are to be added, it is resized twice, or a step would
        raise.

        Args:
            heights: int64 (n,).
            widths: int64 (n,).
            draws: of the batch.
            samples: int64 (n,): their places in the batch; one at least.
        """
        views = Views.whole(heights, widths, samples)
        for k, step in enumerate(self.steps, self.first):
            if step.pointwise:
                continue
            after = step.trace(views, draws, k)
            if after is None:
                return replace(views, known=np.zeros(len(views), np.bool_))
            views = after
        return views


def compile_head(
    steps: Sequence[Step], *, first: int = 0, size: tuple[int, int] | None = None, dtype: torch.dtype = torch.uint8
) -> Head | None:
    """The longest head of `steps` whose size is known; None when there is none.

    Args:
        steps: of a program, from step number `first` on.
        first: 0 but where the steps before are done by somebody else.
        size: height and width of every sample before them, where that is known.
        dtype: of the pictures before them.
    """
    best = None if size is None else Head((), size, dtype, None, first)
    taken: list[Step] = []
    for step in steps:
        if step.opaque or (step.resizes and any(before.pointwise for before in taken)):
            break  # to resize changed values is something else
        if step.dtype_after(dtype).itemsize > _LARGEST_VALUE:
            break
        taken.append(step)
        size = step.size_after(size)
        dtype = step.dtype_after(dtype)
        if size is not None:
            best = Head(tuple(taken), size, dtype, _table(taken), first)
    return best


def _table(steps: Sequence[Step]) -> npt.NDArray[np.uint8] | None:
    pointwise = [step for step in steps if step.pointwise]
    if not pointwise:
        return None
    ramp = (
        torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    )
    values = [ramp]
    for step in pointwise:
        values = step.run(values, (False,), NO_NUMBERS, None)
    memory: npt.NDArray[np.uint8] = values[0].contiguous().view(3, 256).view(torch.uint8).numpy()
    return np.ascontiguousarray(memory)
