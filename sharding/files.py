"""Writing files so that a crash or a full disk leaves the old state or the new one: aside, fsync, rename.

It knows nothing of shards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.errors import SourceError

__all__ = ["TEMPORARY_SUFFIX", "naming_full_disks", "sync_folder", "write_atomically", "write_whole"]

TEMPORARY_SUFFIX = ".tmp"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomically(path: Path, data: Any) -> None:
    """Make a file that appears whole or not at all, and is on the disk when this returns.

    Args:
        path: replaced when it exists.
        data: a contiguous buffer.

    Raises:
        SourceError: it cannot be written; nothing is left of it. When there is no room, says how much was needed.
    """
    aside = path.with_name(path.name + TEMPORARY_SUFFIX)
    view = memoryview(data)
    with naming_full_disks(path, view.nbytes):
        try:
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_whole(fd, view)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)  # gives the room back
            raise
        sync_folder(path.parent)


def write_whole(fd: int, data: memoryview | bytes) -> None:
    """Write all bytes: `os.write` stops at 2 GiB, and short of a full disk."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(path: Path) -> None:
    """Bring a rename or unlink in `path` to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def naming_full_disks(path: Path, nbytes: int) -> Iterator[None]:
    """Turn the system's errors into `SourceError`s that name the file and, when the disk is full, the room needed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        if error.errno not in _NO_ROOM:
            raise SourceError(f"{path} cannot be written: {error.strerror or error}", path=str(path)) from error
        try:
            free = f"{shutil.disk_usage(path.parent).free} bytes are free there"
        except OSError:
            free = "how much is free is unknown"
        raise SourceError(
            f"no room to write {path} ({nbytes} bytes; {free}: {error.strerror})", path=str(path), nbytes=nbytes
        ) from error
