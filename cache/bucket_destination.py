"""A new data set in a bucket: each shard uploaded when it is full, the manifest last.

The journal lies in the bucket, so that any machine can go on with an unfinished write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteFile, RemoteSource
from forebay.errors import ConfigError, SourceError
from forebay.sharding import JOURNAL_NAME, MANIFEST_NAME, ShardEntry, read_journal, write_journal

__all__ = ["BucketDestination"]

JOURNAL_SHARE = 16
"""The journal is written again after each such part more of its shards: written for each, it would be most of all."""


class BucketDestination:
    """A folder of a bucket. Conforms to `forebay.sharding.Destination`.

    Two writers that begin at once in one place exclude each other where the service can (S3, GCS and Azure do). A
    bucket has no locks: that nobody else is at work is for whoever resumes to know.

    Args:
        url: as of `RemoteSource`; of a web server only where it takes uploads.
        config: how it is written.
    """

    def __init__(self, url: str, config: RemoteConfig | None = None) -> None:
        self._source = RemoteSource(url, config)
        self.name = self._source.name

    def begin(self, header: dict[str, Any], *, resume: bool) -> BucketJournal:
        """See `Destination.begin`."""
        listed = self._source.listed()
        if MANIFEST_NAME in listed:
            raise ConfigError(f"{self.name} already holds a finished data set; write to another place, or remove it")
        if JOURNAL_NAME in listed:
            if not resume:
                raise ConfigError(
                    f"{self.name} holds an unfinished write; resume=True (`--resume`) goes on with it, or remove it"
                )
            return BucketJournal(self._source, header, self._read_shards(header))
        if listed:
            raise ConfigError(
                f"{self.name} is not empty ({len(listed)} files, such as {min(listed)!r}); write to a new place"
            )
        journal = BucketJournal(self._source, header, [])
        journal.create()
        return journal

    def _read_shards(self, header: dict[str, Any]) -> list[ShardEntry]:
        file = self._source.open(JOURNAL_NAME)
        data = bytes(file.read(0, file.nbytes))
        file.close()
        return read_journal(data, header, f"{self.name}/{JOURNAL_NAME}")[0]

    def write(self, name: str, data: Any) -> None:
        """See `Destination.write`. In several parts at once when it is large."""
        self._source.requester.put(name, memoryview(data).cast("B"))

    def listed(self) -> dict[str, int]:
        """See `Destination.listed`."""
        return self._source.listed()

    def open(self, name: str, nbytes: int) -> RemoteFile:
        """See `Destination.open`."""
        return self._source.open_sized(name, nbytes)

    def remove(self, name: str) -> None:
        """See `Destination.remove`."""
        try:
            self._source.requester.delete(name)
        except SourceError as error:
            if not error.missing:
                raise

    def leave(self) -> None:
        """See `Destination.leave`. A bucket has no folders."""


class BucketJournal:
    """Conforms to `WriteJournal`. What was appended last may be missing after a crash: it is then written again."""

    def __init__(self, source: RemoteSource, header: dict[str, Any], shards: list[ShardEntry]) -> None:
        self._source = source
        self._header = header
        self._shards = shards
        self._written = len(shards)

    @property
    def shards(self) -> Sequence[ShardEntry]:
        """See `WriteJournal.shards`."""
        return self._shards

    def create(self) -> None:
        """Write it for the first time.

        Raises:
            SourceError: there is one already, or it cannot be written.
        """
        self._put(new=True)

    def append(self, shard: ShardEntry) -> None:
        """See `WriteJournal.append`."""
        self._shards.append(shard)
        if len(self._shards) - self._written > self._written // JOURNAL_SHARE:
            self._put()

    def keep(self, count: int) -> None:
        """See `WriteJournal.keep`."""
        del self._shards[count:]
        self._put()

    def _put(self, *, new: bool = False) -> None:
        data = write_journal(self._header, self._shards)
        self._source.requester.put(JOURNAL_NAME, memoryview(data), new=new)
        self._written = len(self._shards)

    def remove(self) -> None:
        """See `WriteJournal.remove`."""
        self._source.requester.delete(JOURNAL_NAME)

    def close(self) -> None:
        """See `WriteJournal.close`. Brings the journal up to what is whole."""
        if self._written < len(self._shards):
            self._put()
