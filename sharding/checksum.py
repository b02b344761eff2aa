"""The checksums of the format: xxh3-64 for a sample or a footer, xxh3-128 for a whole file.

They find accidents (bad disks, bad memory, cut transfers), not forgery: xxh3 is fast and no secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from forebay.sharding.far import bring_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.sharding.source import SourceFile

__all__ = ["READ_NBYTES", "sample_checksum", "shard_checksum"]

READ_NBYTES = 4 << 20
"""Bytes read at a time over a whole file: long enough for full speed of any disk, small beside a shard."""

_NEAR_PIECES = 8

sample_checksum = xxhash.xxh3_64_intdigest
"""Checksum of the bytes of one sample in one column: a buffer to an unsigned integer of 64 bits."""


def shard_checksum(file: SourceFile, progress: Callable[[int], None] | None = None) -> bytes:
    """Checksum of a whole file as the index keeps it: 16 bytes, big-endian.

    Args:
        file: read from begin to end, `READ_NBYTES` at a time; a far one's pieces come several at once.
        progress: called with the number of bytes after each read.

    Raises:
        SourceError: the bytes cannot be read.
    """
    state = xxhash.xxh3_128()
    for number, offset in enumerate(range(0, file.nbytes, READ_NBYTES)):
        if number % _NEAR_PIECES == 0:
            begins = range(offset, min(file.nbytes, offset + _NEAR_PIECES * READ_NBYTES), READ_NBYTES)
            bring_near((file, begin, min(READ_NBYTES, file.nbytes - begin)) for begin in begins)
        piece = file.read(offset, min(READ_NBYTES, file.nbytes - offset))
        state.update(piece)
        if progress is not None:
            progress(len(piece))
    return state.digest()
