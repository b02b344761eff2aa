"""The drop-in loader beside torch's DataLoader on data sets that are no shards: the same arguments, the same batches.

Every row first compares a whole pass batch by batch, then times both in turn. It decodes nothing itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from forebay.benchmarks.dropin_cases import Case, DropinWork, make_cases
from forebay.benchmarks.dropin_memory import EPOCHS, MemoryRow, measure_memory
from forebay.benchmarks.gathered import gather
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.turns import PassTime, Ratio, take_turns, time_pass
from forebay.errors import ConfigError
from forebay.loader import DataLoader

__all__ = ["DropinReport", "DropinRow", "compare_dropin", "same_batch"]

_PREFETCH = 4
_Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropinRow:
    """Both loaders on one data set."""

    name: str
    asked: float
    """The ratio that is hoped for."""
    samples: int
    """Of a timed pass."""
    batches_compared: int
    """Of the pass before, each equal to torch's to the last bit."""
    samples_per_s: tuple[float, ...]
    """By round."""
    torch_samples_per_s: tuple[float, ...]
    """By round, measured in the same rounds."""

    @property
    def ratio(self) -> Ratio:
        """How many times as fast as torch's."""
        return Ratio.of(self.samples_per_s, self.torch_samples_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class DropinReport:
    """All rows of one run."""

    source: str
    work: DropinWork
    images: int
    """Files of a pass."""
    distinct_images: int
    image_nbytes: float
    """Mean size of a file."""
    rows: tuple[DropinRow, ...]
    memory: tuple[MemoryRow, ...]
    epochs: int = EPOCHS
    """That were read before memory was measured."""
    prefetch: int = _PREFETCH
    """Batches that each worker of either loader makes ahead."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with ratios, and what machine it was."""
        values = dataclasses.asdict(self)
        for kind in ("rows", "memory"):
            for told, row in zip(values[kind], getattr(self, kind), strict=True):
                told["ratio"] = row.ratio._asdict()
        values["machine"] = describe_machine()
        return values


def compare_dropin(
    source: str | os.PathLike[str], work: DropinWork, *, rounds: int = 5, progress: _Progress | None = None
) -> DropinReport:
    """Time this loader and torch's in turn on every data set, and weigh their workers on one of strings.

    Worker processes start as torch starts them by default, and stay for all rounds.

    Args:
        source: a folder of images, or shards with an image column; only read.
        work: how much each row does.
        rounds: timed passes of each side.
        progress: told what is measured.

    Raises:
        ConfigError: no images there, or too little room in /dev/shm for torch's side.
        AssertionError: a batch is not torch's.
    """
    if rounds < 1:
        raise ConfigError(f"rounds={rounds}; give at least 1")
    _check_shared_memory(work)
    tell = progress or (lambda _: None)
    make = partial(_loaders, work)
    memory = measure_memory(make, strings=work.strings, batch_size=work.batch_size, rounds=rounds, progress=tell)
    multiple = work.batch_size * work.workers
    gathered = gather(Path(source), images=work.images, multiple=multiple, addressable=False, seed=work.seed)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary:
        rows = [_row(case, make, rounds, tell) for case in make_cases(work, gathered, Path(temporary))]
    return DropinReport(
        source=str(source),
        work=work,
        images=gathered.images,
        distinct_images=len(gathered.distinct),
        image_nbytes=gathered.nbytes,
        rows=tuple(rows),
        memory=tuple(memory),
    )


def _check_shared_memory(work: DropinWork) -> None:
    needed = work.batch_size * 3 * work.size**2 * 4 * (_PREFETCH * work.workers + 2)
    place = "/dev/shm"  # noqa: S108 - where torch's batches lie
    try:
        found = os.statvfs(place)
    except OSError:
        return
    room = found.f_bavail * found.f_frsize
    if room < needed:
        raise ConfigError(
            f"{place} has room for {room / 1e6:,.0f} MB, and the batches of torch's side may take "
            f"{needed / 1e6:,.0f}: its workers would die; enlarge it (docker run --shm-size), or give a smaller "
            "--batch-size"
        )


def _loaders(work: DropinWork, dataset: Any, batch_size: int) -> tuple[Any, Any]:
    """This loader and torch's, with the same arguments and generators that stand at the same place."""
    mine, its = (
        kind(
            dataset,
            batch_size,
            shuffle=True,
            num_workers=work.workers,
            persistent_workers=True,
            prefetch_factor=_PREFETCH,
            generator=torch.Generator().manual_seed(work.seed),
        )
        for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    return mine, its


def _row(case: Case, make_loaders: Callable[..., tuple[Any, Any]], rounds: int, progress: _Progress) -> DropinRow:
    mine, its = make_loaders(case.dataset, case.batch_size)
    with contextlib.ExitStack() as ending:
        ending.callback(_end, its)
        ending.callback(mine.close)
        progress(f"comparing batches: {case.name}")
        compared = _count_same(mine, its)
        sides: Mapping[str, Callable[[], PassTime]] = {
            side: partial(time_pass, partial(_batches, loader), _copier() if case.copied else lambda _: None)
            for side, loader in (("forebay", mine), ("torch", its))
        }
        passes = take_turns(sides, rounds=rounds, progress=lambda side: progress(f"{case.name}: {side}"))
    return DropinRow(
        name=case.name,
        asked=case.asked,
        samples=len(case.dataset),
        batches_compared=compared,
        samples_per_s=tuple(each.images_per_s for each in passes["forebay"][1:]),
        torch_samples_per_s=tuple(each.images_per_s for each in passes["torch"][1:]),
    )


def _end(loader: Any) -> None:
    loader._iterator._shutdown_workers()
    loader._iterator = None


def _batches(loader: Any) -> Iterator[Tensor]:
    for batch in loader:
        yield batch[0] if isinstance(batch, (list, tuple)) else batch


def _copier() -> Callable[[Tensor], None]:
    """Copies each batch to memory that is used again."""
    place = torch.empty(0)

    def copy(batch: Tensor) -> None:
        nonlocal place
        if place.shape != batch.shape or place.dtype != batch.dtype:
            place = torch.empty_like(batch)
        place.copy_(batch)

    return copy


def _count_same(mine: Any, its: Any) -> int:
    count = 0
    for count, (ours, theirs) in enumerate(zip(mine, its, strict=True), 1):
        assert same_batch(ours, theirs), f"batch {count - 1} is not torch's; please report this data set"
    return count


def same_batch(ours: Any, theirs: Any) -> bool:
    """Whether two batches are equal to the last bit: types, dtypes, shapes, strides and values."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, Tensor):
        same_form = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
        return same_form and torch.equal(ours, theirs)
    if isinstance(ours, Sequence) and not isinstance(ours, (str, bytes)):
        return len(ours) == len(theirs) and all(map(same_batch, ours, theirs))
    return bool(ours == theirs)
