"""The native kernel on bytes in memory, as one more way to decode without a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from forebay.benchmarks.bare import Decoder, Job, make_with_library
from forebay.benchmarks.reference import Pixels
from forebay.loader.decode import MAX_PIXELS, Scratch
from forebay.loader.geometry import Views
from forebay.loader.kernel import FIRST_ROW, decode_batch, make_jobs, native_version

__all__ = ["native_decoder", "native_version"]


def native_decoder(threads: int, size: int) -> Decoder:
    """The kernel with its own threads, which takes the GIL once a batch.

    What it leaves to the careful decoder is made the way of the library, as in the loader.
    """

    def prepare(jobs: Sequence[Job]) -> Callable[[Pixels], None]:
        heads = [job.data if job.part is None else job.part.header for job in jobs]
        bodies = [None if job.part is None else job.part.bands for job in jobs]
        numbers = _numbers(jobs, size)
        scratch = Scratch()

        def decode(out: Pixels) -> None:
            slot = torch.from_numpy(out).permute(0, 3, 1, 2)
            done = decode_batch(heads, bodies, numbers, slot, table=None, max_pixels=MAX_PIXELS, threads=threads)
            for i in np.flatnonzero(~done).tolist():
                make_with_library(jobs[i], out[i], scratch)

        return decode

    return prepare


def _numbers(jobs: Sequence[Job], size: int) -> npt.NDArray[np.int32]:
    heights, widths = np.array([job.height for job in jobs]), np.array([job.width for job in jobs])
    windows = np.array([job.cut.window for job in jobs]).T
    flipped = np.array([job.cut.flip for job in jobs])
    views = Views.whole(heights, widths).crop(*windows).resize((size, size)).flip(flipped)
    numbers = make_jobs(views, orientations=np.ones_like(heights), heights=heights, widths=widths)
    for number, job in zip(numbers, jobs, strict=True):
        if job.part is not None:
            number[FIRST_ROW] = job.part.first_row
    return numbers
