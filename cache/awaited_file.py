"""A shard that another process is fetching: its samples come from the source until the whole is on this machine.

It fetches nothing for others; that is for the process which has the shard's room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forebay.cache.remote_source import FarFetcher, RemoteFile
from forebay.sharding import ReadMemory, SourceFile

__all__ = ["AwaitedFile"]


class AwaitedFile(RemoteFile):
    """A `RemoteFile` that looks, before it asks for anything, whether the cache has the shard by now. Thread-safe.

    Args:
        fetcher: as of `RemoteFile`, like `path` and `nbytes`.
        path: as above.
        nbytes: as above.
        look: opens the cache's whole copy; None while there is none.
    """

    def __init__(self, fetcher: FarFetcher, path: str, nbytes: int, look: Callable[[], SourceFile | None]) -> None:
        super().__init__(fetcher, path, nbytes)
        self._look = look
        self._copy: SourceFile | None = None
        self._distrusted = False

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `FarFile.read`."""
        copy = self._copy
        if copy is None or self._distrusted or self._closed:
            return super().read(offset, nbytes, memory)
        return copy.read(offset, nbytes, memory)

    def distrust(self, offset: int, nbytes: int) -> None:
        """See `FarFile.distrust`. From then on the source alone is believed."""
        self._distrusted = True

    def want(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `RemoteFile.want`. Nothing is, once the copy is there."""
        if not self._closed and not self._distrusted:
            with self._lock:
                if self._copy is None:
                    self._copy = self._look()
            if self._copy is not None:
                return
        super().want(ranges)

    def close(self) -> None:
        """See `FarFile.close`."""
        super().close()
        with self._lock:
            copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()
