"""What the pixels should be: the windows that this loader draws, and Pillow's resize of them, to measure others by."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from forebay.benchmarks.torch_peer import Window
from forebay.loader import transforms
from forebay.loader.draws import Numbers, draw
from forebay.loader.randomness import DrawKey
from forebay.loader.windows import random_resized_window

__all__ = ["Cut", "PixelDifference", "draw_cuts", "pillow_pixels", "pixel_difference"]

Pixels = npt.NDArray[np.uint8]
_CROP = transforms.RandomResizedCrop(1)
_FLIP = transforms.RandomHorizontalFlip()


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of an image makes a sample, and whether it is mirrored."""

    window: Window
    flip: bool


@dataclass(frozen=True, slots=True)
class PixelDifference:
    """How far pixels are from Pillow's, in grey levels."""

    mean: float
    p999: float
    """99.9th percentile."""


def draw_cuts(sizes: Sequence[tuple[int, int]], *, seed: int, epoch: int = 0) -> list[Cut]:
    """What `[RandomResizedCrop(...), RandomHorizontalFlip()]` of the output "image" draws for samples 0, 1, 2, ...

    Args:
        sizes: height and width of each sample.
        seed: of the loader.
        epoch: of the pass.
    """
    keys = [DrawKey(seed, "image", f"{type(step).__name__}#0", epoch) for step in (_CROP, _FLIP)]
    indices = np.arange(len(sizes), dtype=np.int64)
    draws = draw(keys, [_CROP.draws, _FLIP.draws], indices, np.zeros_like(indices))
    cuts = []
    for i, (height, width) in enumerate(sizes):
        numbers = Numbers(draws, 0, i)
        window = random_resized_window(height, width, scale=_CROP.scale, ratio=_CROP.ratio, numbers=numbers.block)
        cuts.append(Cut(window, Numbers(draws, 1, i).first()[0] < _FLIP.p))
    return cuts


def pillow_pixels(data: bytes, cut: Cut, size: int) -> Pixels:
    """Pillow's decoding and its `resize(box=..., BILINEAR)`: uint8 (size, size, 3); the EXIF orientation is ignored."""
    top, left, height, width = cut.window
    with Image.open(io.BytesIO(data)) as file:
        image = file.convert("RGB")
    box = (left, top, left + width, top + height)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if cut.flip else pixels


def pixel_difference(pixels: Pixels, expected: Pixels) -> PixelDifference:
    """Compare arrays of one shape."""
    differences = np.abs(pixels.astype(np.int16) - expected.astype(np.int16))
    return PixelDifference(float(differences.mean()), float(np.percentile(differences, 99.9)))
