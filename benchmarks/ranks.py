"""Several ranks with a share of the decode threads each, against one rank with all of them: what dividing costs.

Each rank is a process of its own with its loader alone, without a model and without messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from forebay.benchmarks.gathered import gather
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.turns import Ratio, take_turns
from forebay.benchmarks.work import ADDRESSABLE, LoaderWork, image_batches, shard_dataset, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader

__all__ = ["RankComparison", "compare_ranks"]

_opened: list[DataLoader] = []
"""In a rank's process, its loader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankComparison:
    """Rounds of both sides, interleaved in one run."""

    source: str
    work: LoaderWork
    ranks: int
    """Processes of the divided side, with `threads / ranks` decode threads each."""
    threads: int
    """Decode threads of each side together."""
    images: int
    """Images a round, over all ranks."""
    distinct_images: int
    divided: tuple[float, ...]
    """By round, images a second over all ranks, from the question for the first batch to the slowest rank's last."""
    alone: tuple[float, ...]
    """The same of one rank."""

    @property
    def ratio(self) -> Ratio:
        """How many times as fast the divided side is."""
        return Ratio.of(self.divided, self.alone)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with the ratio, and what machine it was."""
        return dataclasses.asdict(self) | {"ratio": self.ratio._asdict(), "machine": describe_machine()}


def compare_ranks(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    ranks: int = 2,
    threads: int = 2,
    rounds: int = 5,
    progress: Callable[[str], None] | None = None,
) -> RankComparison:
    """Time both sides in turn, after a pass of each that warms up. They make the same global batches.

    Args:
        source: a folder of images, or shards with an image column.
        work: what is done with an image; `batch_size` is over all ranks.
        ranks: of the divided side.
        threads: decode threads of each side; `ranks` divides them.
        rounds: timed passes of each side.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: no images there, or threads that the ranks do not divide.
    """
    if rounds < 1 or ranks < 1 or threads < 1 or threads % ranks or work.batch_size < ranks:
        raise ConfigError(
            f"ranks={ranks}, threads={threads}, rounds={rounds}, batch_size={work.batch_size}; give at least 1 of "
            "each, as many threads for each rank, and a sample of the batch"
        )
    gathered = gather(
        Path(source), images=work.images, multiple=work.batch_size, addressable=True, seed=work.seed, common_jpeg=True
    )
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary, contextlib.ExitStack() as opened:
        shards = write_both_shards(gathered, Path(temporary), addressable=True)
        best = shards.get(ADDRESSABLE, next(iter(shards.values())))
        sides = {}
        for name, count in ((f"{ranks} ranks", ranks), ("one rank", 1)):
            job = [opened.enter_context(_process(best, work, rank, count, threads // count)) for rank in range(count)]
            sides[name] = lambda job=job: _time_job(job)
        divided, alone = take_turns(sides, rounds=rounds, progress=progress or (lambda _: None)).values()
    return RankComparison(
        source=str(source),
        work=work,
        ranks=ranks,
        threads=threads,
        images=gathered.images,
        distinct_images=len(gathered.distinct),
        divided=tuple(divided[1:]),
        alone=tuple(alone[1:]),
    )


def _process(shards: Path, work: LoaderWork, rank: int, world_size: int, threads: int) -> ProcessPoolExecutor:
    """A process with the loader of one rank."""
    return ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_open, initargs=(shards, work, rank, world_size, threads)
    )


def _open(shards: Path, work: LoaderWork, rank: int, world_size: int, threads: int) -> None:
    _opened.append(
        DataLoader(
            shard_dataset(shards, work),
            global_batch_size=work.batch_size,
            shuffle=True,
            num_workers=threads,
            seed=work.seed,
            rank=rank,
            world_size=world_size,
        )
    )


def _pass() -> int:
    """One pass of this process's rank; how many images it had."""
    return sum(len(images) for images in image_batches(_opened[0]))


def _time_job(job: list[ProcessPoolExecutor]) -> float:
    """Images a second of one pass over all ranks of a job."""
    started = time.monotonic()
    images = sum(each.result() for each in [process.submit(_pass) for process in job])
    return images / (time.monotonic() - started)
