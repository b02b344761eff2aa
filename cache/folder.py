"""One folder of the cache: who may have room in it, and at whose cost. Files are the only truth; nothing else is kept.

    forebay-cache.json           says that the folder belongs to the cache
    forebay-cache.lock           locked for whatever lists or changes the folder
    <fingerprint>/<shard>        a whole, verified shard
    <fingerprint>/<shard>.part   a shard being fetched, locked by its fetcher; without a lock holder it is left over
    tables/                      notes about tables, see `table_notes.py`
    readers/, datasets/          who reads what, see `readers.py` and `catalogue.py`

Listing, deciding, evicting and reserving are one step under the folder's lock, unlinking included: were a victim
removed after the lock, two processes could count the same victim's bytes as theirs. Copying, syncing to disk and
reading happen outside it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path

from forebay.cache.catalogue import Catalogue
from forebay.cache.config import CacheConfig
from forebay.cache.decoded_keys import KeyInUse
from forebay.cache.file_system import refuse_shared_file_system, refuse_without_flock
from forebay.cache.future import Order
from forebay.cache.listing import Found, Listing, fingerprint_folders
from forebay.cache.locks import folder_lock, is_locked
from forebay.cache.marker import LOCK, MARKER, mark, refuse_strangers
from forebay.cache.plan import FAR, UNUSED, Resident, allowance, plan_admission, plan_evictions
from forebay.cache.reader_file import Reading
from forebay.cache.readers import Reader, Readers
from forebay.cache.reservation import PART, Reservation
from forebay.cache.table_notes import notes_nbytes
from forebay.cache.trouble import Trouble
from forebay.errors import CacheError, SourceError
from forebay.sharding import MappedFile, StoredDataset

__all__ = ["CacheFolder", "Refusal"]

STALL_S = 10.0
"""A fetch that has written nothing for so long is not waited for. Pieces are 4 MiB: slower than 0.4 MB/s counts too."""

USUAL_MIN_FREE = 1 << 30

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
    """Everything that is kept is needed as soon, or the folder takes nothing: full, read-only, or just removed."""


class CacheFolder:
    """One cache folder. Thread-safe, and safe against other processes; holds no file open but its readers'.

    Opening makes the folder when it is missing, refuses one that is not the cache's, removes what dead processes left
    and evicts down to the budget. A folder that cannot be written to serves what it has and takes nothing, with a
    warning; one that is removed while it is in use is made again.

    Args:
        config: its budget, divided by its folders, or its share of the disk.
        path: one of its folders.

    Raises:
        CacheError: the folder is not empty and no cache, of a newer version, on a file system that cannot be shared
            safely, or cannot be made.
    """

    def __init__(self, config: CacheConfig, path: Path) -> None:
        self.path = path.absolute()
        self.budget = config.budget // len(config.folders)
        self._min_free = 0
        self._listing = Listing(self.path)
        self.catalogue = Catalogue(self.path)
        """The data sets whose shards may lie here."""
        self._readers = Readers(self.path, self.catalogue)
        self._trouble = Trouble(self.path)
        self._marked = False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_shared_file_system(self.path)
            refuse_strangers(self.path)
            self._set_limits(config)
            with folder_lock(self.path / LOCK, stop=threading.Event()):
                refuse_without_flock(self.path, self.path / LOCK)
                mark(self.path)
                self._marked = True
                self._clean()
        except TimeoutError as error:
            raise CacheError(str(error), path=self.path) from error
        except OSError as error:
            if self.path.is_dir() and self._trouble.is_read_only(error):
                self._trouble.warn_read_only(error)
            elif self.path.is_dir() and self._trouble.is_full(error):
                self._trouble.warn_full(self.budget)
            elif isinstance(error, CacheError):
                raise
            else:
                raise _unusable(self.path, error) from error

    def _set_limits(self, config: CacheConfig) -> None:
        disk = os.statvfs(self.path)
        nbytes = disk.f_blocks * disk.f_frsize
        if config.disk_share is not None:
            self.budget = int(config.disk_share * nbytes)
        self._min_free = min(nbytes // 50, USUAL_MIN_FREE) if config.min_free is None else config.min_free

    def _clean(self) -> None:
        """Remove what dead processes left and evict down to the budget, what is needed last first."""
        self._readers.remove_dead()
        found = self._found()
        victims = plan_evictions(self._residents(found), found.used - self._allowance(found), keep_until=-1)
        self._evict(self._residents(found) if victims is None else victims)
        for folder in fingerprint_folders(self.path):
            with suppress(OSError):  # not empty, or removed by a process without manners
                os.rmdir(folder)
        reading = {reading.fingerprint for reading in self._readers.living()}
        self.catalogue.forget_all_but(reading | {shard.fingerprint for shard in found.shards})

    # -- deciding, under the lock ------------------------------------------------------------------------------------

    def _found(self) -> Found:
        """All that counts towards the budget; catalogue and notes cannot be evicted, as unfinished shards cannot."""
        found = self._listing.look()
        return replace(found, reserved=found.reserved + self.catalogue.nbytes() + notes_nbytes(self.path))

    def _residents(self, found: Found) -> list[Resident]:
        return self._with_uses(found, [])[0]

    def _with_uses(self, found: Found, more: Sequence[tuple[str, str]]) -> tuple[list[Resident], list[int]]:
        """What is kept, with its next use; and the next uses of further shards, kept or not."""
        keys = [(shard.fingerprint, shard.name) for shard in found.shards]
        uses = self._readers.next_uses([*keys, *more])
        residents = [
            Resident(f"{shard.fingerprint}/{shard.name}", shard.nbytes, use, shard.mtime_ns)
            for shard, use in zip(found.shards, uses, strict=False)
        ]
        return residents, uses[len(keys) :]

    def _allowance(self, found: Found) -> int:
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize - found.pending
        return allowance(self.budget, used=found.used, free=free, min_free=self._min_free)

    def _plan(self, fingerprint: str, name: str, nbytes: int, *, far: bool) -> list[Resident] | None:
        found = self._found()
        residents, (use,) = self._with_uses(found, [(fingerprint, name)])
        allowed = self._allowance(found)
        if allowed < self.budget and found.used + nbytes > allowed:
            self._trouble.warn_full(self.budget)
        keep_until = FAR if far or use == UNUSED else use
        return plan_admission(residents, nbytes=nbytes, reserved=found.reserved, budget=allowed, keep_until=keep_until)

    def _evict(self, victims: Sequence[Resident]) -> None:
        for victim in victims:
            log.debug("evicting %s, %d bytes, next use %d", victim.key, victim.nbytes, victim.next_use)
            with suppress(FileNotFoundError):
                os.unlink(self.path / victim.key)

    # -- readers -----------------------------------------------------------------------------------------------------

    def enter(self, data: StoredDataset, *, stop: threading.Event) -> Reader:
        """Begin to read a data set; its shards are then kept for this reader. The caller closes it."""
        reader = self._readers.enter(data)
        self._publish(reader, stop)
        self.catalogue.keep(data, budget=self.budget)
        return reader

    def follow(self, reader: Reader, order: Order, position: int, *, stop: threading.Event) -> None:
        """Tell in which order a reader goes on, and from where."""
        reader.follow(order, position)
        self._publish(reader, stop)

    def _publish(self, reader: Reader, stop: threading.Event) -> None:
        try:
            with folder_lock(self.path / LOCK, stop=stop):
                reader.publish()
        except (CacheError, TimeoutError) as error:
            log.debug("a reader of %s cannot tell others what it reads: %s", self.path, str(error))
            reader.withdraw()

    def use_decoded(self, fingerprint: str, key: str) -> KeyInUse | None:
        """Begin to read decoded samples of one kind, which are then kept; None where that cannot be told."""
        try:
            with folder_lock(self.path / LOCK, stop=threading.Event()):
                return self._readers.use_decoded(fingerprint, key)
        except OSError as error:
            log.debug("what is read of %s cannot be told to others: %s", self.path, str(error))
            return None

    def leave_decoded(self, in_use: KeyInUse) -> None:
        """Read them no longer."""
        try:
            with folder_lock(self.path / LOCK, stop=threading.Event()):
                in_use.close()
        except OSError:  # TimeoutError and CacheError among them: then only the file is left over
            in_use.close()

    # -- shards ------------------------------------------------------------------------------------------------------

    def open_shard(self, fingerprint: str, name: str) -> MappedFile | None:
        """Map a whole shard; None when it is not there.

        Raises:
            SourceError: it is there and cannot be mapped.
        """
        try:
            return MappedFile(self.path / fingerprint / name)
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise

    def remove(self, fingerprint: str, name: str) -> None:
        """Remove a shard that turned out to be damaged. Frees bytes only, so it needs no lock."""
        try:
            os.unlink(self.path / fingerprint / name)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not self.absorb(error):
                raise

    def reserve(
        self, fingerprint: str, name: str, nbytes: int, *, far: bool, stop: threading.Event
    ) -> tuple[Reservation | Refusal, int]:
        """Make room for a shard that is to be fetched, evicting what is needed later than it.

        Args:
            fingerprint: of the data set.
            name: of the shard.
            nbytes: its size.
            far: it is fetched far ahead, and only what nobody will use makes room.
            stop: ends every wait for the folder's lock, with `ClosedError`.

        Returns:
            The reservation, which the caller enters at once, or why there is none; and how many shards were evicted.

        Raises:
            CacheError: the folder cannot be used.
            ClosedError: `stop` was set.
        """
        path = self.path / fingerprint / name
        if self._trouble.read_only:
            return (Refusal.PRESENT if path.exists() else Refusal.NO_ROOM), 0
        lock = partial(folder_lock, self.path / LOCK, stop=stop)
        try:
            if path.exists():  # the common case of a shard fetched ahead: no need for the lock
                return Refusal.PRESENT, 0
            with lock():
                if path.exists():
                    return Refusal.PRESENT, 0
                if not (self.path / MARKER).exists():  # the folder was emptied
                    self._make_again()
                part = path.with_name(name + PART)
                if is_locked(part):
                    return (Refusal.BUSY if _grows(part) else Refusal.STALLED), 0
                victims = self._plan(fingerprint, name, nbytes, far=far)
                if victims is None:
                    return Refusal.NO_ROOM, 0
                self._evict(victims)
                path.parent.mkdir(exist_ok=True)
                return Reservation(path, nbytes, lock), len(victims)
        except TimeoutError as error:
            log.warning("%s; meanwhile shards are read from the source", str(error))
            return Refusal.STALLED, 0
        except OSError as error:
            if self.absorb(error):
                return Refusal.NO_ROOM, 0
            if isinstance(error, CacheError):
                raise
            raise _unusable(self.path, error) from error

    # -- from outside ------------------------------------------------------------------------------------------------

    def look(self, *, stop: threading.Event) -> tuple[Found, list[Reading]]:
        """What lies here, and who reads it."""
        with self._looking(stop):
            return self._listing.look(), self._readers.living()

    def prune(self, keep_nbytes: int, fingerprint: str | None, *, stop: threading.Event) -> tuple[int, int]:
        """See `prune_cache`."""
        with self._looking(stop):
            found = self._listing.look()
            mine = [r for r in self._residents(found) if fingerprint is None or r.key.startswith(f"{fingerprint}/")]
            victims = plan_evictions(mine, found.used - keep_nbytes, keep_until=-1)
            victims = mine if victims is None else victims
            self._evict(victims)
            self._clean()
        return len(victims), sum(victim.nbytes for victim in victims)

    @contextmanager
    def _looking(self, stop: threading.Event) -> Iterator[None]:
        try:
            with nullcontext() if self._trouble.read_only else folder_lock(self.path / LOCK, stop=stop):
                yield
        except TimeoutError as error:
            raise CacheError(str(error), path=self.path) from error

    # -- what a cache bears ------------------------------------------------------------------------------------------

    def absorb(self, error: OSError) -> bool:
        """Whether work goes on after an error, past the cache: the disk is full, read-only, or the folder was removed.

        The first of each kind is told in a warning. A folder that was removed is made again.
        """
        if self._trouble.is_full(error):
            self._trouble.warn_full(self.budget)
        elif self._trouble.is_read_only(error):
            self._trouble.warn_read_only(error)
        elif self._trouble.is_gone(error):
            self._restore()
        else:
            return False
        return True

    def _restore(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with folder_lock(self.path / LOCK, stop=threading.Event()):
                self._make_again()
        except OSError as error:  # removed again, or its parent is: the next fetch tries as well
            log.debug("the cache folder %s cannot be made again: %s", self.path, str(error))

    def _make_again(self) -> None:
        if self._marked:
            self._trouble.warn_gone()
        mark(self.path, ours=True)
        self._marked = True
        self._readers.publish()
        self.catalogue.keep_all(budget=self.budget)


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
