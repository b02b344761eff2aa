"""A web server on the loopback that gives ranges of files: at a given rate and delay, counted, and at fault when told.

It serves one folder to programs of this machine, for measurements and tests; nothing else about it is serious.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Fault", "RangeServer", "Request"]

_BLOCK_NBYTES = 64 << 10
_BURST_S = 0.02
"""What the link may catch up on: sleeping is coarser than a block takes."""


class Fault(Enum):
    """What goes wrong with one request."""

    ERROR_500 = auto()
    ERROR_503 = auto()
    ERROR_501 = auto()
    FORBIDDEN = auto()
    CUT = auto()
    """The connection breaks in the middle of the body."""
    SHORT = auto()
    """The body is whole by its headers, and has fewer bytes than were asked for."""
    FLIP = auto()
    """One bit of the body is another."""
    SILENT = auto()
    """Half of the body, then nothing for `silence_s`, then the rest."""
    WHOLE = auto()
    """The range is ignored: the whole file, with status 200."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came."""

    number: int
    path: str
    begin: int
    end: int


@dataclass(slots=True)
class RangeServer:
    """A context manager; starts its thread on entering and joins it on leaving. Counts may be read at any time.

    Files are read whole into memory when they are first asked for.
    """

    folder: Path
    port: int = 0
    """0: one that is free; then the one taken."""
    rate: float | None = None
    """Bytes a second of all bodies together; None: as fast as it goes."""
    delay_s: float = 0.0
    """Between a request and the begin of its answer."""
    silence_s: float = 2.0
    fault: Callable[[Request], Fault | None] = lambda _: None
    """Asked for every request, in the server's thread."""
    requests: list[Request] = field(default_factory=list)
    sent_nbytes: int = 0
    """Bytes of bodies that were sent, of every request."""
    most_at_once: int = 0
    """The most requests that were answered at one time."""
    _files: dict[str, bytes] = field(default_factory=dict)
    _at_once: int = 0
    _free_at: float = 0.0
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _stop: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Of the folder."""
        return f"http://127.0.0.1:{self.port}"

    def load(self) -> None:
        """Read all files now: the first request of each then takes no longer than others."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                self._files[path.relative_to(self.folder).as_posix()] = path.read_bytes()

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="range-server")
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._talk(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", self.port, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    await self._answer(head.decode("latin-1"), writer)
                finally:
                    self._at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split(" ", 2)
        path = target.partition("?")[0].lstrip("/")
        body = self._files.get(path)
        if body is None:
            with contextlib.suppress(OSError):
                body = self._files[path] = (self.folder / path).read_bytes()
        if body is None:
            await self._send(writer, "404 Not Found", b"")
            return
        match = re.search(r"^range: bytes=(\d+)-(\d*)", head, re.IGNORECASE | re.MULTILINE)
        begin = int(match[1]) if match else 0
        end = min(int(match[2]) + 1 if match and match[2] else len(body), len(body))
        request = Request(len(self.requests), path, begin, end)
        self.requests.append(request)
        fault = self.fault(request)
        await asyncio.sleep(self.delay_s)
        refused = {
            Fault.ERROR_500: "500 Internal Server Error",
            Fault.ERROR_501: "501 Not Implemented",
            Fault.ERROR_503: "503 Slow Down",
            Fault.FORBIDDEN: "403 Forbidden",
        }
        if fault in refused:
            await self._send(writer, refused[fault], b"no")
            return
        part = body[begin:end]
        extra = f"Content-Range: bytes {begin}-{end - 1}/{len(body)}\r\n" if match else ""
        status = "206 Partial Content" if match else "200 OK"
        if fault is Fault.WHOLE:
            part, extra, status = body, "", "200 OK"
        if fault is Fault.SHORT:
            part = part[: len(part) // 2]
        if fault is Fault.FLIP and part:
            place = request.number * 7919 % len(part)  # another one each time
            part = part[:place] + bytes([part[place] ^ 1]) + part[place + 1 :]
        await self._send(writer, status, part, extra, fault, only_head=method == "HEAD")

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: str,
        body: bytes,
        extra: str = "",
        fault: Fault | None = None,
        *,
        only_head: bool = False,
    ) -> None:
        length = f"Content-Length: {len(body)}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        writer.write(f"HTTP/1.1 {status}\r\nAccept-Ranges: bytes\r\n{extra}{length}\r\n".encode())
        if only_head:
            return
        view = memoryview(body)
        nbytes = _BLOCK_NBYTES if fault is None else max(1, min(_BLOCK_NBYTES, len(body) // 2))
        for block in range(0, len(view), nbytes):
            if fault in (Fault.CUT, Fault.SILENT) and block >= len(body) // 2:
                await writer.drain()
                if fault is Fault.CUT:
                    raise ConnectionResetError
                await asyncio.sleep(self.silence_s)
                fault = None
            piece = view[block : block + nbytes]
            await self._wait_for_turn(len(piece))
            writer.write(piece)
            await writer.drain()
            self.sent_nbytes += len(piece)

    async def _wait_for_turn(self, nbytes: int) -> None:
        """The link is one for all: whoever wants to send waits until what was sent before has passed."""
        if self.rate is None:
            return
        now = asyncio.get_running_loop().time()
        begin = max(now - _BURST_S, self._free_at)
        self._free_at = begin + nbytes / self.rate
        if self._free_at - now > 0.002:
            await asyncio.sleep(self._free_at - now)
