"""Decoded samples by the native kernel: stored ones read and verified, others decoded and stored, all finished.

A batch is one call, as of encoded pictures; the C source is `native/decoded.h`. What to do with which sample is decided
in `decoded_batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.loader.kernel import Gate, decode_batch

__all__ = ["ENCODED", "IN_MEMORY", "NOWHERE", "PADDING", "STORED", "STORED_DTYPE", "TO_STORE", "finish_batch"]

NOWHERE, STORED, ENCODED, TO_STORE, IN_MEMORY = range(5)
"""Where a sample's pixels come from: nowhere (it is left alone), the store, the encoded picture; from the encoded
picture, and then they go to the store; or they are what is given in place of the encoded picture."""
PADDING = 64
"""Bytes that pixels in memory have after them."""

STORED_DTYPE = np.dtype(
    [("origin", "i4"), ("fd", "i4"), ("offset", "i8"), ("checksum", "u8"), ("written", "i8")], align=True
)
"""`Stored` in `native/decoded.h`. `written` is told: 1, or minus the number of an error; 0 where nothing was to be."""


def finish_batch(
    pictures: Sequence[memoryview | bytes | None],
    head_jobs: npt.NDArray[np.int32],
    stored: npt.NDArray[Any],
    jobs: npt.NDArray[np.int32],
    out: Tensor,
    *,
    table: npt.NDArray[np.uint8] | None,
    max_pixels: int,
    threads: int,
    gate: Gate | None = None,
) -> npt.NDArray[np.bool_]:
    """Make a batch of decoded samples. Blocks until it is done, with the GIL released once.

    Args:
        pictures: by sample, the encoded picture of those that are not stored, or pixels in memory; else None.
        head_jobs: int32 (n, 13), by such a sample, from the encoded picture to its pixels, as `make_jobs` has it.
        stored: (n,) of `STORED_DTYPE`; checksum and `written` of samples that go to the store are told in it.
        jobs: int32 (n, 13), by sample, from its pixels to the output; the frame is the pixels' size.
        out: as of `decode_batch`.
        table: as of `decode_batch`.
        max_pixels: as of `decode_batch`; also of decoded pictures.
        threads: as of `decode_batch`.
        gate: as of `decode_batch`.

    Returns:
        bool (n,): which samples were done. What is damaged in the store, or no plain JPEG, is not.
    """
    return decode_batch(
        pictures,
        [None] * len(pictures),
        jobs,
        out,
        table=table,
        max_pixels=max_pixels,
        threads=threads,
        gate=gate,
        head_jobs=head_jobs,
        stored=stored,
    )
