"""What goes wrong with a disk while a cache is on it, told once each: full, read-only, removed. It touches no file."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

__all__ = ["Trouble"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EEXIST})  # EEXIST: removed while `mkdir` looked

log = logging.getLogger(__name__)


class Trouble:
    """The troubles of one cache folder. Each is a warning once and then only slower reading."""

    def __init__(self, path: Path) -> None:
        self.read_only = False
        """Nothing can be written: the cache serves what it has."""
        self._path = path
        self._told: set[str] = set()

    @staticmethod
    def is_full(error: OSError) -> bool:
        """Whether an error says that the disk, or this user's share of it, has no room left."""
        return _code(error) in FULL

    @staticmethod
    def is_read_only(error: OSError) -> bool:
        """Whether an error says that nothing may be written there."""
        return _code(error) in READ_ONLY

    @staticmethod
    def is_gone(error: OSError) -> bool:
        """Whether an error says that the folder was removed."""
        return _code(error) in GONE

    def warn_full(self, budget: int) -> None:
        """The disk has less room than the budget."""
        self._warn(
            "full",
            f"the disk of the cache folder {self._path} is full before the budget of {budget} bytes is used: the cache "
            f"works with what there is, the rest is read from the source; free some space, or give a smaller budget",
        )

    def warn_read_only(self, error: OSError) -> None:
        """Nothing can be written: from now on nothing is tried."""
        self.read_only = True
        self._warn(
            "read-only",
            f"the cache folder {self._path} cannot be written to ({error.strerror or error}): shards that lie there "
            f"are used, all others are read from the source; make it writable, or give another folder",
        )

    def warn_gone(self) -> None:
        """The folder was removed or emptied."""
        self._warn(
            "gone",
            f"the cache folder {self._path} was removed while it was in use: it is made again, and its shards are "
            f"fetched again",
        )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s", message)


def _code(error: OSError) -> int | None:
    code = error.errno if error.errno is not None else getattr(error, "code", None)
    return code if isinstance(code, int) else None
