"""Files whose every read takes a round trip, and bringing many of their ranges near at once.

It says what such files promise; the requests are made by whoever implements them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from forebay.sharding.blocks import ReadMemory
from forebay.sharding.source import SourceFile

__all__ = ["FarFile", "FarSource", "FileRange", "bring_near"]

FileRange = tuple[SourceFile, int, int]
"""A file, the offset of some of its bytes, and how many."""


class Fetcher(Protocol):
    """Makes the requests of files that lie in one place. Thread-safe."""

    def fetch(self, wanted: Sequence[tuple[FarFile, int, int]]) -> None:
        """Bring ranges near, all at once; when this returns, reading just these ranges takes no request.

        Raises:
            SourceError: some cannot be read; names the file.
            ClosedError: whoever owns the files was closed meanwhile.
        """


class FarFile(ABC):
    """A `SourceFile` behind a network: `read` alone takes a request each time, `bring_near` asks for many at once."""

    nbytes: int
    """See `SourceFile.nbytes`."""
    fetcher: Fetcher
    """Files that share it are brought near together."""

    @abstractmethod
    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `SourceFile.read`. A range that was brought near is given out from there, once."""

    @abstractmethod
    def distrust(self, offset: int, nbytes: int) -> None:
        """These bytes are not those that were written: reading them again asks for them again."""

    @abstractmethod
    def fileno(self) -> int:
        """See `SourceFile.fileno`. Not -1 from when on all of the file has come to this machine's disk."""

    @abstractmethod
    def close(self) -> None:
        """See `SourceFile.close`."""


class FarSource(ABC):
    """A `Source` behind a network."""

    name: str
    """See `Source.name`."""

    @abstractmethod
    def open(self, path: str) -> SourceFile:
        """See `Source.open`. Asks for the size."""

    @abstractmethod
    def open_sized(self, path: str, nbytes: int) -> SourceFile:
        """Open a file whose size is known, without a request: that it is missing shows when it is read.

        Raises:
            SourceError: `path` leads outside.
        """

    @abstractmethod
    def read_start(self, path: str, nbytes: int) -> memoryview:
        """The first bytes of a file whose size is not known, all of a shorter one, in one request.

        Raises:
            SourceError: it cannot be read, or `path` leads outside.
        """


def bring_near(wanted: Iterable[FileRange]) -> None:
    """Bring those ranges near that lie in far files, all of one place at once. Others are near, and are left out.

    Raises:
        SourceError: some cannot be read; names the file.
        ClosedError: whoever owns the files was closed meanwhile.
    """
    by_fetcher: dict[int, tuple[Fetcher, list[tuple[FarFile, int, int]]]] = {}
    for file, offset, nbytes in wanted:
        if isinstance(file, FarFile) and file.fileno() == -1:
            by_fetcher.setdefault(id(file.fetcher), (file.fetcher, []))[1].append((file, offset, nbytes))
    for fetcher, ranges in by_fetcher.values():
        fetcher.fetch(ranges)
