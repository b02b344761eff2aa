"""What the kernel has to do for pictures that are not stored: from the encoded bytes to the pixels after the head.

Which of them the kernel takes at all, and how large the pixels become; nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.loader.decoded_head import DecodedHead
from forebay.loader.geometry import Ints
from forebay.loader.kernel import JOB_FIELDS, find_frames, make_jobs
from forebay.sharding import read_header

__all__ = ["HeadJobs", "plan_heads"]


class HeadJobs(NamedTuple):
    """Of the pictures that the kernel takes, in the order of their places."""

    places: Ints
    """int64 (m,) in the batch."""
    jobs: npt.NDArray[np.int32]
    """int32 (m, 13), see `make_jobs`."""
    heights: Ints
    """int64 (m,) of the pixels."""
    widths: Ints


def plan_heads(
    head: DecodedHead, pictures: Sequence[memoryview | None], places: Ints, *, upright: bool, max_pixels: int
) -> HeadJobs:
    """Find what the kernel takes; the careful decoder makes the same pixels of the others.

    Args:
        head: of the program.
        pictures: encoded, n of them.
        places: int64 (n,) in the batch.
        upright: whether EXIF orientation is applied.
        max_pixels: pictures that claim more are left to the careful decoder, which refuses them.
    """
    frames = find_frames(pictures, max_pixels)
    taken = np.flatnonzero(frames[:, 0])
    if not taken.size:
        return HeadJobs(taken, np.zeros((0, JOB_FIELDS), np.int32), taken, taken)
    heights, widths, has_metadata = frames[taken].T
    turned = np.ones_like(heights)
    if upright:
        for k in np.flatnonzero(has_metadata).tolist():
            picture = pictures[taken[k]]
            assert picture is not None
            turned[k] = read_header(picture).orientation
    lying = turned >= 5
    views = head.views(np.where(lying, widths, heights), np.where(lying, heights, widths), places[taken])
    known = views.known & (views.down.out * views.across.out <= max_pixels)
    if any(step.resizes for step in head.steps):
        known &= ~lying  # the kernel resizes what is stored, rows first: of a turned picture that rounds otherwise
    jobs = make_jobs(views, orientations=turned, heights=heights, widths=widths)
    return HeadJobs(places[taken[known]], jobs[known], views.down.out[known], views.across.out[known])
