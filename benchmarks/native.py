"""The native kernel on bytes in memory, as one more way to decode without a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from forebay.benchmarks.bare import Decoder, Job, make_with_library
from forebay.benchmarks.reference import Pixels
from forebay.loader.decode import MAX_PIXELS, Scratch
from forebay.loader.geometry import View
from forebay.loader.kernel import JOB_FIELDS, WHOLE_FILE, decode_batch, make_job, native_version

__all__ = ["native_decoder", "native_version"]


def native_decoder(threads: int, size: int) -> Decoder:
    """The kernel with its own threads, which takes the GIL once a batch.

    What it leaves to the careful decoder is made the way of the library, as in the loader.
    """

    def prepare(jobs: Sequence[Job]) -> Callable[[Pixels], None]:
        heads = [job.data if job.part is None else job.part.header for job in jobs]
        bodies = [None if job.part is None else job.part.bands for job in jobs]
        numbers = np.array([_numbers(job, size) for job in jobs], np.int32).reshape(len(jobs), JOB_FIELDS)
        scratch = Scratch()

        def decode(out: Pixels) -> None:
            slot = torch.from_numpy(out).permute(0, 3, 1, 2)
            done = decode_batch(heads, bodies, numbers, slot, table=None, max_pixels=MAX_PIXELS, threads=threads)
            for i in np.flatnonzero(~done).tolist():
                make_with_library(jobs[i], out[i], scratch)

        return decode

    return prepare


def _numbers(job: Job, size: int) -> tuple[int, ...]:
    top, left, height, width = job.cut.window
    view = View(top, left, height, width, size, size, 0, 0, size, size, job.cut.flip)
    first_row = WHOLE_FILE if job.part is None else job.part.first_row
    return make_job(view, orientation=1, height=job.height, width=job.width, first_row=first_row)
