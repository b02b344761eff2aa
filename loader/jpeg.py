"""What a JPEG says of itself before its first scan: a walk over the markers that never looks outside the bytes.

ITU-T T.81 (1992), annex B; the orientation is that of Exif 2.3, tag 0x0112 of the first directory, or without one that
of XMP, as Pillow takes it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from forebay.errors import DecodeError

__all__ = ["JpegHeader", "exif_orientation", "read_header", "xmp_orientation"]

_SOI, _SOS, _APP1 = 0xD8, 0xDA, 0xE1
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_ORIENTATION = 0x0112
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_INTEGERS = {3: "H", 4: "I"}
"""Types of a TIFF tag, and how `struct` reads them: SHORT, as Exif has it, and LONG, which Pillow takes too."""
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')


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
    at, orientation, xmp = 2, None, None
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
        elif marker == _APP1 and orientation is None:
            segment = data[at + 4 : at + 2 + length]
            if segment[: len(_EXIF)] == _EXIF:
                orientation = exif_orientation(segment)
            elif xmp is None and segment[: len(_XMP)] == _XMP:
                xmp = xmp_orientation(segment)
        at += 2 + length
    if frame is None:
        raise DecodeError("the JPEG has a scan before any frame header")
    return JpegHeader(*frame, orientation or xmp or 1)


def exif_orientation(exif: bytes | memoryview) -> int | None:
    """The orientation in a block of Exif, from 1 to 8; None when it has none, or none that can be read."""
    tiff = memoryview(exif)
    if tiff[: len(_EXIF)] == _EXIF:
        tiff = tiff[len(_EXIF) :]
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 10:
        return None
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return None
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for entry in range(start + 2, min(start + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
        if tag == _ORIENTATION:
            if kind not in _INTEGERS or count != 1:
                return None
            (value,) = struct.unpack_from(order + _INTEGERS[kind], tiff, entry + 8)
            return value if 1 <= value <= 8 else None
    return None


def xmp_orientation(xmp: bytes | memoryview) -> int | None:
    """The orientation in a packet of XMP, from 1 to 8, or None."""
    found = _XMP_ORIENTATION.search(xmp)
    return None if found is None else int(found[1])
