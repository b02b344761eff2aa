"""Encoded pictures to pixels: a quick way for common JPEGs, a careful one for everything else.

Colours are Pillow's `convert("RGB")` (CMYK, grey, palette; alpha is dropped), with two rules of our own: the EXIF
orientation is applied, and 16-bit samples are scaled to 8 by their high byte. Animations give their first frame.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import (
    AvifImagePlugin,
    Image,
    ImageOps,
    MpoImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from forebay.errors import DecodeError
from forebay.loader.jpeg import JpegHeader, read_header

__all__ = ["MAX_PIXELS", "Orientation", "Pixels", "decode_image", "decode_mask"]

Pixels = npt.NDArray[np.uint8]
Orientation = Literal["apply", "ignore"]

MAX_PIXELS = 1 << 27
"""134 million pixels, 400 MB decoded: four times the largest camera, a thirtieth of what a JPEG header can claim."""
_PLUGINS = (AvifImagePlugin, MpoImagePlugin, TiffImagePlugin, WebPImagePlugin)  # Pillow loads the other formats itself
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What the careful decoder opens. Formats that run programs or read other files (EPS, WMF) stay out."""
_QUICK_FRAMES = frozenset({0, 1, 2})


def decode_image(
    data: bytes | memoryview, *, max_pixels: int = MAX_PIXELS, orientation: Orientation = "apply"
) -> Pixels:
    """Decode a picture.

    Args:
        data: the encoded bytes: JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF, PPM or MPO.
        max_pixels: a picture that claims more is refused before anything is decoded.
        orientation: "apply" turns it upright by EXIF.

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
        pixels: Pixels = simplejpeg.decode_jpeg(view, "RGB")
    except ValueError:  # it takes no doubtful JPEG; Pillow knows the harmless doubts
        return _careful_image(view, max_pixels=max_pixels, orientation=orientation)
    return pixels if orientation == "ignore" or header.orientation == 1 else _turn(pixels, header.orientation)


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


def _turn(pixels: Any, orientation: int) -> Any:
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
        upright = ImageOps.exif_transpose(image) if orientation == "apply" else image
        deep = _deep_grey(upright)
        if deep is not None:
            return np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
        return np.array(upright.convert("RGB"))


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
        upright = ImageOps.exif_transpose(image) if orientation == "apply" else image
        deep = _deep_grey(upright)
        if deep is not None:
            return deep.astype(np.int32)
        if upright.mode not in ("1", "L", "P"):
            raise DecodeError(
                f"a mask has one number a pixel, and this picture is {upright.mode}; store it grey or by palette"
            )
        return np.array(upright).astype(np.uint8)


def _deep_grey(image: Image.Image) -> npt.NDArray[np.int64] | None:
    """Values from 0 to 65535 of a 16-bit grey image, which `convert("RGB")` would saturate; else None."""
    if not image.mode.startswith("I"):
        return None
    return np.clip(np.array(image).astype(np.int64), 0, 65535)


@contextlib.contextmanager
def _opened(view: memoryview, max_pixels: int) -> Iterator[Image.Image]:
    """A loaded first frame; whatever Pillow raises is one DecodeError."""
    try:
        with Image.open(io.BytesIO(view), formats=_FORMATS) as image:
            _check_size(*image.size, max_pixels)
            image.load()
            yield image
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DecodeError(
            f"these {len(view)} bytes are no picture of a known format ({', '.join(_FORMATS)})"
        ) from error
    except Exception as error:  # Pillow's plugins raise OSError, ValueError, SyntaxError, TypeError, struct.error ...
        raise DecodeError(f"no decoder takes these {len(view)} bytes: {error}") from error
