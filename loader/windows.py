"""Which part of a picture a transform takes: pure functions of its size and of uniform numbers in [0, 1).

The rules are torchvision's (`RandomResizedCrop.get_params`, `RandomCrop.get_params`, `center_crop`, `resize`); only
where the numbers come from is ours. Windows are (top, left, height, width) in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "Window",
    "central_window",
    "random_resized_window",
    "random_resized_windows",
    "random_window",
    "scaled_size",
]

Float64s = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
    return _largest_window(height, width, ratio)


def _largest_window(height: int, width: int, ratio: tuple[float, float]) -> Window:
    """The largest central window of allowed ratio."""
    aspect = width / height
    w, h = width, height
    if aspect < min(ratio):
        h = round(w / min(ratio))
    elif aspect > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def random_resized_windows(
    heights: Ints,
    widths: Ints,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    first: Float64s,
    more: Callable[[Ints, int], Float64s],
) -> Ints:
    """`random_resized_window` of many pictures, to the pixel, at a tenth of the time for a batch of them.

    Args:
        heights: int64 (n,) of the pictures.
        widths: int64 (n,) of the pictures.
        scale: as of one.
        ratio: as of one.
        first: float64 (n, 4 x attempts), their numbers for the first attempts.
        more: for some of the pictures, as many numbers as it is told, the first ones among them.

    Returns:
        int64 (4, n): top, left, height, width.
    """
    windows = np.zeros((4, len(heights)), np.int64)
    todo, numbers, have = np.arange(len(heights)), first, first.shape[1] // 4
    for begin, end in ((0, 1), (1, have), (have, RESIZED_CROP_ATTEMPTS)):  # most need one, a few the ones not drawn yet
        if not todo.size or begin == end:
            continue
        if begin == have:
            numbers = more(todo, 4 * RESIZED_CROP_ATTEMPTS)
        tried, fits = _try_windows(heights[todo], widths[todo], scale, ratio, numbers[:, 4 * begin : 4 * end])
        found, chosen = fits.any(axis=1), fits.argmax(axis=1)
        windows[:, todo[found]] = tried[:, found, chosen[found]]
        todo, numbers = todo[~found], numbers[~found]
    for i in todo.tolist():
        windows[:, i] = _largest_window(heights.item(i), widths.item(i), ratio)
    return windows


def _try_windows(
    heights: Ints, widths: Ints, scale: tuple[float, float], ratio: tuple[float, float], numbers: Float64s
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Several attempts for each picture: int64 (4, n, attempts), and which of them fit."""
    height, width = heights[:, None], widths[:, None]
    u_area, u_ratio, u_top, u_left = np.moveaxis(numbers.reshape(len(heights), -1, 4), 2, 0)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    target = height * width * (scale[0] + u_area * (scale[1] - scale[0]))
    logarithms = low + u_ratio * (high - low)
    # one by one: numpy's exp differs from one processor to the next in the last bit
    aspect = np.array(list(map(math.exp, logarithms.ravel().tolist()))).reshape(logarithms.shape)
    w, h = np.rint(np.sqrt(target * aspect)), np.rint(np.sqrt(target / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    return np.stack((u_top * (height - h + 1), u_left * (width - w + 1), h, w)).astype(np.int64), fits


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
