"""The cache's folder: who may have room in it, and at whose cost. Files are the only truth; nothing else is kept.

    forebay-cache.json           says that the folder belongs to the cache
    forebay-cache.lock           locked for whatever lists or changes the folder
    <fingerprint>/<shard>        a whole, verified shard
    <fingerprint>/<shard>.part   a shard being fetched, locked by its fetcher; without a lock holder it is left over

It knows names and sizes, and neither data sets nor orders. Listing, deciding, evicting and reserving are one step under
the folder's lock, unlinking included: were a victim removed after the lock, two processes could count the same victim's
bytes as theirs. Copying, syncing to disk and reading happen outside it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path

from forebay.cache.config import CacheConfig
from forebay.cache.file_system import refuse_shared_file_system, refuse_without_flock
from forebay.cache.locks import folder_lock, is_locked
from forebay.cache.marker import LOCK, mark, refuse_strangers
from forebay.cache.plan import FOREIGN, Resident, plan_admission, plan_evictions
from forebay.cache.reservation import PART, Reservation, is_full
from forebay.errors import CacheError, SourceError
from forebay.sharding import MappedFile

__all__ = ["CacheFolder", "Refusal"]

STALL_S = 10.0
"""A fetch that has written nothing for so long is not waited for. Pieces are 4 MiB: slower than 0.4 MB/s counts too."""

log = logging.getLogger(__name__)


class Refusal(Enum):
    """Why no room was reserved."""

    PRESENT = auto()
    """The shard is there already."""
    BUSY = auto()
    """Another process, or another store of this one, is fetching it."""
    STALLED = auto()
    """Another process is fetching it, or holds the folder's lock, and does not get on: it was stopped, most likely."""
    NO_ROOM = auto()
    """Everything that is kept is needed as soon, or the disk is full."""


@dataclass(frozen=True, slots=True)
class _Entry:
    fingerprint: str
    name: str
    nbytes: int
    mtime_ns: int


class CacheFolder:
    """One cache folder. Thread-safe, and safe against other processes; holds no file open between calls.

    Opening makes the folder when it is missing, refuses one that is not the cache's, removes what dead processes left
    and evicts down to the budget.

    Args:
        config: where, and how many bytes.

    Raises:
        CacheError: the folder is not empty and no cache, of a newer version, on a file system that cannot be shared
            safely, or cannot be written to.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.path = config.path.absolute()
        self.budget = config.budget
        self._warned_full = False
        self._seen: dict[str, _Entry] = {}  # whole shards at the last listing; touched under the folder's lock
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_shared_file_system(self.path)
            refuse_strangers(self.path)
            with folder_lock(self.path / LOCK, stop=threading.Event()):
                refuse_without_flock(self.path, self.path / LOCK)
                mark(self.path)
                self._clean()
        except CacheError:
            raise
        except TimeoutError as error:
            raise CacheError(str(error), path=self.path) from error
        except OSError as error:
            raise _unusable(self.path, error) from error

    def _clean(self) -> None:
        """Remove what dead processes left and evict down to the budget, the oldest first."""
        entries, reserved = self._scan()
        residents = [Resident(f"{e.fingerprint}/{e.name}", e.nbytes, FOREIGN, e.mtime_ns) for e in entries]
        used = sum(resident.nbytes for resident in residents) + reserved
        victims = plan_evictions(residents, used - self.budget, keep_until=0)
        self._evict(residents if victims is None else victims)
        for folder in self._fingerprint_folders():
            with suppress(OSError):  # not empty, or removed by a process without manners
                os.rmdir(folder)

    # -- listing, under the lock -------------------------------------------------------------------------------------

    def _fingerprint_folders(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [
                e.path for e in entries if re.fullmatch(r"[0-9a-f]{32}", e.name) and e.is_dir(follow_symlinks=False)
            ]

    def _scan(self) -> tuple[list[_Entry], int]:
        """Whole shards, and the bytes of live unfinished ones; unfinished ones without a lock holder are removed.

        A whole shard's size is asked for once: its name says which bytes it has. 3000 shards take a few milliseconds.
        """
        before, self._seen = self._seen, {}
        reserved = 0
        for folder in self._fingerprint_folders():
            fingerprint = os.path.basename(folder)
            for name in os.listdir(folder):
                key = f"{fingerprint}/{name}"
                if name.endswith(PART):
                    reserved += self._live_nbytes(Path(folder, name))
                elif (entry := before.get(key) or _look_at(folder, fingerprint, name)) is not None:
                    self._seen[key] = entry
        return list(self._seen.values()), reserved

    def _live_nbytes(self, part: Path) -> int:
        """Size of an unfinished shard; 0 and no file any more when nobody holds its lock."""
        with suppress(FileNotFoundError):  # a fetch was given up just now
            if is_locked(part):
                return part.stat().st_size
            log.info("removing %s, left by a process that ended in the middle", part)
            part.unlink()
        return 0

    def _evict(self, victims: Sequence[Resident]) -> None:
        for victim in victims:
            log.debug("evicting %s, %d bytes, next use %d", victim.key, victim.nbytes, victim.next_use)
            with suppress(FileNotFoundError):
                os.unlink(self.path / victim.key)

    # -- shards ------------------------------------------------------------------------------------------------------

    def open_shard(self, fingerprint: str, name: str, nbytes: int) -> MappedFile | None:
        """Map a whole shard; None when it is not there. One of another size is removed: it is not what was written.

        Raises:
            SourceError: it is there and cannot be mapped.
        """
        path = self.path / fingerprint / name
        try:
            mapped = MappedFile(path)
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        if mapped.nbytes == nbytes:
            return mapped
        log.warning("%s has %d bytes, the index says %d; it is removed and fetched again", path, mapped.nbytes, nbytes)
        mapped.close()
        self.remove(fingerprint, name)
        return None

    def remove(self, fingerprint: str, name: str) -> None:
        """Remove a shard that turned out to be damaged. Frees bytes only, so it needs no lock."""
        with suppress(FileNotFoundError):
            os.unlink(self.path / fingerprint / name)

    def reserve(
        self,
        fingerprint: str,
        name: str,
        nbytes: int,
        *,
        keep_until: Callable[[], int],
        next_uses: Callable[[Sequence[str]], Sequence[int]],
        stop: threading.Event,
    ) -> tuple[Reservation | Refusal, int]:
        """Make room for a shard that is to be fetched, evicting what is needed later than `keep_until`.

        Args:
            fingerprint: of the data set.
            name: of the shard.
            nbytes: its size.
            keep_until: gives the position of `plan_admission`; called under the folder's lock, as is `next_uses`.
            next_uses: from names of this data set's shards to their next use; shards of others count as `FOREIGN`.
            stop: ends every wait for the folder's lock, with `ClosedError`.

        Returns:
            The reservation, which the caller enters at once, or why there is none; and how many shards were evicted.

        Raises:
            CacheError: the folder cannot be used.
            ClosedError: `stop` was set.
        """
        path = self.path / fingerprint / name
        lock = partial(folder_lock, self.path / LOCK, stop=stop)
        try:
            if path.exists():  # the common case of a shard fetched ahead: no need for the lock
                return Refusal.PRESENT, 0
            with lock():
                if path.exists():
                    return Refusal.PRESENT, 0
                part = path.with_name(name + PART)
                if is_locked(part):
                    return (Refusal.BUSY if _grows(part) else Refusal.STALLED), 0
                victims = self._plan(fingerprint, nbytes, keep_until, next_uses)
                if victims is None:
                    return Refusal.NO_ROOM, 0
                self._evict(victims)
                path.parent.mkdir(exist_ok=True)
                return Reservation(path, nbytes, lock), len(victims)
        except CacheError:
            raise
        except TimeoutError as error:
            log.warning("%s; meanwhile shards are read from the source", str(error))
            return Refusal.STALLED, 0
        except OSError as error:
            if is_full(error):
                self.warn_full()
                return Refusal.NO_ROOM, 0
            raise _unusable(self.path, error) from error

    def _plan(
        self,
        fingerprint: str,
        nbytes: int,
        keep_until: Callable[[], int],
        next_uses: Callable[[Sequence[str]], Sequence[int]],
    ) -> list[Resident] | None:
        entries, reserved = self._scan()
        names = [entry.name for entry in entries if entry.fingerprint == fingerprint]
        uses = dict(zip(names, next_uses(names), strict=True))
        residents = [
            Resident(
                f"{e.fingerprint}/{e.name}",
                e.nbytes,
                uses[e.name] if e.fingerprint == fingerprint else FOREIGN,
                e.mtime_ns,
            )
            for e in entries
        ]
        used = sum(entry.nbytes for entry in entries) + reserved
        disk = os.statvfs(self.path)
        budget = min(self.budget, used + disk.f_bavail * disk.f_frsize)
        if budget < self.budget and used + nbytes > budget:
            self.warn_full()
        return plan_admission(residents, nbytes=nbytes, reserved=reserved, budget=budget, keep_until=keep_until())

    def warn_full(self) -> None:
        """Say, once, that the disk has less room than the budget."""
        if not self._warned_full:
            self._warned_full = True
            log.warning(
                "the disk of the cache folder %s is full before the budget of %d bytes is used: the cache works with "
                "what there is, the rest is read from the source; free some space, or give a smaller budget",
                self.path,
                self.budget,
            )


def _look_at(folder: str, fingerprint: str, name: str) -> _Entry | None:
    try:
        status = os.lstat(os.path.join(folder, name))
    except FileNotFoundError:
        return None
    return _Entry(fingerprint, name, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _grows(part: Path) -> bool:
    """Whether a fetch has written within `STALL_S`, by the clock that the file system uses."""
    try:
        return time.time() - part.stat().st_mtime < STALL_S
    except FileNotFoundError:
        return True


def _unusable(path: Path, error: OSError) -> CacheError:
    advice = {
        errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
        errno.EIO: "the disk is failing: use another, or none",
        errno.ENOSPC: "free some space on its disk",
    }
    what = advice.get(error.errno or 0, "give a folder on a local disk that you may write to")
    return CacheError(
        f"the cache folder {path} cannot be used: {error.strerror or error}; {what}", path=path, code=error.errno
    )
