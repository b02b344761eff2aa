"""A data set behind a URL: its files, read by ranges, many at once.

It keeps nothing but what was brought near and not read yet; keeping shards is the cache's work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_fsspec import FsspecTransport
from forebay.cache.remote_obstore import OBSTORE_SCHEMES, ObstoreTransport
from forebay.cache.remote_requests import Requester, Traffic
from forebay.cache.remote_transport import Transport
from forebay.errors import ClosedError, ConfigError, SourceError
from forebay.sharding import FarFile, FarSource, ReadMemory

__all__ = ["FarFetcher", "RemoteFile", "RemoteSource", "is_url", "public_name"]


class RemoteSource(FarSource):
    """The files at a URL. Conforms to `Source`; pickles.

    Args:
        url: `s3://bucket/folder`, `gs://`, `az://`, `http(s)://`, or whatever fsspec knows. Credentials are taken from
            the environment and the usual files; those in the URL are used and never shown.
        config: how it is read.

    Raises:
        ConfigError: a package is missing (says which), or the address cannot be.
    """

    def __init__(self, url: str, config: RemoteConfig | None = None) -> None:
        self.config = RemoteConfig() if config is None else config
        self.name = public_name(url)
        parts = urlsplit(url)
        url = urlunsplit(parts._replace(path=parts.path.rstrip("/")))
        self._url = url
        transport: Transport
        transport = ObstoreTransport(url, self.config) if parts.scheme in OBSTORE_SCHEMES else FsspecTransport(url)
        self.requester = Requester(transport, self.name, self.config)
        self.fetcher = FarFetcher(self.requester, Traffic())

    def for_store(self, interrupts: Interrupts) -> FarFetcher:
        """Fetches for one store, which counts its own requests and can end them."""
        return FarFetcher(self.requester, Traffic(), interrupts)

    def open(self, path: str) -> RemoteFile:
        """See `Source.open`."""
        _check_path(path, self.name)
        return RemoteFile(self.fetcher, path, self.requester.size(path))

    def listed(self) -> dict[str, int]:
        """The files there, with their sizes.

        Raises:
            SourceError: the place does not list its files, or cannot be reached.
        """
        return self.requester.listed()

    def open_sized(self, path: str, nbytes: int) -> RemoteFile:
        """See `FarSource.open_sized`."""
        _check_path(path, self.name)
        return RemoteFile(self.fetcher, path, nbytes)

    def read_start(self, path: str, nbytes: int) -> memoryview:
        """See `FarSource.read_start`."""
        _check_path(path, self.name)
        return self.requester.start(path, nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._url, self.config)

    def __repr__(self) -> str:
        return f"RemoteSource({self.name!r})"


class FarFetcher:
    """Fetches ranges of far files of one place together: merged where they are near, so many at once. Thread-safe.

    Args:
        requester: makes the requests.
        traffic: counts them.
        interrupts: ends them early.
    """

    def __init__(self, requester: Requester, traffic: Traffic, interrupts: Interrupts | None = None) -> None:
        self.requester = requester
        self.traffic = traffic
        self.interrupts = interrupts
        self.turn = threading.Lock()
        """Whose whole shard is asked for: one after the other, so that one is transferred while another is synced."""

    def fetch(self, wanted: Sequence[tuple[FarFile, int, int]]) -> None:
        """See `Fetcher.fetch`. What others are fetching is waited for."""
        by_file: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        for file, offset, nbytes in wanted:
            by_file.setdefault(id(file), (file, []))[1].append((offset, offset + nbytes))
        for file, ranges in by_file.values():
            file.want(ranges)
        config = self.requester.config
        while any(file.lacks(ranges) for file, ranges in by_file.values()):
            claimed = [
                (file.landing, begin, end)
                for file, ranges in by_file.values()
                for begin, end in file.landing.claim(merge(ranges, config.merge_nbytes, most=config.piece_nbytes))
            ]
            remaining = iter(claimed)
            try:
                self.requester.fetch(remaining, traffic=self.traffic, interrupts=self.interrupts)
            finally:
                for landing, begin, end in remaining:
                    landing.drop(begin, end)
            for file, ranges in by_file.values():
                file.landing.wait_for(ranges, self.interrupts)


def merge(ranges: Sequence[tuple[int, int]], gap: int, *, most: int) -> Iterator[tuple[int, int]]:
    """Ranges in ascending order, those in one that overlap, or have at most `gap` bytes between them.

    Args:
        ranges: begin and end of each.
        gap: bytes.
        most: what does not overlap becomes one range only up to so many bytes.
    """
    begin, end = 0, 0
    for low, high in sorted(ranges):
        if low < end or (begin < end and low - end <= gap and high - begin <= most):
            end = max(end, high)
        else:
            if begin < end:
                yield begin, end
            begin, end = low, high
    if begin < end:
        yield begin, end


class RemoteFile(FarFile):
    """One file of a `RemoteSource`. Thread-safe. Keeps what was brought near until it is read or the file closed."""

    def __init__(self, fetcher: FarFetcher, path: str, nbytes: int) -> None:
        self.fetcher = fetcher
        self.nbytes = nbytes
        self.path = path
        self.landing = self
        self._name = f"{path} of {fetcher.requester.name}"
        self._wanted: set[tuple[int, int]] = set()
        self._near: dict[tuple[int, int], memoryview] = {}
        self._lock = threading.Lock()
        self._closed = False

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `FarFile.read`."""
        if self._closed:
            raise ClosedError(f"{self._name} was read after it was closed")
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise SourceError(
                f"{self._name} has {self.nbytes} bytes, not bytes {offset} to {offset + nbytes}", path=self.path
            )
        if not nbytes:
            return memoryview(b"")
        with self._lock:
            view = self._near.pop((offset, offset + nbytes), None)
        if view is None:
            self.fetcher.fetch([(self, offset, nbytes)])
            with self._lock:
                view = self._near.pop((offset, offset + nbytes), None)
            if view is None:  # another thread wanted the same and took it
                return self.read(offset, nbytes)
        return view

    def distrust(self, offset: int, nbytes: int) -> None:
        """See `FarFile.distrust`. Nothing is kept that was read."""

    def fileno(self) -> int:
        """See `FarFile.fileno`."""
        return -1

    def close(self) -> None:
        """See `FarFile.close`."""
        self._closed = True
        with self._lock:
            self._near.clear()

    # -- as the fetcher's landing --------------------------------------------------------------------------------------

    def want(self, ranges: Sequence[tuple[int, int]]) -> None:
        """These will be read. Called before `claim`."""
        with self._lock:
            self._wanted.update(each for each in ranges if each not in self._near and each[0] < each[1])

    def lacks(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether some of them have not come."""
        with self._lock:
            return any(each in self._wanted for each in ranges)

    def claim(self, ranges: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
        """What has to be fetched of them: all, but those that are here."""
        with self._lock:
            wanted = sorted(self._wanted)
        return [(begin, end) for begin, end in ranges if any(begin <= low and high <= end for low, high in wanted)]

    def arrive(self, begin: int, data: memoryview) -> None:
        """See `Landing.arrive`."""
        end = begin + len(data)
        with self._lock:
            for low, high in [each for each in self._wanted if begin <= each[0] and each[1] <= end]:
                self._near[low, high] = data[low - begin : high - begin].toreadonly()
                self._wanted.discard((low, high))

    def drop(self, begin: int, end: int) -> None:
        """See `Landing.drop`."""
        with self._lock:
            self._wanted = {each for each in self._wanted if not (begin <= each[0] and each[1] <= end)}

    def wait_for(self, ranges: Sequence[tuple[int, int]], interrupts: Interrupts | None) -> None:
        """Nobody else fetches for this file."""


def is_url(place: object) -> bool:
    """Whether it is written as a URL: `scheme://...`."""
    return isinstance(place, str) and "://" in place


def public_name(url: str) -> str:
    """A URL without what may be secret in it: user, password, query and fragment.

    Raises:
        ConfigError: it is no URL.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError as error:
        raise ConfigError(f"an address that is no URL: {error}") from error
    if not parts.scheme or (not host and not parts.path.strip("/")):
        raise ConfigError("an address without a scheme or a place; write it like s3://bucket/folder")
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _check_path(path: str, where: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise SourceError(f"{path!r} is not a path within {where}", path=path)
