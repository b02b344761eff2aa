"""Every other kind of URL (`hf://`, `memory://`, `sftp://`, ...), by way of fsspec and the package that knows the kind.

fsspec's calls block, so each runs in a thread of the call's own event loop; one that hangs cannot be cancelled, only
left behind until it returns. Its errors are not chained to ours: their texts hold URLs, and with them perhaps secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from forebay.cache.remote_transport import Refused, TransportError, spoken_reason
from forebay.errors import ConfigError

__all__ = ["FsspecTransport"]


class FsspecTransport:
    """Conforms to `Transport`.

    Args:
        url: of a folder; may carry credentials.

    Raises:
        ConfigError: fsspec, or the package that it needs for such URLs, is missing.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        scheme = urlsplit(url).scheme
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ConfigError(f"{scheme}:// needs fsspec: pip install 'forebay[remote]'") from error
        try:
            self._files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{scheme}:// is no kind of address that fsspec knows, or a package is missing: {spoken_reason(error)}"
            ) from error
        self._root = root.rstrip("/")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._url,)

    async def get(self, path: str, begin: int, end: int) -> memoryview:
        """See `Transport.get`."""
        return memoryview(await _call(self._files.cat_file, self._at(path), start=begin, end=end))

    async def size(self, path: str) -> int:
        """See `Transport.size`."""
        nbytes = await _call(self._files.size, self._at(path))
        if nbytes is None:
            raise Refused("its size is not told")
        return int(nbytes)

    async def put(self, path: str, data: memoryview, *, new: bool) -> None:
        """See `Transport.put`."""
        if new and await _call(self._files.exists, self._at(path)):
            raise Refused("there is such a file already")
        try:
            await _call(self._files.pipe_file, self._at(path), bytes(data))
        except Refused as refused:
            if not refused.missing:
                raise
            await _call(self._files.makedirs, self._root, exist_ok=True)  # a file system that has folders
            await _call(self._files.pipe_file, self._at(path), bytes(data))

    def listed(self) -> Iterator[tuple[str, int]]:
        """See `Transport.listed`."""
        try:
            with _explained():
                found = self._files.find(self._root, detail=True)
        except Refused as refused:
            if refused.missing:
                return
            raise
        for name, facts in found.items():
            yield name.removeprefix(self._root).lstrip("/"), int(facts["size"] or 0)

    async def delete(self, path: str) -> None:
        """See `Transport.delete`."""
        await _call(self._files.rm_file, self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


async def _call(work: Any, *args: Any, **options: Any) -> Any:
    with _explained():
        return await asyncio.to_thread(work, *args, **options)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised again, as what it means
        raise _failure(error) from None


def _failure(error: Exception) -> Exception:
    """What an error means; kinds that file systems do not have are mistakes in our own calls, and left as they are."""
    if isinstance(error, TypeError | AttributeError | NameError):
        return error
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return Refused("there is no such file", missing=True)
    if isinstance(error, PermissionError):
        return Refused("access was denied")
    if isinstance(error, NotImplementedError):
        return Refused(f"fsspec cannot do that there: {spoken_reason(error)}")
    return TransportError(spoken_reason(error))
