"""The lock of a cache folder, and the lock on one unfinished file: both `flock`, so that death releases them.

`flock` belongs to the open file, which forked children share. So locks are released by name (`LOCK_UN`), never by the
closing of one descriptor alone: a child forked in the meantime would go on holding them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay.errors import CacheError, ClosedError

__all__ = ["LOCK_TIMEOUT_S", "folder_lock", "is_locked", "try_lock", "unlock"]

LOCK_TIMEOUT_S = 10.0
"""Limit for the folder's lock. It is held for milliseconds at a time: longer means that its holder was stopped."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02


def try_lock(fd: int) -> bool:
    """Lock an open file for this descriptor alone, without waiting; whether that worked.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Release the lock of this descriptor and close it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether somebody alive holds the lock on the file. False when there is no file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    if try_lock(fd):
        unlock(fd)
        return False
    os.close(fd)
    return True


@contextmanager
def folder_lock(lock_file: Path, *, stop: threading.Event, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a cache folder, against every other thread and process that asks for it.

    `flock` cannot wait with a limit, so it is asked again, 20 ms apart at most; `stop` ends the wait at once.

    Raises:
        ClosedError: `stop` was set.
        TimeoutError: the lock was not to be had in `timeout_s` seconds; says how to find its holder.
        CacheError: the folder is gone or cannot be locked.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        if stop.is_set():
            raise ClosedError(f"the cache in {lock_file.parent} was closed")
        fd = _lock_if_free(lock_file)
        if fd is not None:
            break
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"the cache folder {lock_file.parent} has been locked by another process for {timeout_s:.0f} s, "
                f"which holds the lock for milliseconds when it runs; find it with "
                f"`fuser {lock_file}` and continue or end it"
            )
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    try:
        yield
    finally:
        unlock(fd)


def _lock_if_free(lock_file: Path) -> int | None:
    """A locked descriptor of the file that has the name now; None when another holds it."""
    try:
        fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CacheError(
            f"the cache folder {lock_file.parent} cannot be used: {error.strerror}; "
            + ("it was removed while in use" if error.errno == errno.ENOENT else "give a folder that you may write to"),
            path=lock_file.parent,
            code=error.errno,
        ) from error
    try:
        if try_lock(fd):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(lock_file)):
                    return fd
            unlock(fd)  # somebody removed the lock file after it was opened: a lock on it excludes nobody
            return None
    except OSError as error:
        os.close(fd)
        raise CacheError(
            f"the cache folder {lock_file.parent} cannot be locked: {error.strerror}; put the cache on a local disk",
            path=lock_file.parent,
            code=error.errno,
        ) from error
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None
