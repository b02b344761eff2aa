"""What the cache keeps of tables beside their units: facts of footers, counts of filtered rows. All of it may be lost.

One Arrow stream a note with its checksum behind it, in `tables/` of the first cache folder, written aside and renamed.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from forebay.cache.locks import try_lock, unlock
from forebay.cache.table_file import read_batch, write_batch
from forebay.errors import ShardCorruptError, SourceError
from forebay.sharding import MappedFile

__all__ = ["NoteTurn", "TableNotes", "notes_nbytes"]

FOLDER = "tables"
SHARE = 100
"""Notes may take a hundredth of the budget; then the oldest go."""

log = logging.getLogger(__name__)


class TableNotes:
    """Notes in one cache folder. What cannot be written is not kept, and read anew the next time.

    Args:
        cache_folder: exists, and is a cache.
        budget: of the cache.
    """

    def __init__(self, cache_folder: Path, budget: int) -> None:
        self._folder = cache_folder / FOLDER
        self._limit = budget // SHARE

    def get(self, key: str) -> pa.RecordBatch | None:
        """The note of a key; None when there is none that holds."""
        path = self._folder / key
        try:
            file = MappedFile(path)
        except SourceError:
            return None
        try:
            batch = read_batch(file, verify=True)
            with suppress(OSError):
                os.utime(path)
        except ShardCorruptError as error:
            log.warning("%s; what it held is read from the source again", str(error).partition(";")[0])
            path.unlink(missing_ok=True)
            return None
        finally:
            file.close()
        return batch

    def put(self, key: str, batch: pa.RecordBatch) -> None:
        """Keep a note, unless it is too large or the disk does not take it."""
        sink = pa.BufferOutputStream()
        write_batch(batch, sink)
        content = sink.getvalue()
        if len(content) > self._limit:
            return
        aside = self._folder / f"{key}.part-{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(len(content))
            aside.write_bytes(memoryview(content))
            aside.replace(self._folder / key)
        except OSError as error:
            aside.unlink(missing_ok=True)
            log.debug("a note about a table is not kept in %s: %s", self._folder, str(error))

    def _make_room(self, nbytes: int) -> None:
        with os.scandir(self._folder) as entries:
            statuses = [(entry.stat(), entry.path) for entry in entries if not entry.name.endswith(".lock")]
        files = sorted((status.st_mtime_ns, status.st_size, path) for status, path in statuses)
        used = sum(size for _, size, _ in files) + nbytes
        for _, size, path in files:
            if used <= self._limit:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            used -= size

    def turn(self, key: str) -> NoteTurn:
        """Whose turn it is to make a note: one process of the machine, as long as it lives."""
        return NoteTurn(self._folder / f"{key}.lock")


def notes_nbytes(cache_folder: Path) -> int:
    """Bytes of all notes of a cache folder: they count towards its budget."""
    try:
        with os.scandir(cache_folder / FOLDER) as entries:
            return sum(_nbytes(entry) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _nbytes(entry: os.DirEntry[str]) -> int:
    with suppress(FileNotFoundError):
        return entry.stat().st_size
    return 0


class NoteTurn:
    """A lock that is not waited for: whoever does not get it asks again, or does the work as well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Whether it is ours now; true as well where there can be no lock."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return True
        try:
            if try_lock(fd):
                self._fd = fd
                return True
        except OSError:
            os.close(fd)
            return True
        os.close(fd)
        return False

    def give_up(self) -> None:
        """Let others take it. Calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._path.unlink(missing_ok=True)
            unlock(fd)
