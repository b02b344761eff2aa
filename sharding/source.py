"""Where the bytes of a data set come from: the protocol, folders, and verified local copies.

A source opens files and reads ranges. It knows neither shards nor checksums, and it writes nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Protocol

from forebay.errors import ClosedError, SourceError
from forebay.sharding.blocks import ReadMemory

__all__ = ["FolderSource", "LocalFile", "MappedFile", "Source", "SourceFile"]


class SourceFile(Protocol):
    """One open file of a source."""

    @property
    def nbytes(self) -> int:
        """Size of the file when it was opened."""

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """Exactly `nbytes` bytes from `offset` on, read-only. Thread-safe.

        The view stays valid as long as it is kept, also after `close`. It may lie in `memory`, for whoever lets go of
        it soon; the calls with one `memory` must not overlap.

        Raises:
            SourceError: the file ends earlier, or its bytes cannot be read; names the file.
        """

    def fileno(self) -> int:
        """The descriptor that its bytes can be read from by whoever reads many ranges at once; -1: only by `read`."""

    def close(self) -> None:
        """Give back what the file holds. Calling it again does nothing; no read may be under way."""


class Source(Protocol):
    """A place that holds the files of one data set. Thread-safe."""

    name: str
    """What messages call the place: a folder or a URL, without secrets."""

    def open(self, path: str) -> SourceFile:
        """Open the file at `path`, relative to the place, with `/` between folders.

        Raises:
            SourceError: there is no such file, it cannot be read, or `path` leads outside; names the file.
        """


class FolderSource:
    """A folder on a local or mounted file system. Conforms to `Source`."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.name = str(root)

    def open(self, path: str) -> LocalFile:
        """See `Source.open`. Links that lead out of the folder are refused as `..` is."""
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise SourceError(f"{path!r} is not a path within {self.name}", path=path)
        try:
            target = (self.root / path).resolve()
            inside = target.is_relative_to(self.root.resolve())
        except (OSError, RuntimeError) as error:  # a loop of links
            raise SourceError(f"{path} of {self.name} cannot be opened: {error}", path=path) from error
        if not inside:
            raise SourceError(f"{path} of {self.name} is a link to {target}, outside that folder", path=path)
        return LocalFile(target, name=f"{path} of {self.name}")

    def __repr__(self) -> str:
        return f"FolderSource({self.name!r})"


class LocalFile:
    """A file read by `pread` into memory of its own: a file cut short or a bad sector is an error, never SIGBUS."""

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        self.name = str(path) if name is None else name
        try:
            # O_NONBLOCK: opening a named pipe would wait for its writer for ever. Regular files ignore it.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _source_error(self.name, "opened", error) from error
        try:
            status = os.fstat(self._fd)
        except OSError as error:
            self.close()
            raise _source_error(self.name, "opened", error) from error
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise SourceError(f"{self.name} is not a regular file", path=self.name)
        self.nbytes = status.st_size

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `SourceFile.read`. One copy out of the page cache."""
        if self._fd < 0:
            raise ClosedError(f"{self.name} was read after it was closed")
        if offset < 0 or nbytes < 0:  # to preadv, -1 is where it last was
            raise SourceError(f"{self.name} has no bytes {offset} to {offset + nbytes}", path=self.name)
        data = memoryview(bytearray(nbytes)) if memory is None else memory.take(nbytes)
        have = 0
        try:
            while have < nbytes:  # the system hands out at most 2 GiB at once
                got = os.preadv(self._fd, [data[have:] if have else data], offset + have)
                if not got:
                    break
                have += got
        except (OSError, OverflowError) as error:
            raise _source_error(self.name, "read", error) from error
        if have != nbytes:
            raise SourceError(
                f"{self.name} ends at byte {offset + have}, and bytes {offset} to {offset + nbytes} were wanted: "
                f"it was cut short; copy it again from where it came",
                path=self.name,
            )
        return data.toreadonly()

    def fileno(self) -> int:
        """See `SourceFile.fileno`."""
        if self._fd < 0:
            raise ClosedError(f"{self.name} was read after it was closed")
        return self._fd

    def close(self) -> None:
        """See `SourceFile.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class MappedFile:
    """A mapped file: `read` gives views of the page cache, without a copy.

    For files that this machine's cache wrote and verified, and that nobody truncates: a file cut short under a map
    kills the process with SIGBUS. A file may be unlinked while it is mapped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = str(path)
        try:
            with open(path, "rb") as file:
                self.nbytes = os.fstat(file.fileno()).st_size
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.nbytes else b""
        except (OSError, ValueError) as error:
            raise _source_error(self.name, "mapped", error) from error
        self._view: memoryview | None = memoryview(mapped)

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        """See `SourceFile.read`. A view of the map, which keeps the map alive."""
        if self._view is None:
            raise ClosedError(f"{self.name} was read after it was closed")
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise SourceError(f"{self.name} has {self.nbytes} bytes, not bytes {offset} to {offset + nbytes}")
        return self._view[offset : offset + nbytes]

    def fileno(self) -> int:
        """See `SourceFile.fileno`. What is mapped needs no copy."""
        return -1

    def close(self) -> None:
        """See `SourceFile.close`. The map goes with the last view of it."""
        self._view = None


def _source_error(name: str, verb: str, error: OSError | ValueError | OverflowError) -> SourceError:
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    advice = {
        errno.EIO: "; the disk has a bad sector: restore the file from another copy",
        errno.EMFILE: "; raise the limit of open files (ulimit -n), or mix fewer shards: window=",
    }
    code = error.errno if isinstance(error, OSError) else None
    return SourceError(f"{name} cannot be {verb}: {reason}{advice.get(code or 0, '')}", path=name, code=code)
