"""Where the pixels of an output come from: declared steps put together into one window, one resize, one crop, one flip.

Pure values. A decoder that is given a `View` needs to look only at the rows and columns that it names.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from forebay.loader.windows import Window

__all__ = ["View", "stored_window"]


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
    def whole(cls, height: int, width: int) -> Self:
        """The picture as it is."""
        return cls(0, 0, height, width, height, width, 0, 0, height, width, False)

    def crop(self, window: Window) -> Self:
        """A part of what is seen now."""
        top, left, height, width = window
        if self.flipped:
            left = self.out_width - left - width
        crop_top, crop_left = self.crop_top + top, self.crop_left + left
        # The class itself: `_replace` takes four times as long, and this runs for every sample.
        return type(self)(*self[:6], crop_top, crop_left, height, width, self.flipped)

    def resize(self, size: tuple[int, int]) -> Self | None:
        """What is seen now at another size (height, width); None when it was resized before: twice is not once."""
        height, width = size
        if size == (self.out_height, self.out_width):
            return self
        if (self.scaled_height, self.scaled_width) != (self.height, self.width):
            return None
        top, left = self.top + self.crop_top, self.left + self.crop_left
        return type(self)(top, left, self.out_height, self.out_width, height, width, 0, 0, height, width, self.flipped)

    def flip(self) -> Self:
        """What is seen now, left to right."""
        return type(self)(*self[:10], not self.flipped)

    def source(self) -> Window:
        """The part of the picture that the output is computed from, a pixel or two to spare."""
        top, height = _needed(self.top, self.height, self.scaled_height, self.crop_top, self.out_height)
        left, width = _needed(self.left, self.width, self.scaled_width, self.crop_left, self.out_width)
        return top, left, height, width


def _needed(start: int, length: int, scaled: int, crop: int, out: int) -> tuple[int, int]:
    """One axis of `View.source`: begin and length."""
    if crop == 0 and out == scaled:
        return start, length
    scale = length / scaled
    reach = max(scale, 1.0) + 1.0  # of the triangle, and of rounding
    first = max(0, math.floor((crop + 0.5) * scale - reach))
    last = min(length, math.ceil((crop + out - 0.5) * scale + reach))
    return start + first, last - first


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
