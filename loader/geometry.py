"""Where the pixels of an output come from: declared steps put together into one window, one resize, one crop, one flip.

Pure values: a `View` is of one picture, `Views` are of those of a batch, made by a few calls for all of them. A decoder
that is given a `View` needs to look only at the rows and columns that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from forebay.loader.windows import Window

__all__ = ["Bools", "Ints", "View", "Views", "stored_window", "stored_windows"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Sides = tuple[Ints | int, Ints | int]


class View(NamedTuple):
    """A window of the upright picture, the size it becomes, the part of that which is kept, and whether mirrored."""

    top: int
    left: int
    height: int
    width: int
    scaled_height: int
    scaled_width: int
    crop_top: int
    """Where the output lies in the scaled window."""
    crop_left: int
    out_height: int
    out_width: int
    flipped: bool

    @classmethod
    def of_window(cls, window: Window, size: tuple[int, int], *, flipped: bool = False) -> Self:
        """All of a window, at some size (height, width)."""
        return cls(*window, *size, 0, 0, *size, flipped)


class _Axis(NamedTuple):
    """One axis of many views: int64 (n,) each."""

    start: Ints
    length: Ints
    scaled: Ints
    crop: Ints
    out: Ints

    @classmethod
    def whole(cls, length: Ints) -> Self:
        nothing = np.zeros_like(length)
        return cls(nothing, length, length, nothing, length)

    def cut(self, start: Ints | int, length: Ints | int) -> Self:
        return self._replace(crop=self.crop + start, out=self.out * 0 + length)

    def scale(self, kept: Bools, scaled: Ints | int) -> Self:
        """At another size, but for those that are kept as they are."""
        nothing = np.zeros_like(self.start)
        return type(self)(
            np.where(kept, self.start, self.start + self.crop),
            np.where(kept, self.length, self.out),
            np.where(kept, self.scaled, scaled),
            np.where(kept, self.crop, nothing),
            nothing + scaled,
        )

    def needed(self) -> tuple[Ints, Ints]:
        """Begin and length of what the output is computed from."""
        scale = self.length / np.maximum(self.scaled, 1)
        reach = np.maximum(scale, 1.0) + 1.0  # of the triangle, and of rounding
        first = np.maximum(0, np.floor((self.crop + 0.5) * scale - reach)).astype(np.int64)
        last = np.minimum(self.length, np.ceil((self.crop + self.out - 0.5) * scale + reach)).astype(np.int64)
        whole = (self.crop == 0) & (self.out == self.scaled)
        return self.start + np.where(whole, 0, first), np.where(whole, self.length, last - first)


@dataclass(frozen=True, slots=True)
class Views:
    """What is seen of the pictures of a batch, or of some of them."""

    samples: Ints
    """int64 (n,): the place of each in the batch."""
    down: _Axis
    across: _Axis
    flipped: Bools
    """bool (n,)."""
    known: Bools
    """bool (n,): False where what is seen is no single window, resize and crop; all else is then without meaning."""

    @classmethod
    def whole(cls, heights: Ints, widths: Ints, samples: Ints | None = None) -> Self:
        """The pictures as they are: int64 (n,) each; `samples` counts them from 0 unless it is given."""
        numbers = np.arange(len(heights)) if samples is None else samples
        no = np.zeros(len(heights), np.bool_)
        return cls(numbers, _Axis.whole(heights), _Axis.whole(widths), no, ~no)

    @classmethod
    def of(cls, views: Sequence[View]) -> Self:
        """These views."""
        d0, a0, d1, a1, d2, a2, d3, a3, d4, a4, flipped = np.array(views, np.int64).T
        known = np.ones(len(views), np.bool_)
        down, across = _Axis(d0, d1, d2, d3, d4), _Axis(a0, a1, a2, a3, a4)
        return cls(np.arange(len(views)), down, across, flipped.astype(np.bool_), known)

    def crop(self, tops: Ints | int, lefts: Ints | int, heights: Ints | int, widths: Ints | int) -> Self:
        """A part of what is seen now, the same of all or one of each; unknown where it does not lie within."""
        fits = (tops >= 0) & (lefts >= 0) & (self.down.out >= tops + heights) & (self.across.out >= lefts + widths)
        lefts = np.where(self.flipped, self.across.out - lefts - widths, lefts)
        return type(self)(
            self.samples,
            self.down.cut(tops, heights),
            self.across.cut(lefts, widths),
            self.flipped,
            self.known & fits,
        )

    def resize(self, size: Sides) -> Self:
        """What is seen now at another size (height, width); unknown where it was resized before: twice is not once."""
        down, across = self.down, self.across
        kept = (down.out == size[0]) & (across.out == size[1])
        resized = (down.scaled != down.length) | (across.scaled != across.length)
        return type(self)(
            self.samples,
            down.scale(kept, size[0]),
            across.scale(kept, size[1]),
            self.flipped,
            self.known & (kept | ~resized),
        )

    def flip(self, which: Bools | bool = True) -> Self:
        """What is seen now, left to right, of those that are named."""
        return type(self)(self.samples, self.down, self.across, self.flipped ^ which, self.known)

    def windows(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The windows of the pictures: top, left, height, width."""
        return self.down.start, self.across.start, self.down.length, self.across.length

    def sources(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The parts of the pictures that the outputs are computed from, a pixel or two to spare: as a window."""
        top, height = self.down.needed()
        left, width = self.across.needed()
        return top, left, height, width

    def fields(self) -> Ints:
        """int64 (n, 11): the fields of each `View`."""
        d, a = self.down, self.across
        columns = (d.start, a.start, d.length, a.length, d.scaled, a.scaled, d.crop, a.crop, d.out, a.out, self.flipped)
        return np.stack(columns, axis=1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> View | None:
        """The view of picture `i` of these; None where it is not known."""
        if not self.known[i]:
            return None
        *numbers, flipped = self.fields()[i].tolist()
        return View._make((*numbers, bool(flipped)))


def stored_window(window: Window, *, height: int, width: int, orientation: int) -> Window:
    """Where a window of the upright picture lies in the stored one.

    Args:
        window: top, left, height, width in the upright picture.
        height: of the stored picture.
        width: of the stored picture.
        orientation: Exif, 1 to 8.
    """
    top, left, rows, columns = window
    if orientation >= 5:  # the picture lies on its side: its rows are the upright columns
        top, left, rows, columns = left, top, columns, rows
        from_below, from_right = orientation in (6, 7), orientation in (7, 8)
    else:
        from_below, from_right = orientation in (3, 4), orientation in (2, 3)
    return (
        height - top - rows if from_below else top,
        width - left - columns if from_right else left,
        rows,
        columns,
    )


def stored_windows(
    windows: tuple[Ints, Ints, Ints, Ints], heights: Ints, widths: Ints, orientations: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """`stored_window` of many pictures: int64 (n,) each."""
    found = np.stack(windows)
    for i in np.flatnonzero(orientations != 1).tolist():
        top, left, height, width = found[:, i].tolist()
        found[:, i] = stored_window(
            (top, left, height, width), height=heights.item(i), width=widths.item(i), orientation=orientations.item(i)
        )
    top, left, height, width = found
    return top, left, height, width
