"""A picture as it was read: whole, or as much of a crop-addressable JPEG as some rows of its pixels need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.sharding import JpegLayout, sub_jpeg

__all__ = ["JpegPart"]


@dataclass(frozen=True, slots=True)
class JpegPart:
    """The header of a JPEG and some rows of its MCUs."""

    header: memoryview
    bands: memoryview
    first_row: int
    """Number of the row of MCUs that the bands begin with."""
    layout: JpegLayout
    read_whole: Callable[[], memoryview]
    """Reads and verifies all of it, for the careful decoder."""

    @property
    def nbytes(self) -> int:
        """Bytes that were read."""
        return len(self.header) + len(self.bands)

    def cut(self, window: tuple[int, int, int, int]) -> tuple[bytes, tuple[int, int]]:
        """A smaller JPEG that holds `window` (as stored), and where its first pixel lies; see `sub_jpeg`."""
        return sub_jpeg(self.header, self.bands, self.layout, self.first_row, window)
