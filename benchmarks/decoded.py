"""What the decoded cache is worth: epochs from stored pixels, beside torch's DataLoader, and the epoch that fills it.

All sides resize by the shorter side, then cut a window of random place and size, resize it and mirror half of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.benchmarks.gathered import Gathered, gather, write_files, write_shards
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.torch_peer import FileImages, decode_file, draw_window, make_pixels, torch_batches, torch_loader
from forebay.benchmarks.turns import PassTime, Ratio, take_turns, time_pass
from forebay.benchmarks.work import LoaderWork, image_batches
from forebay.errors import ConfigError
from forebay.loader import MAX_PIXELS, DataLoader, ShardDataset, transforms
from forebay.loader.decoded_kernel import IN_MEMORY, PADDING, STORED_DTYPE, finish_batch
from forebay.loader.geometry import View, Views
from forebay.loader.kernel import JOB_FIELDS, make_jobs, require_kernel
from forebay.loader.windows import scaled_size

__all__ = ["DecodedReport", "DecodedSide", "measure_decoded"]

STORED, FILLING, ENCODED = "stored pixels", "filling the store", "without a store"
TORCH, CEILING = "torch, from JPEG", "the bare resize"
_CACHE_NBYTES = 1 << 40
_Prepared = tuple[Sequence[bytes], npt.NDArray[np.int32], npt.NDArray[Any]]
"""By batch: pixels, their work, and where they are."""


@dataclass(frozen=True, slots=True)
class DecodedSide:
    """One side's rounds."""

    name: str
    images_per_s: tuple[float, ...]

    def over(self, other: DecodedSide) -> Ratio:
        """How many times as fast as `other`."""
        return Ratio.of(self.images_per_s, other.images_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedReport:
    """Rounds of all sides, in turn."""

    source: str
    work: LoaderWork
    shorter: int | None
    """Side that images are resized to first; None: they are kept whole."""
    threads: int
    workers: int
    images: int
    distinct_images: int
    sides: tuple[DecodedSide, ...]
    counts: Mapping[str, int | str]
    """What the decoded cache did in the rounds from stored pixels."""

    def side(self, name: str) -> DecodedSide:
        """A side by name."""
        return next(side for side in self.sides if side.name == name)

    def ratios(self) -> dict[str, Ratio]:
        """What the numbers are about."""
        stored = self.side(STORED)
        return {
            f"{STORED} over {TORCH}": stored.over(self.side(TORCH)),
            f"{STORED} over {ENCODED}": stored.over(self.side(ENCODED)),
            f"{STORED} over {CEILING}": stored.over(self.side(CEILING)),
            f"{FILLING} over {ENCODED}": self.side(FILLING).over(self.side(ENCODED)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        ratios = {name: ratio._asdict() for name, ratio in self.ratios().items()}
        return {**dataclasses.asdict(self), "ratios": ratios, "machine": describe_machine()}


@dataclass(frozen=True)
class ResizedFileImages(FileImages):
    """`FileImages`, resized by the shorter side before a window is cut."""

    shorter: int | None = None

    def make(self, data: bytes, window: Any = None, *, flip: bool | None = None) -> Tensor:
        """See `FileImages.make`."""
        image = decode_file(data)
        if self.shorter is not None:
            height, width, _ = image.shape
            size = scaled_size(height, width, self.shorter)
            image = make_pixels(image, (0, 0, height, width), size, flip=False).numpy()
        flipped = random.random() < 0.5 if flip is None else flip
        return make_pixels(image, window or draw_window(*image.shape[:2]), (self.size, self.size), flip=flipped)


def measure_decoded(
    source: Path,
    work: LoaderWork,
    *,
    shorter: int | None = 256,
    threads: int = 2,
    workers: int = 2,
    rounds: int = 5,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DecodedReport:
    """Time all sides in turn, after a pass of each that warms up; the source is only read.

    Args:
        source: a folder of images, or shards with an image column.
        work: of every side.
        shorter: see `DecodedReport.shorter`.
        threads: of this loader.
        workers: processes of torch's.
        rounds: timed passes of each side.
        folder: where caches and copies lie meanwhile; None for the usual place.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: no images there, or this build has no native kernel.
    """
    require_kernel()
    if rounds < 1 or threads < 1 or workers < 0:
        raise ConfigError(f"rounds={rounds}, threads={threads}, workers={workers}; give at least 1, 1 and 0")
    gathered = gather(
        source, images=work.images, multiple=work.batch_size * max(workers, 1), addressable=False, seed=work.seed
    )
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=folder) as temporary, ExitStack() as opened:
        place = Path(temporary)
        files = write_files(gathered, place / "files")
        write_shards(gathered, place / "shards", addressable=False)
        numbers = itertools.count()

        def load(*, decoded: bool, cache: str) -> DataLoader:
            chain: list[transforms.Transform] = [] if shorter is None else [transforms.Resize(shorter=shorter)]
            chain += [transforms.RandomResizedCrop(work.size), transforms.RandomHorizontalFlip()]
            dataset = ShardDataset(
                place / "shards",
                cache=f"{place / cache}:{_CACHE_NBYTES}",
                transforms={"image": chain},
                columns=["image", "label"],
                orientation="ignore",
                decoded=decoded,
            )
            return DataLoader(dataset, work.batch_size, shuffle=True, num_workers=threads, seed=work.seed)

        def first_epoch(*, decoded: bool) -> PassTime:
            with load(decoded=decoded, cache=f"cache{next(numbers)}") as fresh:
                return time_pass(partial(image_batches, fresh))

        stored = opened.enter_context(load(decoded=True, cache="kept"))
        for _ in range(3):  # fill it: a batch gets no more than so many new files
            time_pass(partial(image_batches, stored))
        stored.reset_stats()
        peer = ResizedFileImages(files, work.size, shorter=shorter)
        prepared = list(_prepare(gathered, work, shorter))
        theirs = torch_loader(peer, batch_size=work.batch_size, workers=workers)
        sides: dict[str, Callable[[], PassTime]] = {
            STORED: partial(time_pass, partial(image_batches, stored)),
            FILLING: partial(first_epoch, decoded=True),
            ENCODED: partial(first_epoch, decoded=False),
            TORCH: partial(time_pass, partial(torch_batches, theirs)),
            CEILING: partial(time_pass, partial(_bare_batches, prepared, work, threads)),
        }
        passes = take_turns(sides, rounds=rounds, progress=progress)
        return DecodedReport(
            source=str(source),
            work=work,
            shorter=shorter,
            threads=threads,
            workers=workers,
            images=gathered.images,
            distinct_images=len(gathered.distinct),
            sides=tuple(
                DecodedSide(name, tuple(each.images_per_s for each in told[1:])) for name, told in passes.items()
            ),
            counts=stored.stats().decoded,
        )


def _bare_batches(prepared: Sequence[_Prepared], work: LoaderWork, threads: int) -> Iterator[Tensor]:
    """The kernel's resize of pixels in memory into one array, and nothing else."""
    out = torch.empty((work.batch_size, work.size, work.size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    for pixels, jobs, stored in prepared:
        head_jobs = np.zeros((len(pixels), JOB_FIELDS), np.int32)
        batch = out[: len(pixels)]
        done = finish_batch(pixels, head_jobs, stored, jobs, batch, table=None, max_pixels=MAX_PIXELS, threads=threads)
        assert done.all()
        yield batch


def _prepare(gathered: Gathered, work: LoaderWork, shorter: int | None) -> Iterator[_Prepared]:
    rng = random.Random(work.seed)
    kept: dict[int, tuple[bytes, int, int]] = {}
    photographs = itertools.cycle(gathered.distinct)
    left = gathered.images
    while left:
        count = min(left, work.batch_size)
        left -= count
        batch = []
        for photograph in itertools.islice(photographs, count):
            if id(photograph) not in kept:
                image = decode_file(photograph.data)
                height, width, _ = image.shape
                size = (height, width) if shorter is None else scaled_size(height, width, shorter)
                pixels = make_pixels(image, (0, 0, height, width), size, flip=False).numpy()
                kept[id(photograph)] = pixels.tobytes() + bytes(PADDING), *size
            batch.append(kept[id(photograph)])
        views = [
            View(*draw_window(height, width), work.size, work.size, 0, 0, work.size, work.size, rng.random() < 0.5)
            for _, height, width in batch
        ]
        _, heights, widths = zip(*batch, strict=True)
        jobs = make_jobs(Views.of(views), orientations=1, heights=np.array(heights), widths=np.array(widths))
        stored = np.zeros(count, STORED_DTYPE)
        stored["origin"] = IN_MEMORY
        yield [pixels for pixels, _, _ in batch], jobs, stored
