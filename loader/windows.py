"""Which part of a picture a transform takes: pure functions of its size and of uniform numbers in [0, 1).

The rules are torchvision's (`RandomResizedCrop.get_params`, `RandomCrop.get_params`, `center_crop`, `resize`); only
where the numbers come from is ours. Windows are (top, left, height, width) in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["Window", "central_window", "random_resized_window", "random_window", "scaled_size"]

Window = tuple[int, int, int, int]
RESIZED_CROP_ATTEMPTS = 10


def random_resized_window(
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    numbers: Callable[[int], Sequence[float]],
) -> Window:
    """A window of random area and aspect ratio; after ten that do not fit, the largest central one of allowed ratio.

    Args:
        height: of the picture.
        width: of the picture.
        scale: bounds of the window's share of the area.
        ratio: bounds of width / height; its logarithm is uniform.
        numbers: gives the four numbers of attempt 0 to 9: area, ratio, top, left.
    """
    area = height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(RESIZED_CROP_ATTEMPTS):
        u_area, u_ratio, u_top, u_left = numbers(attempt)
        target = area * (scale[0] + u_area * (scale[1] - scale[0]))
        aspect = math.exp(low + u_ratio * (high - low))
        w = round(math.sqrt(target * aspect))
        h = round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(u_top * (height - h + 1)), int(u_left * (width - w + 1)), h, w
    aspect = width / height
    w, h = width, height
    if aspect < min(ratio):
        h = round(w / min(ratio))
    elif aspect > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def random_window(height: int, width: int, size: tuple[int, int], numbers: Sequence[float]) -> Window:
    """A window of `size` (height, width), which fits, anywhere."""
    h, w = size
    return int(numbers[0] * (height - h + 1)), int(numbers[1] * (width - w + 1)), h, w


def central_window(height: int, width: int, size: tuple[int, int]) -> Window:
    """The window of `size` (height, width), which fits, in the middle; torchvision rounds half a pixel to even."""
    h, w = size
    return round((height - h) / 2.0), round((width - w) / 2.0), h, w


def scaled_size(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Height and width when the shorter side becomes `shorter`; the longer one is rounded down."""
    if height <= width:
        return shorter, max(1, int(shorter * width / height))
    return max(1, int(shorter * height / width)), shorter
