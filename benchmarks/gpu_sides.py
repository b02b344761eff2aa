"""The sides that the measurements of GPU decoding compare: this loader on DALI, and DALI's graph without a loader."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from forebay.benchmarks.bare import Job
from forebay.benchmarks.gathered import Gathered
from forebay.benchmarks.turns import PassTime, time_pass
from forebay.benchmarks.work import LoaderWork, shard_dataset
from forebay.loader import DataLoader
from forebay.loader.dali_graph import DaliMode
from forebay.loader.dali_probe_child import run_graph
from forebay.loader.geometry import View
from forebay.loader.jpeg_engines import SHARE_VARIABLE
from forebay.loader.transforms import Transform

__all__ = [
    "GpuPlace",
    "PixelCheck",
    "bare_pass",
    "compare_batches",
    "dali_loader",
    "damaged",
    "engine_share",
    "timed_pass",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPlace:
    """Where DALI works: on one GPU, or all on the CPU."""

    device: torch.device
    """Where batches are."""
    mode: DaliMode
    """How it decodes, as the probe found."""
    threads: int
    """Of DALI's on the CPU."""

    @property
    def device_id(self) -> int | None:
        """The GPU's number; None on the CPU."""
        return self.device.index

    def settle(self) -> None:
        """Wait for what the GPU still has to do."""
        if self.device_id is not None:
            torch.cuda.synchronize(self.device)


@contextlib.contextmanager
def engine_share(share: float | None) -> Iterator[None]:
    """Give this share of the images to the GPU's JPEG engines, in pipelines built in the body; None leaves it alone."""
    before = os.environ.get(SHARE_VARIABLE)
    if share is not None:
        os.environ[SHARE_VARIABLE] = str(share)
    try:
        yield
    finally:
        os.environ.pop(SHARE_VARIABLE, None)
        if before is not None:
            os.environ[SHARE_VARIABLE] = before


def dali_loader(shards: Path, work: LoaderWork, *more: Transform, place: GpuPlace, **settings: Any) -> DataLoader:
    """This loader on shards, shuffled, decoding with DALI; `settings` are more arguments of `DataLoader`, or others."""
    settings = {"shuffle": True, "decode": "dali", **settings}
    device = None if place.device_id is None else place.device
    dataset = shard_dataset(shards, work, *more)
    return DataLoader(dataset, work.batch_size, num_workers=place.threads, seed=work.seed, device=device, **settings)


def timed_pass(batches: Callable[[], Iterator[Tensor]], place: GpuPlace, size: int) -> Callable[[], PassTime]:
    """A pass of a side, up to the end of the GPU's work, which checks what comes."""

    def begin() -> Iterator[Tensor]:
        yield from batches()
        place.settle()

    def check(images: Tensor) -> None:
        assert images.shape[1:] == (3, size, size), images.shape
        assert images.dtype == torch.uint8, images.dtype
        assert images.device == place.device, images.device

    return partial(time_pass, begin, check)


def bare_pass(jobs: Sequence[Job], *, place: GpuPlace, size: int, batch_size: int) -> Callable[[], PassTime]:
    """A pass of DALI's graph over bytes in memory: what it gives for these windows if a loader cost nothing.

    JPEGs and windows are put together here, while no clock runs.
    """
    samples = [_sample(job, size) for job in jobs]
    starts = range(0, len(samples), batch_size)
    begin = run_graph(
        [samples[start : start + batch_size] for start in starts],
        size=(size, size),
        threads=place.threads,
        device_id=place.device_id,
        mode=place.mode,
    )

    def run() -> Iterator[Tensor]:
        for out in begin():
            yield from_dlpack(out.as_tensor()).permute(0, 3, 1, 2)

    return timed_pass(run, place, size)


def _sample(job: Job, size: int) -> tuple[bytes | memoryview, View]:
    data: bytes | memoryview = job.data
    top, left, height, width = job.cut.window
    if job.part is not None:
        data, (part_top, part_left) = job.part.cut(job.cut.window)
        top, left = top - part_top, left - part_left
    return data, View.of_window((top, left, height, width), (size, size), flipped=job.cut.flip)


def damaged(gathered: Gathered, share: float, seed: int) -> Gathered:
    """The same images, a share of them spoilt: cut short, headers overwritten, or no image at all. At least one."""
    rng = random.Random(seed)
    photographs = list(gathered.all())
    for n, place in enumerate(rng.sample(range(len(photographs)), max(1, round(share * len(photographs))))):
        spoil = (_cut, _overwrite, _replace)[n % 3]
        photographs[place] = dataclasses.replace(
            photographs[place], data=spoil(photographs[place].data, rng), addressable=None
        )
    return dataclasses.replace(gathered, distinct=photographs)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) // 4, 3 * len(data) // 4)]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(2, 200)
    return data[:start] + rng.randbytes(200) + data[start + 200 :]


def _replace(data: bytes, rng: random.Random) -> bytes:
    return b"\xff\xd8" + rng.randbytes(len(data) - 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelCheck:
    """How far the pixels of two backends are from each other, in grey levels."""

    images: int
    mean: float
    p999: int
    """99.9th percentile."""
    largest: int


def compare_batches(ours: DataLoader, others: DataLoader, images: int) -> PixelCheck:
    """Compare the same images of two loaders that have one order, up to about `images` of them."""
    counts, compared = np.zeros(256, np.int64), 0
    for mine, its in zip(ours, others, strict=True):
        difference = mine["image"].cpu().to(torch.int16) - its["image"].to(torch.int16)
        counts += torch.bincount(difference.abs().flatten(), minlength=256).numpy()
        compared += len(difference)
        if compared >= images:
            break
    total = int(counts.sum())
    return PixelCheck(
        images=compared,
        mean=float(counts @ np.arange(256)) / total,
        p999=int(np.searchsorted(np.cumsum(counts), 0.999 * total)),
        largest=int(np.flatnonzero(counts)[-1]),
    )
