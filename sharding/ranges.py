"""Many ranges of files at once: read into memory and verified piece by piece, with the GIL released once.

The C source is `_ranges.c`. Without it the same is done here, in a Python loop of a few microseconds a range.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.sharding.checksum import sample_checksum

__all__ = ["FILLED", "Ranges"]

_load: Callable[..., None] | None
try:
    from forebay.sharding._ranges import load as _load
except ImportError:
    _load = None

FILLED = -1
"""In place of a file's descriptor: the bytes are there already."""


@dataclass(slots=True)
class Ranges:
    """Ranges to be read together, and the checksums of their pieces."""

    views: list[memoryview] = field(default_factory=list)
    """Memory of each range: writable where it is to be filled."""
    fds: list[int] = field(default_factory=list)
    """By range, the descriptor to fill it from, or `FILLED`."""
    offsets: list[int] = field(default_factory=list)
    """By range, where in the file it begins."""

    def add(self, view: memoryview, fd: int, offset: int) -> int:
        """One more range; its number."""
        self.views.append(view)
        self.fds.append(fd)
        self.offsets.append(offset)
        return len(self.views) - 1

    def load(self, pieces: npt.NDArray[np.int64], checksums: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Fill every range and verify its pieces.

        Args:
            pieces: int64 (pieces, 3): number of the range, in ascending order; begin and end within it.
            checksums: uint64 (pieces,) xxh3-64 that each was written with.

        Returns:
            bool (ranges,): which ranges were filled and are as they were written. Why another is not, reading it alone
            tells.
        """
        sound = np.zeros(len(self.views), np.bool_)
        given = (
            np.array(self.fds, np.int32),
            np.array(self.offsets, np.int64),
            np.ascontiguousarray(pieces, np.int64),
            np.ascontiguousarray(checksums, np.uint64),
        )
        (_load or _load_here)(self.views, *given, sound)
        return sound


def _load_here(
    views: Sequence[memoryview],
    fds: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    pieces: npt.NDArray[Any],
    checksums: npt.NDArray[Any],
    sound: npt.NDArray[np.bool_],
) -> None:
    for i, (view, fd, offset) in enumerate(zip(views, fds.tolist(), offsets.tolist(), strict=True)):
        sound[i] = fd == FILLED or (offset >= 0 and _read_fully(fd, view, offset))  # to preadv, -1 is where it last was
    for (i, begin, end), written in zip(pieces.tolist(), checksums.tolist(), strict=True):
        sound[i] = sound[i] and sample_checksum(views[i][begin:end]) == written


def _read_fully(fd: int, view: memoryview, offset: int) -> bool:
    try:
        while view:
            got = os.preadv(fd, [view], offset)
            if not got:
                return False
            view, offset = view[got:], offset + got
    except OSError:
        return False
    return True
