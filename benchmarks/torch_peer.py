"""The other side of the comparison: a data set of image files for torch's own DataLoader.

`FileImages` is written the ways that we found fastest for torch: libjpeg-turbo, height by width by channel in memory so
that collating is a plain copy, and either OpenCV's bilinear resize, which looks at four pixels however many become one,
or torch's antialiased one on a channels_last view, which is this loader's filter. With Pillow it is written the way
that most people do. Decoding into memory that is used again, and writing straight into the batch, gained nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from forebay.errors import ConfigError

__all__ = [
    "MEAN",
    "STD",
    "FileImages",
    "Pixels",
    "Resizer",
    "Window",
    "decode_file",
    "draw_window",
    "has_opencv",
    "load_opencv",
    "make_pixels",
    "make_pixels_with_opencv",
    "make_pixels_with_pillow",
    "torch_batches",
    "torch_loader",
]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, for values from 0 to 1."""

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]
"""Top, left, height, width."""


class Resizer(StrEnum):
    """What makes a window a square."""

    OPENCV = "OpenCV"
    """Bilinear, not antialiased."""
    SAME_FILTER = "same filter"
    """torch's antialiased bilinear, the filter of this loader."""
    PILLOW = "Pillow"
    """Pillow's antialiased bilinear, after Pillow's decoding."""


@dataclass(frozen=True)
class FileImages(Dataset[tuple[Tensor, int]]):
    """Images by index: a random window resized to a square, flipped half of the time, with its label."""

    files: Sequence[tuple[str, int]]
    """Path and label of each sample."""
    size: int
    """Side of the square in pixels."""
    normalize: bool = False
    """Give float32, less the mean, over the deviation."""
    resizer: Resizer = Resizer.SAME_FILTER

    def __len__(self) -> int:
        return len(self.files)

    def make(self, data: bytes, window: Window | None = None, *, flip: bool | None = None) -> Tensor:
        """An encoded image's window, drawn when None, as uint8 (size, size, 3); mirrored, drawn when None."""
        if flip is None:
            flip = random.random() < 0.5
        if self.resizer is Resizer.PILLOW:
            with Image.open(io.BytesIO(data)) as file:
                opened = file.convert("RGB")
            return make_pixels_with_pillow(opened, window or draw_window(*opened.size[::-1]), self.size, flip=flip)
        image = decode_file(data)
        make = make_pixels if self.resizer is Resizer.SAME_FILTER else make_pixels_with_opencv
        return make(image, window or draw_window(*image.shape[:2]), self.size, flip=flip)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with open(path, "rb") as file:
            data = file.read()
        pixels = self.make(data)
        if self.normalize:
            pixels = pixels.float().sub_(torch.tensor(MEAN) * 255).mul_(1 / (torch.tensor(STD) * 255))
        return pixels, label


def decode_file(data: bytes) -> Pixels:
    """An encoded image as uint8 (H, W, 3), as it is stored: the EXIF orientation is not looked at."""
    if data[:2] == b"\xff\xd8":
        try:
            return simplejpeg.decode_jpeg(data)  # type: ignore[no-any-return]
        except ValueError:
            pass  # arithmetic coding, doubtful ends and the like: Pillow takes some of them
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def draw_window(height: int, width: int) -> Window:
    """A random part of 8 to 100 % of the image, of aspect 3:4 to 4:3, by torchvision's rules."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def make_pixels(image: Pixels, window: Window, size: int | tuple[int, int], *, flip: bool) -> Tensor:
    """`window` of an image, resized with an antialiased bilinear filter, perhaps mirrored: uint8 (size, size, 3).

    Args:
        image: uint8 (H, W, 3).
        window: of it.
        size: side of the square; or height and width.
        flip: mirror left to right.
    """
    top, left, height, width = window
    # Four dimensions before slicing: torch then sees channels_last memory and takes its vectorised path.
    seen = torch.from_numpy(image)[None, top : top + height, left : left + width].permute(0, 3, 1, 2)
    sides = (size, size) if isinstance(size, int) else size
    small = F.interpolate(seen, sides, mode="bilinear", antialias=True)
    return (small.flip(3) if flip else small)[0].permute(1, 2, 0)


def make_pixels_with_opencv(
    image: Pixels, window: Window, size: int, *, flip: bool, out: Pixels | None = None
) -> Tensor:
    """`window` of an image, resized by OpenCV without antialiasing, perhaps mirrored: uint8 (size, size, 3).

    Args:
        image: uint8 (H, W, 3).
        window: of it.
        size: side of the square.
        flip: mirror left to right.
        out: uint8 (size, size, 3) to write to and to return; new memory when None.
    """
    cv2 = load_opencv()
    top, left, height, width = window
    seen = image[top : top + height, left : left + width]
    if not flip:
        return torch.from_numpy(cv2.resize(seen, (size, size), dst=out, interpolation=cv2.INTER_LINEAR))
    return torch.from_numpy(cv2.flip(cv2.resize(seen, (size, size), interpolation=cv2.INTER_LINEAR), 1, dst=out))


def has_opencv() -> bool:
    """Whether OpenCV is installed."""
    return importlib.util.find_spec("cv2") is not None


@functools.cache
def load_opencv() -> Any:
    """The module `cv2`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        raise ConfigError(
            "the peer resizes with OpenCV, which is not installed: pip install 'forebay[bench]' (or "
            "opencv-python-headless), or leave that side out with --no-opencv"
        ) from error
    return cv2


def make_pixels_with_pillow(image: Image.Image, window: Window, size: int, *, flip: bool) -> Tensor:
    """`window` of an image, cut out and resized by Pillow, perhaps mirrored: uint8 (size, size, 3)."""
    top, left, height, width = window
    small = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else small))


def torch_loader(dataset: FileImages, *, batch_size: int, workers: int) -> torch.utils.data.DataLoader[Any]:
    """Make torch's DataLoader as its documentation advises for speed: workers kept alive, some batches ahead.

    Workers are spawned: to fork a process that has threads, as ours has, may hang.
    """
    return torch.utils.data.DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_limit_opencv if dataset.resizer is Resizer.OPENCV else None,
    )


def _limit_opencv(_worker: int) -> None:
    """One thread a worker, as torch does for itself: they would fight for the cores."""
    load_opencv().setNumThreads(0)


def torch_batches(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Tensor]:
    """Image batches of one epoch, (B, 3, size, size) in channels_last memory."""
    for images, _ in loader:
        yield images.permute(0, 3, 1, 2)
