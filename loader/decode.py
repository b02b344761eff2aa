"""Encoded pictures to pixels: a quick way for common JPEGs, a careful one for everything else.

Colours are Pillow's `convert("RGB")` (CMYK, grey, palette; alpha is dropped), with two rules of our own: the EXIF
orientation is applied, and 16-bit samples are scaled to 8 by their high byte. Animations give their first frame.

Pillow's plugins are called directly, not through `Image.open`: that would apply Pillow's own pixel bound (a warning
from 89 million on, a refusal from 179 million on, whatever `max_pixels` says) and load every plugin for what is no
picture. Tags that may be damaged are not read where they can be left alone, since Pillow warns of them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from forebay.errors import DecodeError
from forebay.loader.encoded import JpegPart
from forebay.loader.geometry import stored_window
from forebay.loader.windows import Window
from forebay.sharding import JpegHeader, exif_orientation, read_header, xmp_orientation

__all__ = [
    "MAX_PIXELS",
    "Orientation",
    "Pixels",
    "Scratch",
    "decode_image",
    "decode_mask",
    "decode_window",
    "picture_size",
]

Pixels = npt.NDArray[np.uint8]
Orientation = Literal["apply", "ignore"]
_Numbers = TypeVar("_Numbers", npt.NDArray[np.uint8], npt.NDArray[np.int32])

MAX_PIXELS = 1 << 27
"""134 million pixels, 400 MB decoded: four times the largest camera, a thirtieth of what a JPEG header can claim."""
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0", b"MM\0+")  # also with its bytes swapped, and BigTIFF
_AVIF_BRANDS = (b"avif", b"avis", b"mif1", b"msf1")
_OPENERS: dict[str, tuple[Callable[[bytes], bool], Callable[[io.BytesIO], Image]]] = {
    "JPEG": (lambda head: head.startswith(b"\xff\xd8\xff"), JpegImageFile),
    "PNG": (lambda head: head.startswith(b"\x89PNG\r\n\x1a\n"), PngImageFile),
    "WebP": (lambda head: head.startswith(b"RIFF") and head[8:12] == b"WEBP", WebPImageFile),
    "AVIF": (lambda head: head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS, AvifImageFile),
    "GIF": (lambda head: head.startswith((b"GIF87a", b"GIF89a")), GifImageFile),
    "BMP": (lambda head: head.startswith(b"BM"), BmpImageFile),
    "TIFF": (lambda head: head.startswith(_TIFF_MAGIC), TiffImageFile),
    "PPM": (lambda head: head[:1] == b"P" and head[1:2] != b"" and head[1:2] in b"0123456fy", PpmImageFile),
}
"""What the careful decoder opens: how a format begins, and Pillow's plugin. Formats that run programs or read other
files (EPS, WMF) stay out."""
_QUICK_FRAMES = frozenset({0, 1, 2})


class Scratch:
    """Memory for one decoded picture after another, of one thread: pages touched once serve them all.

    Two threads that decode into fresh memory spend 3 to 9 % of their time in page faults, waiting for each other.
    """

    _LIMIT_NBYTES = 64 << 20

    def __init__(self) -> None:
        self._block = np.empty(0, dtype=np.uint8)

    def take(self, nbytes: int) -> Pixels | None:
        """At least `nbytes`, valid until the next call; None for a picture too large to keep memory for."""
        if nbytes > self._LIMIT_NBYTES:
            return None
        if nbytes > self._block.nbytes:
            self._block = np.empty(max(nbytes, 2 * self._block.nbytes), dtype=np.uint8)
        return self._block


def decode_image(
    data: bytes | memoryview,
    *,
    max_pixels: int = MAX_PIXELS,
    orientation: Orientation = "apply",
    scratch: Scratch | None = None,
) -> Pixels:
    """Decode a picture.

    Args:
        data: the encoded bytes: JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF, PPM or MPO.
        max_pixels: a picture that claims more is refused before anything is decoded.
        orientation: "apply" turns it upright by EXIF; "ignore" leaves it as stored (TIFF is upright either way).
        scratch: where the result may lie, overwritten by the next picture; fresh memory when None.

    Returns:
        uint8 (H, W, 3), RGB; a view with other strides where the picture was turned.

    Raises:
        DecodeError: no decoder takes it, it is cut short or corrupt, or it claims too many pixels.
    """
    view = memoryview(data)
    header = _quick_header(view)
    if header is None:
        return _careful_image(view, max_pixels=max_pixels, orientation=orientation)
    _check_size(header.width, header.height, max_pixels)
    try:
        block = scratch.take(3 * header.width * header.height) if scratch is not None else None
        pixels: Pixels = simplejpeg.decode_jpeg(view, "RGB", buffer=block)
    except ValueError:  # it takes no doubtful JPEG; Pillow knows the harmless doubts
        return _careful_image(view, max_pixels=max_pixels, orientation=orientation)
    return pixels if orientation == "ignore" or header.orientation == 1 else _turn(pixels, header.orientation)


def decode_window(
    part: JpegPart,
    window: Window,
    *,
    max_pixels: int = MAX_PIXELS,
    orientation: Orientation = "apply",
    scratch: Scratch | None = None,
) -> Pixels:
    """Decode a window of a picture that was read in part.

    Args:
        part: that holds the window's rows; read whole where it does not decode with certainty.
        window: top, left, height, width in the upright picture.
        max_pixels: as `decode_image`.
        orientation: as `decode_image`.
        scratch: as `decode_image`.

    Returns:
        uint8 (height, width, 3), RGB; a view with other strides.

    Raises:
        DecodeError: as `decode_image`.
    """
    layout = part.layout
    turned = 1 if orientation == "ignore" else layout.orientation
    top, left, height, width = stored_window(window, height=layout.height, width=layout.width, orientation=turned)
    _check_size(layout.width, layout.height, max_pixels)
    try:
        smaller, origin = part.cut((top, left, height, width))
        header = read_header(memoryview(smaller))
        block = scratch.take(3 * header.width * header.height) if scratch is not None else None
        pixels: Pixels = simplejpeg.decode_jpeg(smaller, "RGB", buffer=block)
    except (ValueError, DecodeError):  # doubtful: the careful decoder sees the whole of it
        upright = decode_image(part.read_whole(), max_pixels=max_pixels, orientation=orientation)
        return upright[window[0] : window[0] + window[2], window[1] : window[1] + window[3]]
    y, x = top - origin[0], left - origin[1]
    return _turn(pixels[y : y + height, x : x + width], turned)


def _quick_header(view: memoryview) -> JpegHeader | None:
    """The header of a JPEG that the quick decoder gives the same pixels for as the careful one, else None."""
    if len(view) < 2 or view[0] != 0xFF or view[1] != 0xD8:
        return None
    try:
        header = read_header(view)
    except DecodeError:
        return None  # the careful decoder has the last word, and the better one
    quick = header.sof in _QUICK_FRAMES and header.precision == 8 and header.components in (1, 3)
    return header if quick and header.height and header.width else None


def _turn(pixels: _Numbers, orientation: int) -> _Numbers:
    """The upright view of an image or mask (H, W, ...), by Exif 2.3, table 6."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DecodeError(
            f"the picture claims {width} x {height} pixels, more than max_pixels={max_pixels}; "
            "raise max_pixels if it is sound"
        )


def _careful_image(view: memoryview, *, max_pixels: int, orientation: Orientation) -> Pixels:
    with _opened(view, max_pixels) as image:
        deep = _deep_grey(image)
        if deep is not None:
            pixels = np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
        else:
            image.info.pop("transparency", None)  # alpha is dropped; Pillow would warn of a palette's
            pixels = np.array(image.convert("RGB"))
        upright = 1 if orientation == "ignore" else _orientation(image)
        return _turn(pixels, upright)


def picture_size(data: bytes | memoryview, *, max_pixels: int, orientation: Orientation) -> tuple[int, int]:
    """Height and width that `decode_image` most likely gives, without decoding; (0, 0) when no decoder opens it."""
    head = bytes(data[:16])
    opener = next((opener for begins, opener in _OPENERS.values() if begins(head)), None)
    if opener is None:
        return 0, 0
    try:
        with opener(io.BytesIO(data)) as image:
            width, height = image.size
            lying = orientation == "apply" and _orientation(image) >= 5
    except Exception:  # noqa: BLE001 - as `_opened` says; decoding it tells what is wrong
        return 0, 0
    return (width, height) if lying else (height, width)


def _orientation(image: Image) -> int:
    """By Exif or else XMP, as Pillow's `exif_transpose` has it, without reading any tag that may be damaged."""
    if isinstance(image, TiffImageFile):
        return 1  # Pillow turns these when it loads them
    exif = image.info.get("exif")
    profile = image.info.get("Raw profile type exif")  # how ImageMagick writes it to PNG: three lines, then hexadecimal
    if exif is None and isinstance(profile, str):
        exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    found = exif_orientation(exif) if exif else None
    xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp")
    if found is None and xmp:
        found = xmp_orientation(xmp.encode() if isinstance(xmp, str) else xmp)
    return found or 1


def decode_mask(
    data: bytes | memoryview, *, max_pixels: int = MAX_PIXELS, orientation: Orientation = "apply"
) -> npt.NDArray[np.uint8] | npt.NDArray[np.int32]:
    """Decode a mask: one number a pixel, as stored.

    Returns:
        (H, W): uint8 for grey values and palette indices, 0 and 1 for 1-bit masks; int32 for 16-bit ones.

    Raises:
        DecodeError: as `decode_image`; also a picture in colours, which is no mask.
    """
    with _opened(memoryview(data), max_pixels) as image:
        upright = 1 if orientation == "ignore" else _orientation(image)
        deep = _deep_grey(image)
        if deep is not None:
            return _turn(deep.astype(np.int32), upright)
        if image.mode not in ("1", "L", "P"):
            raise DecodeError(
                f"a mask has one number a pixel, and this picture is {image.mode}; store it grey or by palette"
            )
        return _turn(np.array(image).astype(np.uint8), upright)


def _deep_grey(image: Image) -> npt.NDArray[np.int64] | None:
    """Values from 0 to 65535 of a 16-bit grey image, which `convert("RGB")` would saturate; else None."""
    if not image.mode.startswith("I"):
        return None
    return np.clip(np.array(image).astype(np.int64), 0, 65535)


@contextlib.contextmanager
def _opened(view: memoryview, max_pixels: int) -> Iterator[Image]:
    """A loaded first frame; whatever Pillow raises is one DecodeError."""
    head = bytes(view[:16])
    opener = next((opener for begins, opener in _OPENERS.values() if begins(head)), None)
    if opener is None:
        raise DecodeError(f"these {len(view)} bytes are no picture of a known format ({', '.join(_OPENERS)})")
    try:
        with opener(io.BytesIO(view)) as image:
            _check_size(*image.size, max_pixels)
            image.load()
            yield image
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise OSError, ValueError, SyntaxError, TypeError, struct.error ...
        raise DecodeError(f"no decoder takes these {len(view)} bytes: {error}") from error
