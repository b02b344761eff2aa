"""What lies in a cache folder: whole shards, and the bytes of unfinished ones. Called under the folder's lock.

It looks, and removes what dead fetchers left; nothing is decided here.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.cache.catalogue import is_fingerprint
from forebay.cache.locks import is_locked
from forebay.cache.reservation import PART

__all__ = ["Found", "Listing", "ShardFile", "fingerprint_folders"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One whole shard in the folder."""

    fingerprint: str
    name: str
    nbytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """All that counts towards the budget."""

    shards: list[ShardFile]
    reserved: int
    """Bytes of unfinished shards, as long as they will be."""
    pending: int
    """Those of them that the disk has not set aside yet: it still calls them free."""

    @property
    def used(self) -> int:
        """Bytes of everything."""
        return sum(shard.nbytes for shard in self.shards) + self.reserved


class Listing:
    """Lists one cache folder again and again.

    A whole shard's size is asked for once: its name says which bytes it has. 3000 shards take a few milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, ShardFile] = {}

    def look(self) -> Found:
        """What is there now; unfinished shards without a lock holder are removed."""
        before, self._seen = self._seen, {}
        reserved = pending = 0
        for folder in fingerprint_folders(self._path):
            fingerprint = os.path.basename(folder)
            for name in _names(folder):
                key = f"{fingerprint}/{name}"
                if name.endswith(PART):
                    nbytes, missing = _live_nbytes(Path(folder, name))
                    reserved, pending = reserved + nbytes, pending + missing
                elif (shard := before.get(key) or _look_at(folder, fingerprint, name)) is not None:
                    self._seen[key] = shard
        return Found(list(self._seen.values()), reserved, pending)


def fingerprint_folders(path: Path) -> list[str]:
    """The folders of data sets in a cache folder; links are not followed."""
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if is_fingerprint(entry.name) and entry.is_dir(follow_symlinks=False)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # an opener has removed it, being empty
        return []


def _live_nbytes(part: Path) -> tuple[int, int]:
    """Size of an unfinished shard, and how much of it has no blocks; without a lock holder 0, and it is removed."""
    with suppress(FileNotFoundError):  # a fetch was given up just now
        if is_locked(part):
            status = part.stat()
            return status.st_size, max(0, status.st_size - 512 * status.st_blocks)
        log.info("removing %s, left by a process that ended in the middle", part)
        part.unlink()
    return 0, 0


def _look_at(folder: str, fingerprint: str, name: str) -> ShardFile | None:
    try:
        status = os.lstat(os.path.join(folder, name))
    except FileNotFoundError:
        return None
    return ShardFile(fingerprint, name, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
