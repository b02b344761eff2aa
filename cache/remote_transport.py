"""What a kind of bucket has to do: the protocol, and its two ways to fail.

It makes single requests. When they are made again, and how many at once, is decided in `remote_requests.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Refused", "Transport", "TransportError", "spoken_reason"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
LONGEST_REASON = 300


class TransportError(Exception):
    """A request failed, and another may not: 5xx, a broken connection, a body cut short, silence."""


class Refused(Exception):
    """A request failed, and so would every other: there is no such file, no right to read it, no such service."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class Transport(Protocol):
    """Requests to one place. Used by many event loops at once, each of them in a thread of its own."""

    async def get(self, path: str, begin: int, end: int) -> memoryview:
        """The bytes from `begin` to `end` of a file; fewer where it ends earlier. Cancelling it ends the request.

        Raises:
            TransportError, Refused: it failed.
        """

    async def size(self, path: str) -> int:
        """Bytes of a file.

        Raises:
            TransportError, Refused: it failed.
        """

    async def put(self, path: str, data: memoryview, *, new: bool) -> None:
        """Write a file, which appears whole or not at all; a large one in several parts.

        Args:
            path: of the file.
            data: its bytes.
            new: refuse when there is such a file; where the place cannot tell, it is overwritten.

        Raises:
            TransportError, Refused: it failed.
        """

    def listed(self) -> Iterator[tuple[str, int]]:
        """Paths and sizes of the files there; a blocking call.

        Raises:
            TransportError, Refused: it failed.
        """

    async def delete(self, path: str) -> None:
        """Delete a file.

        Raises:
            TransportError, Refused: it failed.
        """


def spoken_reason(error: BaseException) -> str:
    """The first line of another library's error, without the URLs in it, which may carry secrets."""
    lines = str(error).splitlines() or [""]
    text = _URL.sub("(...)", lines[0]).strip()[:LONGEST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
