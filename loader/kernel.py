"""The native kernel, where it was built: many windows of JPEGs to finished pixels, by threads of its own, in one call.

The C source is `native/kernel.c`; `setup.py` builds it where a compiler and libjpeg-turbo's headers are. Without it
everything works, through the libraries, at about half the speed.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.errors import ConfigError, DecodeError
from forebay.loader.geometry import Ints, Views
from forebay.sharding import read_header

__all__ = [
    "FIRST_ROW",
    "JOB_FIELDS",
    "WHOLE_FILE",
    "Gate",
    "decode_batch",
    "find_frames",
    "make_jobs",
    "native_version",
    "require_kernel",
    "why_not",
]

_missing: str | None = None
try:  # `from ... import` would tell of a circular import where there is none
    _kernel = importlib.import_module("forebay.loader._kernel")
except ImportError as error:
    _missing = str(error)

INSTALL = (
    "install a C compiler and libjpeg-turbo's headers (Debian: apt install gcc python3-dev libjpeg62-turbo-dev), then "
    "`FOREBAY_NATIVE=1 pip install --force-reinstall --no-deps --no-cache-dir --no-binary forebay forebay`"
)
JOB_FIELDS = 13
"""int32 numbers of an image's work, all 0 where there is nothing to do."""
FIRST_ROW = 12
"""The one of them that says which row of MCUs the image's body begins with."""
WHOLE_FILE = -1
"""In its place: the source is a whole file."""


class Gate:
    """Lets one batch at a time through to the kernel. Thread-safe.

    The next caller waits at it without the GIL, and begins when no picture of the batch before is left to be taken,
    while the caller before still waits to get the GIL back: a training loop that keeps the GIL busy costs no decoding.
    """

    def __init__(self) -> None:
        self.handle: object = _kernel.gate()

    def cancel(self) -> None:
        """Let the calls that wait or work come back soon: they take no further picture."""
        _kernel.cancel(self.handle)


def native_version() -> str | None:
    """The library that the kernel was built with, such as "libjpeg-turbo 2.1.5"; None without a kernel."""
    return str(_kernel.version()) if _missing is None else None


def why_not() -> str | None:
    """Why there is no kernel, and what to do; None when there is one."""
    return None if _missing is None else f"the native kernel was not built ({_missing}); to have it, {INSTALL}"


def require_kernel() -> None:
    """Raise unless there is a kernel.

    Raises:
        ConfigError: there is none; says what to install.
    """
    if (reason := why_not()) is not None:
        raise ConfigError(f'decode="native": {reason}, or take decode="auto"')


def find_frames(pictures: Sequence[memoryview | bytes | None], max_pixels: int) -> npt.NDArray[np.int64]:
    """Sizes of the JPEGs that the kernel takes: Huffman-coded, 8 bits, grey or three colours.

    Returns:
        int64 (n, 3): height and width as stored, and whether there may be an EXIF orientation to look for; all 0 of
        what the kernel does not take.
    """
    found = np.zeros((len(pictures), 3), np.int64)
    if _missing is None:
        _kernel.frames(pictures, max_pixels, found)
        return found
    for i, picture in enumerate(pictures):
        with contextlib.suppress(DecodeError):
            header = read_header(memoryview(picture or b""))
            quick = header.sof in (0, 1, 2) and header.precision == 8 and header.components in (1, 3)
            if quick and 0 < header.height * header.width <= max_pixels:
                found[i] = header.height, header.width, header.orientation != 1
    return found


def make_jobs(
    views: Views, *, orientations: Ints | int, heights: Ints | int, widths: Ints | int, first_row: int = WHOLE_FILE
) -> npt.NDArray[np.int32]:
    """The work of many images, as `decode_batch` takes it: the fields of `Job` in `native/kernel.c`.

    Args:
        views: of the upright pictures.
        orientations: int64 (n,) Exif, 1 to 8; or the one of all.
        heights: int64 (n,) of the stored pictures; or the one of all.
        widths: int64 (n,) of the stored pictures; or the one of all.
        first_row: the row of MCUs that the images' bodies begin with, or `WHOLE_FILE`; column `FIRST_ROW`.

    Returns:
        int32 (n, 13).
    """
    fields = views.fields()
    jobs = np.empty((len(views), JOB_FIELDS), np.int32)
    jobs[:, :8] = fields[:, :8]
    jobs[:, 8] = fields[:, -1]
    jobs[:, 9], jobs[:, 10], jobs[:, 11], jobs[:, FIRST_ROW] = orientations, heights, widths, first_row
    return jobs


def decode_batch(
    heads: Sequence[memoryview | bytes | None],
    bodies: Sequence[memoryview | bytes | None],
    jobs: npt.NDArray[np.int32],
    out: Tensor,
    *,
    table: npt.NDArray[np.uint8] | None,
    max_pixels: int,
    threads: int,
    gate: Gate | None = None,
    exact: bool = False,
    head_jobs: npt.NDArray[np.int32] | None = None,
    stored: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.bool_]:
    """Make a batch. Blocks until it is done, with the GIL released once.

    Args:
        heads: by image, a whole JPEG, or one up to its entropy-coded data; None for what is not to be done.
        bodies: by image, the rows of MCUs from the job's first row on; None with whole JPEGs.
        jobs: int32 (n, 13), by image what `make_jobs` gives; C order.
        out: (n, 3, H, W) in channels_last memory: uint8, or what `table` says. Nobody else may write to it.
        table: uint8 (3, 256 * itemsize): by channel, what each of 256 values becomes in memory; None keeps them.
        max_pixels: images that claim more are not done.
        threads: how many work, the caller's among them.
        gate: that the calls of one loader go through, one after the other.
        exact: no picture is decoded at less than its full size, however small it becomes.
        head_jobs: with `stored`: int32 (n, 13), from the encoded picture to the pixels that the job is about.
        stored: where decoded pixels are or go, see `decoded_kernel.py`; None where all sources are encoded.

    Returns:
        bool (n,): which images were done. The others' places hold anything; the careful decoder has the last word, also
        on an image that there was no memory for.
    """
    assert _missing is None
    pixels = out.permute(0, 2, 3, 1)
    assert pixels.is_contiguous()
    itemsize = out.element_size()
    memory: npt.NDArray[Any] = pixels.view(dtype=torch.uint8).numpy()
    status = np.full(len(heads), -1, dtype=np.int32)
    height, width = out.shape[2:]
    _kernel.decode(
        heads,
        bodies,
        jobs,
        memory,
        height,
        width,
        table,
        1 if table is None else itemsize,
        status,
        max_pixels,
        threads,
        None if gate is None else gate.handle,
        exact,
        head_jobs,
        stored,
    )
    done: npt.NDArray[np.bool_] = status == 0
    return done
