"""The other side of the comparison: a data set of image files for torch's own DataLoader, doing the same work.

`FileImages` is written the way that we found fastest for torch: libjpeg-turbo, torch's vectorised resize on a
channels_last view, height by width by channel in memory so that collating is a plain copy. With `pillow=True` it is
written the way that most people do.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["MEAN", "STD", "FileImages", "decode_file", "draw_window", "make_pixels", "torch_batches", "torch_loader"]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, for values from 0 to 1."""

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]
"""Top, left, height, width."""


@dataclass(frozen=True)
class FileImages(Dataset[tuple[Tensor, int]]):
    """Images by index: a random window resized to a square, flipped half of the time, with its label."""

    files: Sequence[tuple[str, int]]
    """Path and label of each sample."""
    size: int
    """Side of the square in pixels."""
    normalize: bool = False
    """Give float32, less the mean, over the deviation."""
    pillow: bool = False
    """Decode and resize with Pillow."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with open(path, "rb") as file:
            data = file.read()
        if self.pillow:
            pixels = _make_pixels_with_pillow(data, self.size)
        else:
            image = decode_file(data)
            pixels = make_pixels(image, draw_window(*image.shape[:2]), self.size, flip=random.random() < 0.5)
        if self.normalize:
            pixels = pixels.float().sub_(torch.tensor(MEAN) * 255).mul_(1 / (torch.tensor(STD) * 255))
        return pixels, label


def decode_file(data: bytes) -> Pixels:
    """An encoded image as uint8 (H, W, 3), as it is stored: the EXIF orientation is not looked at."""
    if data[:2] == b"\xff\xd8":
        try:
            return simplejpeg.decode_jpeg(data)  # type: ignore[no-any-return]
        except ValueError:
            pass  # CMYK and the like: Pillow takes them
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


def make_pixels(image: Pixels, window: Window, size: int, *, flip: bool) -> Tensor:
    """`window` of an image, resized with an antialiased bilinear filter, perhaps mirrored: uint8 (size, size, 3)."""
    top, left, height, width = window
    # Four dimensions before slicing: torch then sees channels_last memory and takes its vectorised path.
    seen = torch.from_numpy(image)[None, top : top + height, left : left + width].permute(0, 3, 1, 2)
    small = F.interpolate(seen, (size, size), mode="bilinear", antialias=True)
    return (small.flip(3) if flip else small)[0].permute(1, 2, 0)


def _make_pixels_with_pillow(data: bytes, size: int) -> Tensor:
    with Image.open(io.BytesIO(data)) as file:
        image = file.convert("RGB")
    top, left, height, width = draw_window(image.height, image.width)
    image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image))


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
    )


def torch_batches(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Tensor]:
    """Image batches of one epoch, (B, 3, size, size) in channels_last memory."""
    for images, _ in loader:
        yield images.permute(0, 3, 1, 2)
