"""Which kinds of decoded samples are in use on this machine: one locked file a kind, shared by all that read it.

Files of kinds that nobody reads, such as those of a head or decoder that was changed, are the first to go. It holds no
samples and decides nothing.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from forebay.cache.locks import is_locked, unlock

__all__ = ["KeyInUse", "living_keys", "remove_dead_keys"]

SUFFIX = ".pixels"


class KeyInUse:
    """Says that this process reads decoded samples of one kind. Made and closed while the folder's lock is held.

    Args:
        folder: of the readers; made when missing.
        fingerprint: of the data set.
        key: of the kind.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, fingerprint: str, key: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{fingerprint}-{key}{SUFFIX}"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        _live.add(self)

    def close(self) -> None:
        """Say so no longer; the last one removes the file. Calling it again does nothing, nor in a forked child."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        unlock(fd)
        with suppress(OSError):  # somebody removed the folder, or made it read-only
            if not is_locked(self._path):
                self._path.unlink()

    def leave_to_parent(self) -> None:
        """In a forked child: close the descriptor, and leave lock and file alone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def living_keys(folder: Path) -> set[tuple[str, str]]:
    """Fingerprint and key of every kind that somebody reads. Called under the folder's lock."""
    return {key for key, path in _listed(folder) if is_locked(path)}


def remove_dead_keys(folder: Path) -> None:
    """Remove what dead readers left. Called under the folder's lock."""
    for _, path in _listed(folder):
        if not is_locked(path):
            path.unlink(missing_ok=True)


def _listed(folder: Path) -> list[tuple[tuple[str, str], Path]]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    parted = [(name.removesuffix(SUFFIX).partition("-"), folder / name) for name in names]
    return [((fingerprint, key), path) for (fingerprint, _, key), path in parted]


_live: weakref.WeakSet[KeyInUse] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for key in list(_live):
        key.leave_to_parent()
    _live.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
