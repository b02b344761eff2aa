"""Data sets as users write them for torch, on which the drop-in loader is compared with torch's own.

They make samples and know no loader. Values are drawn beforehand or decoded from files, never drawn for a sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image
from torch.utils.data import Dataset

from forebay.benchmarks.torch_peer import MEAN, STD, draw_window

__all__ = ["FolderImages", "ReadySamples", "Strings", "arrow_strings", "numpy_strings", "python_strings"]


@dataclass(frozen=True, slots=True)
class ReadySamples(Dataset[Any]):
    """Samples that lie in memory, each given several times a pass: a loader has nothing to do but to stack them."""

    samples: Sequence[Any]
    """Arrays or tensors of one shape."""
    count: int
    """Samples of a pass."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


@dataclass(frozen=True, slots=True)
class FolderImages(Dataset[tuple[npt.NDArray[np.float32], int]]):
    """Files decoded by Pillow: a random window, resized and mirrored half of the time, normalised by numpy."""

    files: Sequence[tuple[str, int]]
    """Path and label of each sample."""
    size: int
    """Side of the square in pixels."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], int]:
        path, label = self.files[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        top, left, height, width = draw_window(image.height, image.width)
        window = (left, top, left + width, top + height)
        pixels = np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR, window), np.float32)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        values = (pixels / 255 - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1)), label


class Strings(Dataset[str]):
    """One string a sample, from whatever holds them."""

    def __init__(self, strings: Any) -> None:
        self._strings = strings

    def __len__(self) -> int:
        return len(self._strings)

    def __getitem__(self, index: int) -> str:
        return str(self._strings[index])


def python_strings(count: int) -> list[str]:
    """A list, as most data sets hold their paths: to look at a string writes to the memory that it lies in."""
    return [f"train/some/folder/of/images/{number:09d}.jpg" for number in range(count)]


def numpy_strings(count: int) -> npt.NDArray[Any]:
    """The same in an array of numpy's variable-width strings."""
    return np.array(python_strings(count), dtype=np.dtypes.StringDType())


def arrow_strings(count: int) -> pa.Array:
    """The same in an array of pyarrow's."""
    return pa.array(python_strings(count))
