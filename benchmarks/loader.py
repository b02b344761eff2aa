"""How many images a second this loader and torch's DataLoader make of the same files, round after round in turn."""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.benchmarks.torch_peer import FileImages, decode_file, make_pixels, torch_batches, torch_loader
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset, transforms
from forebay.sharding import Kind, ShardWriter, list_class_folders, open_dataset

__all__ = ["LoaderComparison", "LoaderWork", "SideResult", "compare"]

_PIXEL_TOLERANCE = 1.0
"""Grey levels, on average over a batch: what decoders and filters may differ by and still do the same work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderWork:
    """What both sides have to do: windows of random place and size, resized to a square, mirrored half of the time."""

    size: int = 224
    """Side of the square, in pixels."""
    batch_size: int = 128
    """Images a batch."""
    images: int = 2048
    """Images a round: a random choice of the data, or all of it several times. 16 batches: the start hardly counts."""
    normalize: bool = False
    """Give float32, less the mean, over the deviation, instead of uint8."""
    seed: int = 0
    """Of the choice of images and of this loader's order."""

    def __post_init__(self) -> None:
        for name in ("size", "batch_size", "images"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; give at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class SideResult:
    """One loader's rounds."""

    name: str
    images_per_s: tuple[float, ...]
    """By round, from `iter()` to the last batch."""
    first_batch_s: tuple[float, ...]
    """By round, from `iter()` to the first batch."""

    @property
    def median(self) -> float:
        """Images a second in the middle of the rounds."""
        return statistics.median(self.images_per_s)

    def over(self, other: SideResult) -> tuple[float, float, float]:
        """How many times as fast as `other`: in the median, the worst and the best of the rounds, each round a pair."""
        ratios = [mine / its for mine, its in zip(self.images_per_s, other.images_per_s, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderComparison:
    """Rounds of all sides, interleaved in one run."""

    source: str
    work: LoaderWork
    threads: int
    """Decode threads of this loader."""
    workers: int
    """Worker processes of torch's."""
    distinct_images: int
    """How many of the round's images are different ones."""
    image_nbytes: float
    """Mean size of an encoded image."""
    pixel_difference: float
    """Mean difference of one batch of the same windows, in grey levels: the proof of equal work."""
    sides: tuple[SideResult, ...]
    """This loader, torch's with the same work, and, if asked for, torch's with Pillow."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians, ratios, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, side in zip(values["sides"], self.sides, strict=True):
            ratio, low, high = self.sides[0].over(side)
            told["median_images_per_s"] = side.median
            told["forebay_over_this"] = {"median": ratio, "min": low, "max": high}
        values["machine"] = {
            "cores": len(os.sched_getaffinity(0)),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        return values


def compare(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    threads: int = 2,
    workers: int = 2,
    rounds: int = 5,
    pillow: bool = True,
    progress: Callable[[str], None] | None = None,
) -> LoaderComparison:
    """Time this loader and torch's in turn, after a pass of each that warms workers and page cache.

    The images are laid out twice in a temporary folder, as files and as shards; the source is only read.

    Args:
        source: a folder of class folders, or shards with an image column.
        work: what each side does with an image.
        threads: decode threads of this loader.
        workers: worker processes of torch's.
        rounds: timed passes of each side.
        pillow: also measure torch's loader with the transforms that most people run.
        progress: told the name of a side before each of its passes, the warming ones included.

    Raises:
        ConfigError: no images there, or the sides do not do the same work.
    """
    if rounds < 1 or threads < 1 or workers < 0:
        raise ConfigError(f"rounds={rounds}, threads={threads}, workers={workers}; give at least 1, 1 and 0")
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary:
        files, nbytes, distinct = _lay_out(Path(source), Path(temporary), work)
        shards = Path(temporary) / "shards"
        difference = _compare_pixels(shards, files, work)
        chain: list[Any] = [transforms.RandomResizedCrop(work.size), transforms.RandomHorizontalFlip()]
        if work.normalize:
            chain.append(transforms.Normalize())
        # As stored, since torch's side does not look at the EXIF orientation either.
        dataset = ShardDataset(shards, transforms={"image": chain}, columns=["image", "label"], orientation="ignore")
        plain = FileImages(files, work.size, work.normalize)
        peers = {"torch": plain}
        if pillow:
            peers["torch, Pillow"] = dataclasses.replace(plain, pillow=True)
        with DataLoader(dataset, work.batch_size, shuffle=True, num_workers=threads, seed=work.seed) as loader:
            sides: dict[str, Callable[[], Iterator[Tensor]]] = {"forebay": lambda: (b["image"] for b in loader)}
            for name, peer in peers.items():
                theirs = torch_loader(peer, batch_size=work.batch_size, workers=workers)
                sides[name] = lambda theirs=theirs: torch_batches(theirs)  # type: ignore[misc]
            results = _measure(sides, work, rounds, progress or (lambda _: None))
        return LoaderComparison(
            source=str(source),
            work=work,
            threads=threads,
            workers=workers,
            distinct_images=distinct,
            image_nbytes=nbytes / len(files),
            pixel_difference=difference,
            sides=results,
        )


def _measure(
    sides: dict[str, Callable[[], Iterator[Tensor]]],
    work: LoaderWork,
    rounds: int,
    progress: Callable[[str], None],
) -> tuple[SideResult, ...]:
    for name, begin in sides.items():
        progress(name)
        _time_pass(name, begin, work)
    timed: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        # Each side goes first in turn, so that none always follows the same one.
        names = list(sides)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            progress(name)
            timed[name].append(_time_pass(name, sides[name], work))
    return tuple(
        SideResult(
            name=name, images_per_s=tuple(speed for speed, _ in passes), first_batch_s=tuple(s for _, s in passes)
        )
        for name, passes in timed.items()
    )


def _time_pass(name: str, begin: Callable[[], Iterator[Tensor]], work: LoaderWork) -> tuple[float, float]:
    """Images a second and seconds to the first batch, of one pass; checks that it was all of the work."""
    dtype = torch.float32 if work.normalize else torch.uint8
    images, first_s = 0, 0.0
    started = time.monotonic()
    for batch in begin():
        if not images:
            first_s = time.monotonic() - started
        images += len(batch)
        assert batch.shape[1:] == (3, work.size, work.size), (name, batch.shape)
        assert batch.dtype == dtype, (name, batch.dtype)
        assert batch.is_contiguous(memory_format=torch.channels_last), name
    seconds = time.monotonic() - started
    assert images == work.images, (name, images)
    return images / seconds, first_s


def _lay_out(source: Path, folder: Path, work: LoaderWork) -> tuple[list[tuple[str, int]], int, int]:
    """Write the images of a round as files and as shards.

    Returns:
        Path and label of each sample, their bytes together, and how many of them are different.
    """
    files: list[tuple[str, int]] = []
    distinct: list[tuple[Path, int]] = []
    for data, label in itertools.islice(_good(_read_images(source, work)), work.images):
        path = folder / f"{len(distinct):07d}"
        path.write_bytes(data)
        distinct.append((path, label))
    if not distinct:
        raise ConfigError(f"{source} has no image that can be decoded; give a folder of class folders, or shards")
    nbytes = 0
    with ShardWriter(folder / "shards", {"image": "image", "label": "int64"}) as writer:
        for path, label in itertools.islice(itertools.cycle(distinct), work.images):
            data = path.read_bytes()
            writer.write({"image": data, "label": label})
            files.append((str(path), label))
            nbytes += len(data)
    return files, nbytes, len(distinct)


def _read_images(source: Path, work: LoaderWork) -> Iterator[tuple[bytes, int]]:
    """Encoded images and labels, in a random order."""
    rng = random.Random(work.seed)
    if not (source / "manifest.json").is_file():
        images = list(list_class_folders(source).images)
        rng.shuffle(images)
        for image in images:
            yield (source / image.path).read_bytes(), int(image.values["label"])
        return
    data = open_dataset(source)
    names = [column.name for column in data.schema]
    column = next((column.name for column in data.schema if column.kind is Kind.IMAGE), None)
    if column is None:
        raise ConfigError(f"{source} has no image column among {names}; give shards of images")
    for shard in rng.sample(range(data.num_shards), data.num_shards):
        with data.open_shard(shard) as reader:
            for row in range(reader.rows):
                label = int(reader.scalars("label")[row]) if "label" in names else 0
                yield bytes(reader.read(row, column)), label


def _good(images: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Those that both sides can decode."""
    for data, label in images:
        try:
            decode_file(data)
        except (ValueError, OSError, SyntaxError):
            continue
        yield data, label


def _compare_pixels(shards: Path, files: Sequence[tuple[str, int]], work: LoaderWork) -> float:
    """Mean difference, in grey levels, of one batch of whole images resized by either side.

    Raises:
        ConfigError: they differ by more than the same work could.
    """
    resize = {"image": [transforms.Resize((work.size, work.size))]}
    dataset = ShardDataset(shards, transforms=resize, columns=["image"], orientation="ignore")
    count = min(32, len(files))
    with DataLoader(dataset, count) as loader:
        ours = next(iter(loader))["image"]
    theirs = []
    for path, _ in files[:count]:
        image = decode_file(Path(path).read_bytes())
        theirs.append(make_pixels(image, (0, 0, *image.shape[:2]), work.size, flip=False).permute(2, 0, 1))
    difference = float(np.abs(ours.numpy().astype(np.int16) - torch.stack(theirs).numpy().astype(np.int16)).mean())
    if difference > _PIXEL_TOLERANCE:
        raise ConfigError(
            f"the loaders do not do the same work on {files[0][0]} and the images after it: their pixels differ by "
            f"{difference:.2f} grey levels on average; please report these images"
        )
    return difference
