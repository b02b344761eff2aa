"""What a JPEG says of itself before its first scan: a walk over the markers that never looks outside the bytes.

ITU-T T.81 (1992), annex B; the orientation is that of Exif 2.3, tag 0x0112 of the first directory, or without one that
of XMP, as Pillow takes it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from forebay.errors import DecodeError

__all__ = ["JpegHeader", "exif_orientation", "mcu_size", "read_header", "scan_begin", "xmp_orientation"]

_SOI, _SOS, _DRI, _APP1 = 0xD8, 0xDA, 0xDD, 0xE1
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
    restart_interval: int
    """MCUs between restart markers; 0 without any."""
    frame_at: int
    """Where the frame header's marker stands."""
    scan_at: int
    """Where the marker of the first scan's header stands."""


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
    restart_interval = frame_at = 0
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
            frame_at = at
        elif marker == _DRI and length == 4:
            restart_interval = data[at + 4] << 8 | data[at + 5]
        elif marker == _APP1 and orientation is None:
            segment = data[at + 4 : at + 2 + length]
            if segment[: len(_EXIF)] == _EXIF:
                orientation = exif_orientation(segment)
            elif xmp is None and segment[: len(_XMP)] == _XMP:
                xmp = xmp_orientation(segment)
        at += 2 + length
    if frame is None:
        raise DecodeError("the JPEG has a scan before any frame header")
    return JpegHeader(*frame, orientation or xmp or 1, restart_interval, frame_at, at)


def mcu_size(data: memoryview, header: JpegHeader) -> tuple[int, int] | None:
    """Height and width in pixels of the MCUs of a scan of all components, by the frame header (T.81, A.2 and B.2.2).

    Returns:
        8, 16 or 32 each; None for a picture that is empty, not of 8 bits, not of 1 or 3 components, or sampled in a way
        that decoders do not take.
    """
    components = header.components
    frame = data[header.frame_at + 2 :][: 8 + 3 * components]
    if header.precision != 8 or components not in (1, 3) or not (header.height and header.width):
        return None
    if len(frame) != 8 + 3 * components or int.from_bytes(frame[:2], "big") != len(frame):
        return None
    if components == 1:
        return 8, 8  # whatever its factors say
    wide, tall = [both >> 4 for both in frame[9::3]], [both & 15 for both in frame[9::3]]
    widest, tallest = max(wide), max(tall)
    if min(wide) < 1 or min(tall) < 1 or any(widest % w or tallest % t for w, t in zip(wide, tall, strict=True)):
        return None
    if widest not in (1, 2, 4) or tallest not in (1, 2, 4):
        return None
    return (8 * tallest, 8 * widest) if sum(w * t for w, t in zip(wide, tall, strict=True)) <= 10 else None


def scan_begin(data: memoryview, header: JpegHeader) -> int | None:
    """Where the coefficients of the first scan begin, if it is of all components and the whole spectrum, else None."""
    scan = data[header.scan_at + 2 :][: 6 + 2 * header.components]
    if len(scan) != 6 + 2 * header.components or int.from_bytes(scan[:2], "big") != len(scan):
        return None
    whole = scan[2] == header.components and bytes(scan[-3:]) == b"\0\x3f\0"
    return header.scan_at + 2 + len(scan) if whole else None


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
