"""A shard that is coming over the network into the cache's unfinished file, readable while it comes.

Each byte is asked for once, whoever wants it first: the reader of a sample, or the thread that fetches the whole. Which
room it may take, and when it is whole and right, is decided in `fetch.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

from forebay.cache.byte_ranges import ByteRanges
from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_source import FarFetcher, RemoteFile
from forebay.errors import ClosedError, SourceError
from forebay.sharding import FarFile, ReadMemory

__all__ = ["GrowingFile", "GrowingShard"]


class GrowingShard:
    """The file and what of it has come. Thread-safe; conforms to `Landing`. Lives as long as somebody holds it.

    Args:
        path: of the shard in its source.
        name: of the shard and its source, for messages.
        fd: the unfinished file, to read and write; taken over.
        nbytes: its size.
    """

    def __init__(self, path: str, name: str, fd: int, nbytes: int) -> None:
        self.path = path
        self.name = name
        self.nbytes = nbytes
        self._fd = fd
        self._holders = 1
        self._here = ByteRanges()
        self._coming = ByteRanges()
        self._whole = False
        self._changed = threading.Condition()

    # -- who holds it --------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """One more holds it."""
        with self._changed:
            self._holders += 1

    def let_go(self) -> None:
        """One less; the last one closes the file."""
        with self._changed:
            self._holders -= 1
            fd, self._fd = self._fd, -1 if not self._holders else self._fd
            last = not self._holders
        if last:
            os.close(fd)

    # -- what has come -------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all of it is here and was verified as one."""
        return self._whole

    def finish(self) -> None:
        """All of it is here and was verified as one."""
        self._whole = True

    def read_fd(self) -> int:
        """The descriptor to read from."""
        return self._fd

    def has(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether all of them are here."""
        with self._changed:
            return all(self._here.covers(begin, end) for begin, end in ranges)

    def claim(self, ranges: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
        """What the caller has to fetch of them: what is not here, and not on its way by another's request."""
        with self._changed:
            mine = []
            for begin, end in ranges:
                for low, high in list(self._here.gaps(begin, end)):
                    mine += list(self._coming.gaps(low, high))
                for low, high in mine:
                    self._coming.add(low, high)
            return mine

    def next_piece(self, nbytes: int) -> tuple[int, int] | None:
        """The first bytes, at most so many, that nobody has asked for; claimed. None when there are none."""
        with self._changed:
            for begin, end in list(self._here.gaps(0, self.nbytes)):
                for low, high in self._coming.gaps(begin, end):
                    piece = low, min(high, low + nbytes)
                    self._coming.add(*piece)
                    return piece
            return None

    def arrive(self, begin: int, data: memoryview) -> None:
        """See `Landing.arrive`.

        Raises:
            OSError: it cannot be written; the bytes were dropped.
        """
        end = begin + len(data)
        try:
            offset, rest = begin, data
            while rest:
                written = os.pwrite(self._fd, rest, offset)
                offset, rest = offset + written, rest[written:]
        except OSError:
            self.drop(begin, end)
            raise
        with self._changed:
            self._coming.remove(begin, end)
            self._here.add(begin, end)
            self._changed.notify_all()

    def drop(self, begin: int, end: int) -> None:
        """See `Landing.drop`."""
        with self._changed:
            self._coming.remove(begin, end)
            self._changed.notify_all()

    def forget(self, begin: int, end: int) -> None:
        """These bytes are here and wrong. Of a whole file, which was verified, nothing is forgotten."""
        with self._changed:
            if not self._whole:
                self._here.remove(begin, end)

    def wait_for(self, ranges: Sequence[tuple[int, int]], interrupts: Interrupts | None = None) -> None:
        """Wait until none of what is missing of them is on its way by another's request: it came, or did not.

        Raises:
            ClosedError: `interrupts` was set.
        """

        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        def settled() -> bool:
            stopped = interrupts is not None and interrupts.is_set()
            return stopped or not any(self._coming.meets(begin, end) for begin, end in ranges)

        with self._changed:
            if settled() and not (interrupts is not None and interrupts.is_set()):
                return
        if interrupts is None:
            with self._changed:
                self._changed.wait_for(settled)
            return
        with interrupts.waking(wake), self._changed:
            self._changed.wait_for(settled)
        if interrupts.is_set():
            raise ClosedError(f"{interrupts.name} was closed while {self.name} was read")


class GrowingFile(FarFile):
    """One reader's hold of a `GrowingShard`; a `SourceFile`. Thread-safe."""

    def __init__(self, landing: GrowingShard, fetcher: FarFetcher) -> None:
        landing.hold()
        self.landing = landing
        self.fetcher: FarFetcher = fetcher
        self.nbytes = landing.nbytes
        self._closed = False
        self._origin: RemoteFile | None = None  # read instead, once the whole file turned out damaged on the disk

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `FarFile.read`. Out of the file; what is missing is fetched first."""
        if self._closed:
            raise ClosedError(f"{self.landing.name} was read after it was closed")
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise SourceError(f"{self.landing.name} has {self.nbytes} bytes, not bytes {offset} to {offset + nbytes}")
        if self._origin is not None:
            return self._origin.read(offset, nbytes)
        if not self.landing.whole:
            self.fetcher.fetch([(self, offset, nbytes)])
        data = memoryview(bytearray(nbytes)) if memory is None else memory.take(nbytes)
        have = 0
        try:
            while have < nbytes and (got := os.preadv(self.landing.read_fd(), [data[have:]], offset + have)):
                have += got
        except OSError as error:
            raise SourceError(f"the cache's copy of {self.landing.name} cannot be read: {error.strerror}") from error
        if have < nbytes:
            raise SourceError(f"the cache's copy of {self.landing.name} was cut short by somebody else")
        return data.toreadonly()

    def distrust(self, offset: int, nbytes: int) -> None:
        """See `FarFile.distrust`. Of a whole file, which was right when it came, nothing is believed any more."""
        if self.landing.whole:
            self._origin = RemoteFile(self.fetcher, self.landing.path, self.nbytes)
        else:
            self.landing.forget(offset, offset + nbytes)

    def fileno(self) -> int:
        """See `FarFile.fileno`."""
        near = self.landing.whole and self._origin is None and not self._closed
        return self.landing.read_fd() if near else -1

    def close(self) -> None:
        """See `FarFile.close`."""
        closed, self._closed = self._closed, True
        if not closed:
            self.landing.let_go()

    # -- for the fetcher -----------------------------------------------------------------------------------------------

    def want(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing to note: what comes is kept in the file."""

    def lacks(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether some of them have not come."""
        return not self.landing.whole and not self.landing.has(ranges)
