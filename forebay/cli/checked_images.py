"""Reading and checking images for `forebay shard`: in threads, in order, a bounded number ahead."""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from forebay.errors import DecodeError, SourceError
from forebay.sharding import ImageFile, LocalFile, printable

__all__ = ["CHECKS", "BadImage", "checked_images"]

AHEAD_PER_THREAD = 4
_OF_THE_FILE = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENOTDIR, errno.ESTALE, None}
"""Faults of one file. Others (no descriptors, no memory) are the machine's, and end the command."""


@dataclass(frozen=True, slots=True)
class BadImage:
    """An image that is left out."""

    path: str
    reason: str


def check_decodes(data: memoryview) -> None:
    """Decode all pixels, as training will."""
    from forebay.loader import decode_image  # imports torch

    decode_image(data)


def check_header(data: memoryview) -> None:
    """See that a decoder knows the format, the size and the mode."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.size  # noqa: B018
    except UnidentifiedImageError as error:
        raise DecodeError("no image header of a known format") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"no image header that holds: {error}") from error


def check_nothing(data: memoryview) -> None:
    """Take any bytes but none."""
    if not data:
        raise DecodeError("the file is empty")


CHECKS: dict[str, Callable[[memoryview], None]] = {
    "decode": check_decodes,
    "header": check_header,
    "none": check_nothing,
}


def checked_images(
    root: Path, images: Iterable[ImageFile], *, check: Callable[[memoryview], None], threads: int
) -> Iterator[tuple[ImageFile, memoryview | BadImage]]:
    """Each image with its bytes, or with the reason why it is bad; in the order of `images`.

    Args:
        root: folder that the paths are relative to.
        images: what to read; taken a few ahead.
        check: raises DecodeError for an image that is bad; runs in threads.
        threads: how many; 0 for the cores that this process may use.

    Raises:
        SourceError: reading fails for a reason that is not one file's.
    """
    threads = threads or len(os.sched_getaffinity(0))
    remaining = iter(images)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="forebay-shard")
    try:
        ahead: deque[tuple[ImageFile, Future[memoryview | BadImage]]] = deque()
        while True:
            room = threads * AHEAD_PER_THREAD - len(ahead)
            ahead.extend((image, pool.submit(_read, root, image, check)) for image in islice(remaining, room))
            if not ahead:
                return
            image, result = ahead.popleft()
            yield image, result.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(root: Path, image: ImageFile, check: Callable[[memoryview], None]) -> memoryview | BadImage:
    try:
        file = LocalFile(root / image.path, name=printable(image.path))
        try:
            data = file.read(0, file.nbytes)
        finally:
            file.close()
        check(data)
    except SourceError as error:
        if getattr(error, "code", None) not in _OF_THE_FILE:
            raise
        return BadImage(image.path, str(error))
    except DecodeError as error:
        return BadImage(image.path, str(error))
    return data
