"""The measurements of decoding with DALI, one function each; `gpu.py` runs them and puts them together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from forebay.benchmarks.bare import make_jobs
from forebay.benchmarks.dali_peer import DaliPeer
from forebay.benchmarks.gathered import Gathered, write_files, write_shards
from forebay.benchmarks.gpu_sides import (
    GpuPlace,
    PixelCheck,
    bare_pass,
    compare_batches,
    dali_loader,
    damaged,
    engine_share,
    timed_pass,
)
from forebay.benchmarks.overhead import OverheadRow
from forebay.benchmarks.resnet import FedSteps, make_step, run_steps
from forebay.benchmarks.turns import PassTime, take_turns
from forebay.benchmarks.work import ADDRESSABLE, ORIGINAL, LoaderWork, image_batches, shard_dataset
from forebay.loader import DataLoader, native_version, transforms

__all__ = ["PEER", "GpuRun", "StepRounds", "compare_pixels", "feed_steps", "measure_sides", "over_bare", "with_damage"]

PEER = "DALI's own reader"
_COMPARED_IMAGES = 1000
_DAMAGED_SHARE = 0.01
_CPU_STEPS, _CPU_STEP_IMAGES = 3, 4
"""Steps of ResNet-50 on the CPU, and images of each."""
_GPU_STEPS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRun:
    """What all measurements work on."""

    gathered: Gathered
    shards: Mapping[str, Path]
    """By form of the images, as `write_both_shards` wrote them to `folder`."""
    folder: Path
    """For what else is to be laid out."""
    work: LoaderWork
    place: GpuPlace
    rounds: int
    progress: Callable[[str], None]


class StepRounds(NamedTuple):
    """How ResNet-50 was fed."""

    fed: Sequence[FedSteps]
    """By round."""
    row: OverheadRow
    """Beside the same steps on one batch that stays."""
    images: int
    """Images a step."""
    decoder: str
    """What the loader says it decodes with."""


def compare_pixels(run: GpuRun) -> dict[str, PixelCheck]:
    """By form of the images, what DALI makes of the first thousand beside what this loader makes on the CPU."""
    on_cpu: Literal["library", "native"] = "library" if native_version() is None else "native"
    threads, seed = run.place.threads, run.work.seed
    checks = {}
    for name, path in run.shards.items():
        dataset = shard_dataset(path, run.work)
        with (
            dali_loader(path, run.work, place=run.place, shuffle=False) as ours,
            DataLoader(dataset, run.work.batch_size, num_workers=threads, seed=seed, decode=on_cpu) as others,
        ):
            checks[name] = compare_batches(ours, others, _COMPARED_IMAGES)
    return checks


def measure_sides(run: GpuRun, hardware_shares: Sequence[float | None]) -> dict[str, list[tuple[float, ...]]]:
    """Images a second of DALI's own reader and of this loader on both forms: by side, by hardware share, by round.

    Shares come one after the other; at each of them the sides take turns.
    """
    gathered, work, place = run.gathered, run.work, run.place
    files = write_files(gathered, run.folder / "files")
    largest = max(each.height for each in gathered.distinct), max(each.width for each in gathered.distinct)
    speeds: dict[str, list[tuple[float, ...]]] = {name: [] for name in (PEER, *run.shards)}
    for share in hardware_shares:
        peer = DaliPeer(
            files,
            size=work.size,
            batch_size=work.batch_size,
            threads=place.threads,
            device_id=place.device_id,
            hardware_share=share,
            largest=largest,
            seed=work.seed,
        )
        with engine_share(share), contextlib.ExitStack() as opened:
            sides = {PEER: timed_pass(peer.batches, place, work.size)}
            for name, path in run.shards.items():
                loader = opened.enter_context(dali_loader(path, work, place=place))
                sides[name] = _loader_pass(loader, place, work)
            at = "" if share is None else f", hardware share {share:g}"
            passes = take_turns(sides, rounds=run.rounds, progress=partial(_tell, run.progress, at))
        for name, times in passes.items():
            speeds[name].append(_speeds(times))
    return speeds


def _tell(progress: Callable[[str], None], after: str, name: str) -> None:
    progress(name + after)


def over_bare(run: GpuRun) -> list[OverheadRow]:
    """A row for each form of the images: the whole loader, and its graph alone on bytes in memory."""
    work, place = run.work, run.place
    with contextlib.ExitStack() as opened:
        sides: dict[str, Callable[[], PassTime]] = {}
        for name, path in run.shards.items():
            loader = opened.enter_context(dali_loader(path, work, place=place))
            sides[name] = _loader_pass(loader, place, work)
            jobs = make_jobs(run.gathered, seed=work.seed, addressable=name == ADDRESSABLE)
            sides[f"{name}: bare pipeline"] = bare_pass(jobs, place=place, size=work.size, batch_size=work.batch_size)
        passes = take_turns(sides, rounds=run.rounds, progress=run.progress)
    return [
        OverheadRow(
            name=f"the whole loader on {'addressable' if name == ADDRESSABLE else 'original'} images",
            images_per_s=_speeds(passes[name]),
            best="the bare pipeline, bytes in memory",
            best_images_per_s=_speeds(passes[f"{name}: bare pipeline"]),
        )
        for name in run.shards
    ]


def with_damage(run: GpuRun) -> OverheadRow:
    """The images as they came, one in a hundred damaged, beside the same without damage.

    Each pass is the first of a new loader, which remembers no image that failed.
    """
    write_shards(damaged(run.gathered, _DAMAGED_SHARE, run.work.seed), run.folder / "damaged", addressable=False)
    shards = {"original": run.shards[ORIGINAL], "damaged": run.folder / "damaged"}
    sides = {name: partial(_fresh_pass, run, path) for name, path in shards.items()}
    passes = take_turns(sides, rounds=run.rounds, progress=run.progress)
    return OverheadRow(
        name="one image in a hundred is damaged",
        images_per_s=_speeds(passes["damaged"]),
        best="none is",
        best_images_per_s=_speeds(passes["original"]),
    )


def feed_steps(run: GpuRun) -> StepRounds:
    """Feed ResNet-50 by the loader, and beside that with one batch that stays.

    In bfloat16; on the CPU in float32, since most processors have no other arithmetic and take seconds for an image.
    """
    place = run.place
    on_gpu = place.device_id is not None
    images = (
        run.work.batch_size if on_gpu else max(1, min(_CPU_STEP_IMAGES, run.work.batch_size, run.gathered.images // 2))
    )
    count = _GPU_STEPS if on_gpu else _CPU_STEPS
    work = dataclasses.replace(run.work, normalize=True, batch_size=images)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    step = make_step(place.device, dtype)
    path = run.shards.get(ADDRESSABLE, run.shards[ORIGINAL])
    with dali_loader(path, work, transforms.ToDtype(dtype), place=place, drop_last=True) as loader:
        resident = next(iter(loader))
        staying = [resident] * min(len(loader), count + 1)
        passes = take_turns(
            {
                "ResNet-50, one batch that stays": partial(run_steps, staying, step, count),
                "ResNet-50, fed by the loader": partial(run_steps, loader, step, count),
            },
            rounds=run.rounds,
            progress=run.progress,
        )
        decoder = loader.stats().decoder
    staying_rounds, fed = (each[1:] for each in passes.values())
    row = OverheadRow(
        name=f"steps of ResNet-50 in {str(dtype).removeprefix('torch.')}, fed by the loader",
        images_per_s=tuple(each.images_per_s for each in fed),
        best="on one batch that stays",
        best_images_per_s=tuple(each.images_per_s for each in staying_rounds),
    )
    return StepRounds(fed, row, images, decoder)


def _fresh_pass(run: GpuRun, shards: Path) -> PassTime:
    max_bad = run.gathered.images
    with dali_loader(shards, run.work, place=run.place, on_error="skip", max_bad=max_bad) as loader:
        return _loader_pass(loader, run.place, run.work)()


def _loader_pass(loader: DataLoader, place: GpuPlace, work: LoaderWork) -> Callable[[], PassTime]:
    return timed_pass(partial(image_batches, loader), place, work.size)


def _speeds(passes: list[PassTime]) -> tuple[float, ...]:
    """By round, without the pass that warms up."""
    return tuple(each.images_per_s for each in passes[1:])
