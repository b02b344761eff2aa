"""Where a new data set is written to: the protocol, and folders.

It writes files, keeps the journal of an unfinished write, and knows nothing of what is in a shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from forebay.sharding.files import write_atomically
from forebay.sharding.index import ShardEntry
from forebay.sharding.journal import Journal, prepare_folder
from forebay.sharding.source import LocalFile, SourceFile

__all__ = ["Destination", "FolderDestination", "WriteJournal"]


class WriteJournal(Protocol):
    """Which shards of an unfinished write are whole. Belongs to one writer."""

    @property
    def shards(self) -> Sequence[ShardEntry]:
        """Those that are whole, in order."""

    def append(self, shard: ShardEntry) -> None:
        """Record that a shard is whole.

        Raises:
            SourceError: it cannot be recorded; the shard does not count.
        """

    def keep(self, count: int) -> None:
        """Forget all shards but the first `count`."""

    def remove(self) -> None:
        """Delete the journal: the write is finished, or left nothing behind."""

    def close(self) -> None:
        """The write is given up for now; the journal stays. Calling it again does nothing."""


class Destination(Protocol):
    """A place for one new data set. Used by one thread at a time."""

    name: str
    """What messages call it: a folder or a URL, without secrets."""

    def begin(self, header: dict[str, Any], *, resume: bool) -> WriteJournal:
        """Make the place when it is missing, and begin a write there or go on with one.

        Args:
            header: settings and schema as JSON; an unfinished write must have begun with an equal one.
            resume: go on with an unfinished write.

        Raises:
            ConfigError: it holds something else, or another writer is at work there.
            ManifestError: the journal there is damaged.
            SourceError: it cannot be written to.
        """

    def write(self, name: str, data: Any) -> None:
        """Write a file, which appears whole or not at all, and is safe when this returns.

        Raises:
            SourceError: it cannot be written.
        """

    def listed(self) -> dict[str, int]:
        """The files there, with their sizes.

        Raises:
            SourceError: they cannot be listed.
        """

    def open(self, name: str, nbytes: int) -> SourceFile:
        """A file there, to read.

        Raises:
            SourceError: it cannot be opened.
        """

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is no error.

        Raises:
            SourceError: it cannot be deleted.
        """

    def leave(self) -> None:
        """Nothing was written: undo what `begin` made beside the journal."""


class FolderDestination:
    """A folder of a local or mounted file system. Conforms to `Destination`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._made = False

    def begin(self, header: dict[str, Any], *, resume: bool) -> Journal:
        """See `Destination.begin`. The journal is locked: two writers exclude each other."""
        self._made = prepare_folder(self.path, resume=resume)
        return Journal(self.path, header)

    def write(self, name: str, data: Any) -> None:
        """See `Destination.write`."""
        write_atomically(self.path / name, data)

    def listed(self) -> dict[str, int]:
        """See `Destination.listed`."""
        with os.scandir(self.path) as entries:
            return {entry.name: entry.stat(follow_symlinks=True).st_size for entry in entries if entry.is_file()}

    def open(self, name: str, nbytes: int) -> LocalFile:
        """See `Destination.open`."""
        return LocalFile(self.path / name)

    def remove(self, name: str) -> None:
        """See `Destination.remove`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / name)

    def leave(self) -> None:
        """See `Destination.leave`."""
        if self._made:
            with contextlib.suppress(OSError):  # somebody put a file there
                self.path.rmdir()
