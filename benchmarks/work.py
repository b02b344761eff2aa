"""What the loader's benchmarks do with an image, and this loader doing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from forebay.benchmarks.gathered import Gathered, write_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset, transforms
from forebay.sharding import can_transcode

__all__ = [
    "ADDRESSABLE",
    "ORIGINAL",
    "LoaderWork",
    "image_batches",
    "shard_dataset",
    "shard_loader",
    "write_both_shards",
]

ORIGINAL = "forebay"
ADDRESSABLE = "forebay, addressable"
"""Names of this loader's sides: on images as they came, and as crop-addressable JPEG."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderWork:
    """What every side has to do: windows of random place and size, resized to a square, mirrored half of the time."""

    size: int = 224
    """Side of the square, in pixels."""
    batch_size: int = 128
    """Images a batch."""
    images: int | None = None
    """Images a round: a random choice of the data, or all of it several times. None takes 2048, 16 batches, so that the
    start hardly counts; fewer where images are large."""
    normalize: bool = False
    """Give float32, less the mean, over the deviation, instead of uint8."""
    seed: int = 0
    """Of the choice of images and of this loader's order."""

    def __post_init__(self) -> None:
        for name in ("size", "batch_size", "images"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; give at least 1")


def write_both_shards(gathered: Gathered, folder: Path, *, addressable: bool) -> Mapping[str, Path]:
    """Write the images as shards, as they came and, if asked for and possible, crop-addressable; folders by side."""
    shards = {ORIGINAL: folder / "original"}
    if addressable and can_transcode():
        shards[ADDRESSABLE] = folder / "addressable"
    for name, path in shards.items():
        write_shards(gathered, path, addressable=name == ADDRESSABLE)
    return shards


def shard_dataset(shards: Path, work: LoaderWork, *more: transforms.Transform) -> ShardDataset:
    """The work, declared for this loader; `more` transforms follow."""
    chain: list[Any] = [transforms.RandomResizedCrop(work.size), transforms.RandomHorizontalFlip()]
    if work.normalize:
        chain.append(transforms.Normalize())
    # As stored, since torch's side does not look at the EXIF orientation either.
    columns = ["image", "label"]
    return ShardDataset(shards, transforms={"image": [*chain, *more]}, columns=columns, orientation="ignore")


def shard_loader(shards: Path, work: LoaderWork, *more: transforms.Transform, threads: int) -> DataLoader:
    """This loader on shards, shuffled."""
    dataset = shard_dataset(shards, work, *more)
    return DataLoader(dataset, work.batch_size, shuffle=True, num_workers=threads, seed=work.seed)


def image_batches(loader: DataLoader) -> Iterator[Tensor]:
    """Image batches of the next epoch."""
    for batch in loader:
        yield batch["image"]
