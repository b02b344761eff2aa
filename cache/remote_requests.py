"""Many requests at once, each tried until it succeeds or its time is over, and made twice when it is late.

Blocking calls for ordinary threads: each runs an event loop of its own for as long as it takes, and starts no thread
but where the calling thread runs a loop already (a notebook's).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from forebay.cache.interrupts import Interrupts
from forebay.cache.link_depth import LinkDepth
from forebay.cache.remote_config import Pace, RemoteConfig, pause_s
from forebay.cache.remote_transport import Refused, Transport, TransportError
from forebay.errors import ClosedError, SourceError

__all__ = ["Landing", "Requester", "Traffic"]

Result = TypeVar("Result")
HEDGED_SHARE = 4
"""At most one in so many connections is for requests that are made twice: a server that is slow needs no more work."""

log = logging.getLogger(__name__)


class Landing(Protocol):
    """Where fetched bytes go. `arrive` or `drop` is called once for each request, in the thread that asked."""

    path: str
    """Of the file in its source."""

    def arrive(self, begin: int, data: memoryview) -> None:
        """The bytes from `begin` on have come."""

    def drop(self, begin: int, end: int) -> None:
        """These bytes will not come."""


@dataclass(slots=True)
class Traffic:
    """What was asked of a network. Thread-safe by `add`."""

    requests: int = 0
    requested_nbytes: int = 0
    """Bytes of all requests, those that failed or were made twice included."""
    retries: int = 0
    hedges: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, nbytes: int, *, retry: bool = False, hedge: bool = False) -> None:
        """One more request."""
        with self._lock:
            self.requests += 1
            self.requested_nbytes += nbytes
            self.retries += retry
            self.hedges += hedge

    def counts(self) -> dict[str, int | float]:
        """As of now, by name."""
        with self._lock:
            return {
                "requests": self.requests,
                "requested_nbytes": self.requested_nbytes,
                "retries": self.retries,
                "hedges": self.hedges,
            }


class Requester:
    """Requests to one place. Thread-safe.

    Args:
        transport: makes them.
        name: of the place, for messages; without secrets.
        config: how many, and how long.
    """

    def __init__(self, transport: Transport, name: str, config: RemoteConfig) -> None:
        self.transport = transport
        self.name = name
        self.config = config
        self._pace = Pace(config.hedge_s)
        self._depth = LinkDepth(2 * config.piece_nbytes, config.ahead_nbytes)

    def fetch(
        self,
        ranges: Iterator[tuple[Landing, int, int]],
        *,
        traffic: Traffic,
        ahead: bool = False,
        interrupts: Interrupts | None = None,
    ) -> None:
        """Fetch ranges, `config.connections` at a time, and hand them to their landings.

        Args:
            ranges: landing, begin and end; taken one by one, as requests are made.
            traffic: counts them.
            ahead: nobody waits for them: only so much is asked for at a time as fills the link, see `LinkDepth`.
            interrupts: ends it early.

        Raises:
            SourceError: a range could not be had, for good or within `retry_limit_s`; the others were dropped.
            ClosedError: `interrupts` was set.
        """
        self.run(lambda: _Call(self, traffic).all(ranges, ahead=ahead), interrupts)

    def size(self, path: str, interrupts: Interrupts | None = None) -> int:
        """Bytes of a file.

        Raises:
            SourceError, ClosedError: as `fetch`.
        """
        return self.run(lambda: self.keep_trying(path, lambda: self.transport.size(path)), interrupts)

    def start(self, path: str, nbytes: int) -> memoryview:
        """The first bytes of a file, fewer where it is shorter.

        Raises:
            SourceError: as `fetch`.
        """
        return self.run(lambda: self.keep_trying(path, lambda: self.transport.get(path, 0, nbytes)), None)

    def listed(self) -> dict[str, int]:
        """Paths and sizes of the files there.

        Raises:
            SourceError: they cannot be listed.
        """

        async def listed() -> dict[str, int]:
            return await asyncio.to_thread(lambda: dict(self.transport.listed()))

        return self.run(lambda: self.keep_trying("the list of files", listed), None)

    def put(self, path: str, data: memoryview, *, new: bool = False) -> None:
        """Write a file; see `Transport.put`.

        Raises:
            SourceError: it could not be written.
        """
        self.run(lambda: self.keep_trying(path, lambda: self.transport.put(path, data, new=new)), None)

    def delete(self, path: str) -> None:
        """Delete a file.

        Raises:
            SourceError: it could not be deleted.
        """
        self.run(lambda: self.keep_trying(path, lambda: self.transport.delete(path)), None)

    def run(self, main: Callable[[], Coroutine[Any, Any, Result]], interrupts: Interrupts | None) -> Result:
        """Run a coroutine to its end, in an event loop for it alone.

        Raises:
            ClosedError: `interrupts` was set, before or meanwhile.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run_here(main, interrupts)
        return _in_a_thread(lambda: self._run_here(main, interrupts))

    def _run_here(self, main: Callable[[], Coroutine[Any, Any, Result]], interrupts: Interrupts | None) -> Result:
        if interrupts is None:
            return _run_alone(main())

        async def interruptible() -> Result:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main())
            with interrupts.waking(lambda: loop.call_soon_threadsafe(task.cancel)):
                try:
                    return await task
                except asyncio.CancelledError:
                    if interrupts.is_set():
                        raise ClosedError(f"{interrupts.name} was closed while it was read") from None
                    raise
                finally:
                    task.cancel()

        return _run_alone(interruptible())

    async def keep_trying(
        self, path: str, request: Callable[[], Awaitable[Result]], retried: Callable[[], None] = lambda: None
    ) -> Result:
        """Make a request until it succeeds.

        Raises:
            SourceError: it was refused, or failed for `retry_limit_s`.
        """
        started = time.monotonic()
        failures = 0
        while True:
            try:
                return await request()
            except Refused as error:
                advice = "check the address" if error.missing else "check the address, the credentials and their rights"
                raise SourceError(
                    f"{path} of {self.name} cannot be had: {error}; {advice}", path=path, missing=error.missing
                ) from error
            except TransportError as error:
                failures += 1
                pause = pause_s(failures, random.random())  # noqa: S311 - no secret
                if time.monotonic() - started + pause > self.config.retry_limit_s:
                    raise SourceError(
                        f"{path} of {self.name} cannot be had: {error}; {failures} tries failed within "
                        f"{self.config.retry_limit_s:g} s: check the network and the service, or give a longer "
                        f"retry_limit_s",
                        path=path,
                        tries=failures,
                        missing=False,
                    ) from error
                log.debug("%s of %s: %s; trying again in %.2f s", path, self.name, str(error), pause)
            retried()
            await asyncio.sleep(pause)

    def add_pace(self, nbytes: int, seconds: float) -> None:
        """A request was answered."""
        self._pace.add(nbytes, seconds)
        self._depth.add(nbytes, seconds, now=time.monotonic())

    def ahead_nbytes(self) -> int:
        """How many bytes may be under way for what nobody waits for."""
        return self._depth.nbytes()

    def late_after_s(self, nbytes: int) -> float:
        """See `Pace.late_after_s`."""
        return self._pace.late_after_s(nbytes)


class _Call:
    """The requests of one call, in one event loop."""

    def __init__(self, requester: Requester, traffic: Traffic) -> None:
        self._requester = requester
        self._traffic = traffic
        self._nbytes = 0
        self._hedges_left = max(1, requester.config.connections // HEDGED_SHARE)

    async def all(self, ranges: Iterator[tuple[Landing, int, int]], *, ahead: bool) -> None:
        """So many at a time, until there are no more or one has failed for good."""
        running: set[asyncio.Task[None]] = set()
        most, room = self._requester.config.connections, self._requester.ahead_nbytes
        try:
            more = True
            while more or running:
                while more and len(running) < most and (not ahead or self._nbytes < room()):
                    taken = next(ranges, None)
                    if taken is None:
                        more = False
                    else:
                        self._nbytes += taken[2] - taken[1]
                        running.add(asyncio.ensure_future(self._one(*taken)))
                if running:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    errors = [task.exception() for task in done]  # of each, or asyncio prints those not asked for
                    for error in errors:
                        if error is not None:
                            raise error
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, landing: Landing, begin: int, end: int) -> None:
        arrived = False
        retry = False

        def again() -> None:
            nonlocal retry
            retry = True

        async def request() -> memoryview:
            return await self._hedged(landing.path, begin, end, retry=retry)

        try:
            data = await self._requester.keep_trying(landing.path, request, again)
            arrived = True
            landing.arrive(begin, data)
        finally:
            self._nbytes -= end - begin
            if not arrived:
                landing.drop(begin, end)

    async def _hedged(self, path: str, begin: int, end: int, *, retry: bool) -> memoryview:
        """One request, and a second one when it is late; what comes first counts."""
        nbytes = end - begin
        self._traffic.add(nbytes, retry=retry)
        running = {asyncio.ensure_future(self._get(path, begin, end))}
        hedged = False
        try:
            done, _ = await asyncio.wait(running, timeout=self._requester.late_after_s(nbytes))
            if not done and self._hedges_left:
                self._hedges_left -= 1
                hedged = True
                self._traffic.add(nbytes, hedge=True)
                log.debug("bytes %d to %d of %s are late: asking a second time", begin, end, path)
                running.add(asyncio.ensure_future(self._get(path, begin, end)))
            waiting = set(running)
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None or not waiting:
                        return task.result()
        finally:
            self._hedges_left += hedged
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _get(self, path: str, begin: int, end: int) -> memoryview:
        started = time.monotonic()
        data = await self._requester.transport.get(path, begin, end)
        if len(data) != end - begin:
            if (nbytes := await self._requester.transport.size(path)) < end:
                raise Refused(f"it has {nbytes} bytes, and bytes {begin} to {end} were wanted: it was cut short")
            raise TransportError(f"{len(data)} bytes came, and bytes {begin} to {end} were asked for")
        self._requester.add_pace(end - begin, time.monotonic() - started)
        return data


def _run_alone(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, but leaves the thread's own idea of its loop alone."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(main)


def _in_a_thread(work: Callable[[], Result]) -> Result:
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name="forebay-requests")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
