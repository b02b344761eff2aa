"""Part of a crop-addressable JPEG as it comes from a file: its header and some bands, in one read or two, verified.

It knows neither shards nor pixels: `ShardReader.read_jpeg` says where, `bands_of` which bands, `sub_jpeg` what for.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.sharding.addressable import JpegLayout
from forebay.sharding.checksum import sample_checksum

__all__ = ["GAP_NBYTES", "find_damage", "read_part"]

GAP_NBYTES = 16 << 10
"""Bytes between the header and the bands from which on these are read apart: copying fewer is less than a call."""


def read_part(
    read: Callable[[int, int], memoryview], layout: JpegLayout, first: int, end: int
) -> tuple[memoryview, memoryview]:
    """The header and the bands from `first` to before `end`.

    Args:
        read: gives the bytes of a range, as offset within the JPEG and length; its errors are passed on.
        layout: of the JPEG.
        first: number of the first band.
        end: number of the band after the last one.
    """
    header_nbytes = layout.header_nbytes
    gap = sum(layout.band_nbytes[:first])
    nbytes = sum(layout.band_nbytes[first:end])
    if gap < GAP_NBYTES:
        view = read(0, header_nbytes + gap + nbytes)
        return view[:header_nbytes], view[header_nbytes + gap :]
    return read(0, header_nbytes), read(header_nbytes + gap, nbytes)


def find_damage(layout: JpegLayout, header: memoryview, bands: memoryview, first: int) -> str | None:
    """What is not as it was written in a header and in whole bands from `first` on; None when all is."""
    if (found := sample_checksum(header)) != layout.header_checksum:
        return f"its header has checksum {found:#018x}, and {layout.header_checksum:#018x} was written"
    begin = 0
    band = first
    while begin < len(bands):
        end = begin + layout.band_nbytes[band]
        if (found := sample_checksum(bands[begin:end])) != (written := layout.band_checksums[band]):
            return f"its band {band} has checksum {found:#018x}, and {written:#018x} was written"
        begin = end
        band += 1
    return None
