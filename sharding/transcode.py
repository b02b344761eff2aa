"""JPEGs made crop-addressable, without a change to their pixels: what is refused, and how long a segment is.

The work on coefficients is the native part's (`_transcode.c`); without it there is no transcoding, only reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from forebay.errors import ConfigError, DecodeError
from forebay.sharding.addressable import describe_jpeg
from forebay.sharding.jpeg_header import JpegHeader, mcu_size, read_header

__all__ = ["TranscodeError", "can_transcode", "choose_segment", "make_addressable"]

_MAX_PIXELS = 1 << 27
"""As many as the loader decodes unless told otherwise; their coefficients take 800 MB."""
_SEGMENT_COST = 0.24
"""Of a segment, in MCUs: 8 % of bytes, counted twice, and 7 % of time."""
_HUFFMAN_FRAMES = frozenset({0, 1, 2})
_Transcoder = Callable[[memoryview, int, int], bytes]


class TranscodeError(ValueError):
    """A JPEG that cannot be made addressable without a change to what it shows; says why. Keep it as it is."""


def can_transcode() -> bool:
    """Whether `make_addressable` works here: whether forebay was installed with its native parts."""
    return _transcoder() is not None


def make_addressable(data: bytes | memoryview, *, segment_pixels: int | None = None) -> bytes:
    """Write a JPEG again so that `describe_jpeg` takes it: the same coefficients in other bytes.

    Every decoder gives the same pixels. All markers before the scan that are not about coding (Exif, XMP, ICC, Adobe,
    JFIF, comments) are kept byte for byte; what follows the end of the picture is left out. The result depends on
    coefficients and markers alone, so it comes out unchanged when transcoded again. The GIL is released.

    Args:
        data: a JPEG, not to be changed meanwhile.
        segment_pixels: width of a segment; the nearest is taken that divides a row. None: `choose_segment`.

    Raises:
        TranscodeError: it is damaged, arithmetic, lossless, not of 8 bits, CMYK, of several pictures (MPO), of more
            than 134 million pixels, or sampled as no decoder takes it; keep the original.
        ConfigError: forebay was installed without its native parts.
    """
    transcode = _transcoder()
    if transcode is None:
        raise ConfigError(
            "this forebay was installed without its native parts, which transcode JPEGs; install a C compiler and "
            "libjpeg-turbo's headers (Debian: apt install gcc python3-dev libjpeg62-turbo-dev) and then forebay again "
            "(FOREBAY_NATIVE=1 pip install --force-reinstall --no-deps --no-cache-dir --no-binary forebay forebay), or "
            "keep the JPEGs as they are"
        )
    view = memoryview(data)
    try:
        header = read_header(view)
    except DecodeError as error:
        raise TranscodeError(str(error)) from error
    mcu = mcu_size(view, header)
    if mcu is None or header.sof not in _HUFFMAN_FRAMES:
        raise TranscodeError(_refusal(header))
    mcus_per_row = -(-header.width // mcu[1])
    if segment_pixels is None:
        segment = choose_segment(mcus_per_row, mcu[1], header.width)
    else:
        segment = _nearest_divisor(mcus_per_row, segment_pixels / mcu[1])
    try:
        result = transcode(view, segment, _MAX_PIXELS)
    except ValueError as error:
        raise TranscodeError(f"the JPEG is not transcoded: {error}") from error
    if describe_jpeg(result) is None:
        raise TranscodeError("the JPEG has no bands when transcoded")
    return result


def choose_segment(mcus_per_row: int, mcu_width: int, width: int) -> int:
    """MCUs between restart markers: the divisor of a row that is best for random crops.

    A row of a window costs about one segment more than its pixels; a segment costs 3 bytes, about 8 % of an MCU's, and
    some time of its own. With 1 % of bytes counted as 2 % of time the sum is least at 24 to 32 pixels in small pictures
    and about 100 in large ones.

    Measured with 200 random resized crops (scale 0.08 to 1) of photographs each, simplejpeg 1.9 on one thread, medians
    of interleaved runs: speed of the decode of the smaller JPEG against that of the whole picture, and bytes against
    those with one segment a row, by the width of a segment.

        500 px, 4:4:4     24: 1.97, +2.9 %     56: 1.84, +1.2 %    168: 1.49, +0.3 %    row: 1.24
        400 px, 4:2:0     16: 1.87, +9.5 %     80: 1.78, +2.5 %                         row: 1.50
        1600 px, 4:4:4    32: 2.01, +7.8 %     64: 1.97, +4.0 %    160: 1.87, +1.5 %    row: 1.38
        1600 px, 4:2:0    32: 1.95, +4.2 %     64: 1.92, +2.2 %    160: 1.80, +0.8 %    row: 1.35
        2592 px, 4:2:0    32: 2.19, +3.5 %     96: 2.15, +2.1 %    144: 2.09, +1.8 %    row: 1.47
        4000 px, 4:2:0    32: 2.69, +2.3 %     80: 2.61, +0.9 %    160: 2.54, +0.5 %    row: 1.27
    """
    divisors = [divisor for divisor in range(1, mcus_per_row + 1) if mcus_per_row % divisor == 0]
    return min(divisors, key=lambda segment: segment * mcu_width / width + _SEGMENT_COST / segment)


def _nearest_divisor(number: int, wanted: float) -> int:
    """The divisor whose ratio with `wanted` is the smallest; the larger of two."""
    divisors = [divisor for divisor in range(number, 0, -1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: max(divisor / wanted, wanted / divisor))


def _refusal(header: JpegHeader) -> str:
    """Why a JPEG is not given to libjpeg-turbo at all."""
    if header.sof not in _HUFFMAN_FRAMES:
        kind = {3: "lossless", 5: "hierarchical", 6: "hierarchical", 7: "lossless"}.get(header.sof, "arithmetic")
        return f"the JPEG is {kind} (SOF{header.sof})"
    if header.precision != 8:
        return f"the JPEG has {header.precision} bits a component, and 8 are needed"
    if header.components not in (1, 3):
        kind = "CMYK or YCCK: " if header.components == 4 else ""
        return f"the JPEG is {kind}{header.components} components, and 1 or 3 are needed"
    return (
        f"the JPEG's frame header ({header.width} x {header.height} pixels) or its sampling is none that decoders take"
    )


def _transcoder() -> _Transcoder | None:
    try:
        module = importlib.import_module("forebay.sharding._transcode")
    except ImportError:
        return None
    transcode: _Transcoder = module.transcode
    return transcode
