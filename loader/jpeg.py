"""What a JPEG says of itself before its first scan: a walk over the markers that never looks outside the bytes.

ITU-T T.81 (1992), annex B; the orientation is that of Exif 2.3, tag 0x0112 of the first directory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forebay.errors import DecodeError

__all__ = ["JpegHeader", "read_header"]

_SOI, _SOS, _APP1 = 0xD8, 0xDA, 0xE1
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame header, and how the picture is to be turned."""

    sof: int
    """Kind of frame: 0 baseline, 1 extended, 2 progressive, 3 lossless, 9 and more arithmetic."""
    precision: int
    """Bits a component."""
    height: int
    width: int
    components: int
    orientation: int
    """Of Exif, 1 to 8; 1 is upright."""


def read_header(data: memoryview) -> JpegHeader:
    """Read the header of a JPEG.

    Args:
        data: the file's bytes, uint8 and one-dimensional.

    Raises:
        DecodeError: these are no JPEG, or one that is damaged before its first scan; says where.
    """
    size = len(data)
    if size < 4 or data[0] != 0xFF or data[1] != _SOI:
        raise DecodeError("not a JPEG: it does not begin with FF D8")
    at, orientation = 2, 1
    frame: tuple[int, int, int, int, int] | None = None
    while True:
        if at + 4 > size:
            raise DecodeError(f"the JPEG ends at byte {size}, within its headers")
        if data[at] != 0xFF:
            raise DecodeError(f"the JPEG has no marker at byte {at}, where one should be")
        marker = data[at + 1]
        if marker == 0xFF or marker in _STANDALONE:  # fill bytes, and markers without a segment
            at += 1 if marker == 0xFF else 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if marker == _SOS:
            break
        if length < 2 or at + 2 + length > size:
            raise DecodeError(f"the JPEG's segment FF {marker:02X} at byte {at} reaches past its end")
        if marker in _FRAMES and frame is None:
            if length < 8:
                raise DecodeError(f"the JPEG's frame header at byte {at} is too short")
            precision, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            frame = marker - 0xC0, precision, height, width, components
        elif marker == _APP1 and orientation == 1 and length >= 16:
            orientation = _exif_orientation(data[at + 4 : at + 2 + length])
        at += 2 + length
    if frame is None:
        raise DecodeError("the JPEG has a scan before any frame header")
    return JpegHeader(*frame, orientation)


def _exif_orientation(segment: memoryview) -> int:
    """The orientation in an APP1 segment; 1 when it has none, or none that can be read, as Pillow takes it."""
    if bytes(segment[:6]) != b"Exif\0\0":
        return 1
    tiff = segment[6:]
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 10:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for i in range(entries):
        entry = start + 2 + 12 * i
        if entry + 12 > len(tiff):
            return 1
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION:
            return value if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    return 1
