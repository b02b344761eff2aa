"""The decoded samples of one data set in a cache: files found, and made where there is room.

What a file holds and how it is filled is told by `decoded_file.py`; who has room at whose cost, by `folder.py`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from forebay.cache.config import CacheConfig
from forebay.cache.decoded_file import DecodedFile, file_layout
from forebay.cache.decoded_names import decoded_key, decoded_name, key_of
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.folders import CacheFolders
from forebay.errors import CacheError
from forebay.sharding import StoredDataset

__all__ = ["DecodedStore"]

log = logging.getLogger(__name__)


class DecodedStore:
    """Files of decoded samples, one a shard. Thread-safe; opens no file by itself, and starts no thread.

    A file counts towards the cache's budget with all that it will hold from the moment it exists. It gets only room
    that nothing else will use: decoded samples never push out shards, since a shard that is missing costs a fetch and
    decoded samples that are missing cost no more than decoding.

    Args:
        config: of the cache that shards are kept in.
        data: of the data set.
        what: describes the pixels: column, head, decoder and version. Files of another description are not looked at,
            and go when their room is needed.

    Raises:
        CacheError: the folder cannot hold a cache.
    """

    def __init__(self, config: CacheConfig, data: StoredDataset, what: str) -> None:
        self._folders = CacheFolders(config)
        self._data = data
        self._key = decoded_key(what)
        self._stop = threading.Event()
        self._full = set[str]()
        self._lock = threading.Lock()
        for folder in self._folders.folders:
            folder.catalogue.keep(data, budget=folder.budget)  # so that the next use of its files is known here
        self._in_use = [folder.use_decoded(data.fingerprint, self._key) for folder in self._folders.folders]
        self.evicted = 0
        """Files that made room for those that were made here."""

    def open(self, shard: int) -> DecodedFile | None:
        """The file of a shard; None when there is none. A damaged one is removed. The caller closes it."""
        name = self._name(shard)
        folder = self._home(name)
        path = folder.path / self._data.fingerprint / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except PermissionError:  # a cache that cannot be written to
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return DecodedFile(fd, int(self._data.shard_rows[shard]))
        except ValueError as error:
            log.warning("the cache's %s is removed, since %s; it will be made again", path, str(error))
            self._remove(folder, name)
        return None

    def make(self, shard: int, nbytes: Sequence[int]) -> DecodedFile | None:
        """A new file for a shard, or the one that somebody else has made; None when there is no room.

        Args:
            shard: index of the shard.
            nbytes: by row, room for its pixels; 0 for a sample that cannot be stored.

        Raises:
            CacheError: the folder cannot be used.
            ClosedError: the store was closed.
        """
        name = self._name(shard)
        folder = self._home(name)
        if self.is_full(shard):
            return None
        start, size = file_layout(nbytes)
        room: Refusal | None = Refusal.NO_ROOM
        if size <= folder.budget:
            room = self._reserve(folder, name, start, size)
        if room is Refusal.NO_ROOM:
            with self._lock:
                self._full.add(str(folder.path))
        return self.open(shard) if room in (None, Refusal.PRESENT) else None

    def _reserve(self, folder: CacheFolder, name: str, start: bytes, size: int) -> Refusal | None:
        room, evicted = folder.reserve(self._data.fingerprint, name, size, far=True, stop=self._stop)
        if isinstance(room, Refusal):
            return room
        with self._lock:
            self.evicted += evicted
        try:
            with room:
                room.allocate()
                room.write(0, memoryview(start))
                room.commit(sync=False)
        except TimeoutError as error:  # of the folder's lock
            log.warning("%s; decoded samples are not stored meanwhile", str(error))
            return Refusal.STALLED
        except OSError as error:
            if not self.absorb(error, folder):
                raise CacheError(
                    f"{name} of {self._data.name} cannot be written to the cache folder {folder.path}: {error}; check "
                    f"the disk, or read with decoded=False",
                    path=folder.path,
                    shard=name,
                ) from error
            return Refusal.NO_ROOM
        return None

    def is_full(self, shard: int) -> bool:
        """Whether there was no room lately where this shard's file would lie."""
        with self._lock:
            return str(self._home(self._name(shard)).path) in self._full

    def give_up(self, shard: int, error: OSError) -> None:
        """Store nothing more where a shard's file lies: it could not be written.

        Raises:
            OSError: the error is none that a cache bears, such as a full disk.
        """
        folder = self._home(self._name(shard))
        with self._lock:
            self._full.add(str(folder.path))
        if not self.absorb(error, folder):
            raise error

    @staticmethod
    def absorb(error: OSError, folder: CacheFolder) -> bool:
        """As `CacheFolder.absorb`."""
        return folder.absorb(error)

    def room_nbytes(self) -> int:
        """Bytes that files of this kind may have, what they have now included; what is unused is not taken for room."""
        room = 0
        for folder in self._folders.folders:
            found, _ = folder.look(stop=self._stop)
            mine = sum(
                file.nbytes
                for file in found.shards
                if file.fingerprint == self._data.fingerprint and key_of(file.name) == self._key
            )
            room += max(0, folder.budget - found.used) + mine
        return room

    def _name(self, shard: int) -> str:
        return decoded_name(self._data.shard_name(shard), self._key)

    def _home(self, name: str) -> CacheFolder:
        return self._folders.home(self._data.fingerprint, name)

    def _remove(self, folder: CacheFolder, name: str) -> None:
        folder.remove(self._data.fingerprint, name)

    def close(self) -> None:
        """Wake whoever waits for the folder's lock, and use the files no longer. Calling it again does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        for folder, in_use in zip(self._folders.folders, self._in_use, strict=True):
            if in_use is not None:
                folder.leave_decoded(in_use)
