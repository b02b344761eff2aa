"""The rows of the drop-in comparison: data sets, the batches that are made of them, and what is asked of each.

It makes data sets and times nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forebay.benchmarks.dropin_samples import FolderImages, ReadySamples
from forebay.benchmarks.gathered import Gathered, write_files
from forebay.errors import ConfigError

__all__ = ["Case", "DropinWork", "make_cases"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropinWork:
    """How much each row does."""

    batch_size: int = 128
    """Of pictures; small samples come by eight times as many."""
    batches: int = 48
    """Of a timed pass over ready arrays; small samples have eight times as many. 48: a second or more of torch's."""
    size: int = 224
    """Side of pictures, in pixels."""
    images: int | None = None
    """Files of a timed pass; None takes 2048, fewer large ones."""
    strings: int = 1_000_000
    """Of the data set whose workers' memory is measured."""
    workers: int = 2
    """Processes of either loader."""
    seed: int = 0
    """Of order, windows and values."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "batches", "size", "images", "strings", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; give at least 1")


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a data set, and what is asked of it."""

    name: str
    asked: float
    """The ratio to torch's speed that is hoped for."""
    dataset: Any
    batch_size: int
    copied: bool = False
    """Whether every batch is copied once when it has come, as it is to a GPU."""


def make_cases(work: DropinWork, gathered: Gathered, folder: Path) -> Iterator[Case]:
    """One data set after the other, so that the memory of one is free before the next is made."""
    rng = np.random.default_rng(work.seed)
    size, batch, count = work.size, work.batch_size, work.batch_size * work.batches
    floats = ReadySamples(list(rng.random((batch, 3, size, size), np.float32)), count)
    shape = f"ready float32 ({batch}, 3, {size}, {size})"
    yield Case(shape, 2, floats, batch)
    yield Case(f"{shape}, copied", 2, floats, batch, copied=True)
    del floats
    pictures = ReadySamples(list(rng.integers(0, 256, (batch, size, size, 3), np.uint8)), count)
    shape = f"ready uint8 ({batch}, {size}, {size}, 3)"
    yield Case(shape, 2, pictures, batch)
    yield Case(f"{shape}, copied", 2, pictures, batch, copied=True)
    del pictures
    files = write_files(gathered, folder / "files")
    yield Case("image files, Pillow and numpy", 1.05, FolderImages(files, size), batch)
    small = rng.random((64 * batch, 16), np.float32)
    name = f"16 floats, batches of {8 * batch}"
    yield Case(f"{name}, arrays", 1.2, ReadySamples(list(small), 64 * count), 8 * batch)
    yield Case(f"{name}, tensors", 1.2, ReadySamples(list(torch.from_numpy(small)), 64 * count), 8 * batch)
