"""What decoding with DALI gives: beside DALI's own reader, beside a training step, and with damaged images.

With a GPU this measures the GPU. Without one all of it runs in DALI's CPU mode, so that the numbers say that it works,
and what the loader adds to DALI, but nothing of a GPU.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forebay.benchmarks.gathered import gather
from forebay.benchmarks.gpu_rows import GpuRun, compare_pixels, feed_steps, measure_sides, over_bare, with_damage
from forebay.benchmarks.gpu_sides import GpuPlace, PixelCheck, engine_share
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.overhead import OverheadRow
from forebay.benchmarks.turns import Ratio
from forebay.benchmarks.work import ADDRESSABLE, ORIGINAL, LoaderWork, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import dali_version, nvimagecodec_version, probe, why_no_dali

__all__ = ["HARDWARE_SHARES", "GpuReport", "GpuSide", "measure_gpu"]

HARDWARE_SHARES = (0.0, 0.25, 0.5, 0.65, 1.0)
"""Shares of the images for the GPU's JPEG engines; 0.65 is DALI's default."""
_ASKED = {ORIGINAL: 1.0, ADDRESSABLE: 1.5}
"""How many times as fast as DALI's own reader each of this loader's sides is to be."""
_GPU_IMAGES = 16_384
"""Of a pass on a GPU: seconds of it."""
_Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSide:
    """One way from files or shards to batches, at each of the hardware shares."""

    name: str
    images_per_s: tuple[tuple[float, ...], ...]
    """By share, then by round."""
    asked: float | None
    """How many times as fast as DALI's own reader it is to be; None for that one itself."""

    @property
    def best(self) -> int:
        """Which of the shares is the fastest, by the medians."""
        medians = [statistics.median(rounds) for rounds in self.images_per_s]
        return medians.index(max(medians))

    def over(self, other: GpuSide) -> Ratio:
        """How many times as fast as `other`, each at its own best share."""
        return Ratio.of(self.images_per_s[self.best], other.images_per_s[other.best])


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReport:
    """All that was measured in one run, what is asked for beside it."""

    source: str
    work: LoaderWork
    device: str
    """The GPU's name, or "CPU"."""
    on_gpu: bool
    dali: str
    nvimagecodec: str | None
    mode: str
    """How DALI decodes here, as the probe found."""
    decoder: str
    """What the loader says of it."""
    threads: int
    images: int
    """Images a round."""
    distinct_images: int
    image_nbytes: float
    hardware_shares: tuple[float | None, ...]
    """One None on the CPU."""
    sides: tuple[GpuSide, ...]
    """DALI's own reader first."""
    rows: tuple[OverheadRow, ...]
    """The loader beside what it could reach at best."""
    asked: tuple[float, ...]
    """By row, the share that is to be reached."""
    stall_shares: tuple[float, ...]
    """By round, the share of time that ResNet-50 waited for a batch; at most 0.01 is asked for."""
    step_images: int
    """Images a step."""
    steps: int
    """Of a round."""
    pixels: Mapping[str, PixelCheck]
    """By side, how far its pixels are from those of this loader on the CPU; a mean of at most 1 is asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians and ratios, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, side in zip(values["sides"], self.sides, strict=True):
            told["best_hardware_share"] = self.hardware_shares[side.best]
            told["median_images_per_s"] = [statistics.median(rounds) for rounds in side.images_per_s]
            told["times_as_fast"] = side.over(self.sides[0])._asdict()
        for told, row in zip(values["rows"], self.rows, strict=True):
            told["ratio"] = row.ratio._asdict()
        values["machine"] = describe_machine()
        return values


def measure_gpu(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    device_id: int | None = None,
    threads: int = 2,
    rounds: int = 5,
    hardware_shares: Sequence[float] = HARDWARE_SHARES,
    progress: _Progress | None = None,
) -> GpuReport:
    """Measure every side in turn with what it is compared with.

    Args:
        source: a folder of images, or shards with an image column; images that are no common JPEG are left out.
        work: what is done with an image.
        device_id: the GPU's number; None for DALI's CPU mode.
        threads: of DALI's on the CPU, the same for every side.
        rounds: timed passes of each side.
        hardware_shares: tried on a GPU; on the CPU there is nothing to share.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: there is no JPEG, or no DALI that works here.
    """
    if rounds < 1 or threads < 1:
        raise ConfigError(f"rounds={rounds}, threads={threads}; give at least 1 of each")
    device = torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
    if (reason := why_no_dali(device)) is not None:
        raise ConfigError(reason)
    place = GpuPlace(device=device, mode="region" if device_id is None else probe(device), threads=threads)
    work = dataclasses.replace(work, normalize=False)
    if work.images is None and device_id is not None:
        work = dataclasses.replace(work, images=_GPU_IMAGES)
    gathered = gather(
        Path(source), images=work.images, multiple=work.batch_size, addressable=True, seed=work.seed, common_jpeg=True
    )
    shares: tuple[float | None, ...] = (None,) if device_id is None else tuple(hardware_shares)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary:
        run = GpuRun(
            gathered=gathered,
            shards=write_both_shards(gathered, Path(temporary), addressable=True),
            folder=Path(temporary),
            work=work,
            place=place,
            rounds=rounds,
            progress=progress or (lambda _: None),
        )
        pixels = compare_pixels(run)
        sides = [_side(name, speeds) for name, speeds in measure_sides(run, shares).items()]
        with engine_share(shares[sides[-1].best]):
            rows = [*over_bare(run), with_damage(run)]
            steps = feed_steps(run)
    return GpuReport(
        source=str(source),
        work=work,
        device="CPU" if device_id is None else torch.cuda.get_device_name(device),
        on_gpu=device_id is not None,
        dali=str(dali_version()),
        nvimagecodec=nvimagecodec_version(),
        mode=place.mode,
        decoder=steps.decoder,
        threads=threads,
        images=gathered.images,
        distinct_images=len(gathered.distinct),
        image_nbytes=gathered.nbytes,
        hardware_shares=shares,
        sides=tuple(sides),
        rows=(*rows, steps.row),
        asked=(*[0.95] * len(run.shards), 0.9, 0.99),
        stall_shares=tuple(each.stall_share for each in steps.fed),
        step_images=steps.images,
        steps=steps.fed[0].images // steps.images,
        pixels=pixels,
    )


def _side(name: str, speeds: Sequence[tuple[float, ...]]) -> GpuSide:
    return GpuSide(name=name, images_per_s=tuple(speeds), asked=_ASKED.get(name))
