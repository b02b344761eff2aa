"""Room in the cache for one shard that is being fetched: an unfinished file of full size, locked by its fetcher.

It writes and renames one file. Who gets room, and at whose cost, is decided in `folder.py`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from forebay.cache.locks import try_lock, unlock

__all__ = ["PART", "Reservation"]

PART = ".part"
"""Ending of an unfinished file. It counts with its full size from the moment it exists."""


class Reservation:
    """Room for one shard; a context manager that gives the room back unless `commit` was called.

    Made while the folder's lock is held, so that nobody sees the file before it is locked and has its size: to others
    it is either absent or a live fetch. A process that dies holding it leaves a file without a lock holder, which
    whoever takes the folder's lock next may remove.
    """

    def __init__(self, path: Path, nbytes: int, lock: Callable[[], AbstractContextManager[None]]) -> None:
        self.path = path
        self.nbytes = nbytes
        self._part = path.with_name(path.name + PART)
        self._lock = lock
        self._open = True
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            locked = try_lock(self._fd)
            assert locked, "nobody else looks at a new file: the folder is locked"
            os.ftruncate(self._fd, nbytes)
        except BaseException:
            self.give_up()
            raise

    def allocate(self) -> None:
        """Have the file system set the blocks aside, so that a full disk shows now and not in the middle.

        Raises:
            OSError: there is no room.
        """
        if not self.nbytes:
            return
        try:
            os.posix_fallocate(self._fd, 0, self.nbytes)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # then a full disk shows in the middle after all
                raise

    def shrink(self, nbytes: int) -> None:
        """Give back what is beyond `nbytes`: the file turned out to be shorter."""
        assert nbytes <= self.nbytes, "more room is to be asked for, and may not be had"
        os.ftruncate(self._fd, nbytes)
        self.nbytes = nbytes

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`.

        Raises:
            OSError: it cannot be written.
        """
        while data:
            written = os.pwrite(self._fd, data, offset)
            offset, data = offset + written, data[written:]

    def commit(self, *, sync: bool = True) -> None:
        """Make the file visible under its own name, whole: written to disk, then renamed.

        Without `sync` a machine that loses power may keep the name and lose bytes: for files that carry a checksum and
        are compared with it by each process that maps them.

        Under the folder's lock, since a listing that runs while a name changes may show both names or neither, and then
        somebody would count wrong.

        Args:
            sync: False for a file whose readers verify all that they read: a lost write costs no more than that.

        Raises:
            OSError: it cannot be written, or somebody removed it.
            CacheError, ClosedError: the folder's lock was not to be had.
        """
        if sync:
            os.fsync(self._fd)
        with self._lock():
            os.rename(self._part, self.path)
        self._open = False
        unlock(self._fd)

    def duplicate(self) -> int:
        """Another descriptor of the file, to read and write it by; the caller closes it, also after `commit`.

        Raises:
            OSError: there is none left.
        """
        return os.dup(self._fd)

    def give_up(self) -> None:
        """Give the room back, unless `commit` was called. Calling it again does nothing."""
        if not self._open:
            return
        self._open = False
        with suppress(FileNotFoundError):  # the user emptied the folder
            os.unlink(self._part)
        unlock(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give_up()
