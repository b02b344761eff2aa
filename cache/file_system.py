"""Whether a folder can hold a cache: its kind of file system, and whether `flock` excludes anybody there.

It answers two questions by looking; it keeps nothing open.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from forebay.errors import CacheError

__all__ = ["file_system_magic", "refuse_shared_file_system", "refuse_without_flock"]

SHARED = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x0BD00BD0: "Lustre",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x786F4256: "VirtualBox shared folders",
}
"""File systems of other machines by the magic number of `statfs(2)`: locks there may exclude nobody, a file that
another machine removes stops being readable under a map, and the bytes are as far away as the source's."""


def file_system_magic(folder: Path) -> int | None:
    """The magic number that `statfs(2)` gives for a folder; None where the system has no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statfs") or os.uname().sysname != "Linux":
        return None
    buffer = ctypes.create_string_buffer(512)  # struct statfs is 120 bytes; its first word is the magic
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        code = ctypes.get_errno()
        raise CacheError(f"the cache folder {folder} cannot be examined: {os.strerror(code)}", path=folder, code=code)
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def refuse_shared_file_system(folder: Path, *, magic_of: Callable[[Path], int | None] = file_system_magic) -> None:
    """Raise unless the folder lies on this machine.

    Args:
        folder: exists.
        magic_of: tells the file system's magic number; the seam for tests.

    Raises:
        CacheError: it lies on a network or user-space file system; names it and says why that does not work.
    """
    magic = magic_of(folder)
    if magic in SHARED:
        kind = SHARED[magic]
        raise CacheError(
            f"the cache folder {folder} lies on {kind}: file locks there may exclude nobody and a mapped file may "
            f"vanish while it is read, so the cache must be on a disk of this machine (NVMe, or /dev/shm for small "
            f"data); the data itself may well lie on {kind}",
            path=folder,
            file_system=kind,
        )


def refuse_without_flock(folder: Path, lock_file: Path) -> None:
    """Raise unless `flock` works there. Called while the caller holds the lock on `lock_file`.

    A second descriptor must be refused: some file systems accept every lock and exclude nobody.

    Raises:
        CacheError: the second lock was granted.
    """
    fd = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(fd)
    raise CacheError(
        f"the cache folder {folder} is on a file system whose flock excludes nobody: two processes would overrun the "
        f"budget and each other; put the cache on a local disk (ext4, xfs, btrfs, tmpfs)",
        path=folder,
    )
