"""The queues between torch's iterator and its worker processes: tasks to each worker, batches from all of them.

They have the methods that torch calls on `multiprocessing` queues, and its meaning of them; which batch is made when
and by whom stays torch's decision.
"""

from __future__ import annotations

import collections
import os
import queue
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from forebay.loader.shared_batch import unpack
from forebay.loader.shared_segments import Bytes, LentSegments, SegmentRef
from forebay.loader.shared_socket import MessageSocket, Received
from forebay.loader.shared_task import pack_task

__all__ = ["Delivery", "ResultQueue", "TaskQueue", "WorkerLink"]


_RECEIVED = 16
"""Messages taken in at a time: each may hold a descriptor until it is read."""
_REAP_S = 1.0


@dataclass(slots=True)
class Delivery:
    """A batch, or the error of making it, on its way through torch's iterator."""

    task: int
    """The batch's number in this pass."""
    batch: Any
    worker: int
    indices: Any
    notes: dict[str, Any] = field(default_factory=dict)
    """What the worker tells beside the batch: seconds, bad samples, states."""

    def pin_memory(self, *_: object) -> Delivery:
        """Called by torch's pinning thread."""
        if not isinstance(self.batch, ExceptionWrapper):
            self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self


@dataclass(slots=True)
class WorkerLink:
    """What the loader's process knows of one worker."""

    number: int
    socket: MessageSocket
    worker_end: MessageSocket
    process: BaseProcess | None = None
    segments: LentSegments = field(default_factory=LentSegments)
    tasks: dict[int, Any] = field(default_factory=dict)
    """Indices by number of the batches that it was asked for and has not sent, the one in hand first."""
    dismissed: bool = False
    """Whether it was told to end."""
    silent: bool = False
    """Whether its end of the socket is closed, and nothing more comes."""
    lost: bool = False
    """Whether it was found dead, or has finished."""


class TaskQueue:
    """Tasks for one worker. `put` never waits."""

    def __init__(self, link: WorkerLink, closing: Callable[[], bool]) -> None:
        self._link = link
        self._closing = closing

    def put(self, task: Any) -> None:
        """Ask for a batch, by its number and indices; None ends the worker."""
        link = self._link
        link.worker_end.close()  # the worker has it by now, and this process must not keep it alive
        if task is None:
            link.dismissed = True
            if self._closing():
                link.socket.finish()
                return
        elif isinstance(task, tuple):
            link.tasks[task[0]] = task[1]
        home, kept = link.segments.returns()
        link.socket.send(*pack_task(task, home, kept))

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def join_thread(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """Free the descriptor."""
        self._link.socket.close()


class ResultQueue:
    """Batches of all workers, as they come. Any thread may put; one thread at a time gets."""

    def __init__(self, links: list[WorkerLink]) -> None:
        self._links = links
        self._received: collections.deque[tuple[WorkerLink, Received]] = collections.deque()
        self._local: collections.deque[Any] = collections.deque()
        self._bell, self._bell_push = MessageSocket.pair(both_stay=True)
        self.wait_s = 0.0
        """Seconds that `get` has waited."""

    def put(self, message: Any) -> None:
        """Hand a message to whoever gets, as torch does to end its pinning thread."""
        self._local.append(message)
        self._bell_push.send([b"!"])

    def get(self, timeout: float | None = None) -> tuple[Any, Any]:
        """The next batch, of any worker.

        Raises:
            queue.Empty: `timeout` seconds have passed, or a worker has died; torch looks which.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._local:
                return self._local.popleft()  # type: ignore[no-any-return]
            if self._received:
                return self._decode(*self._received.popleft())
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            self._wait(left)

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for messages and take in all that have come.

        Raises:
            queue.Empty: a worker has died, and nothing has come from anyone.
        """
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for link in self._links:
            if not link.silent:
                poll.register(link.socket, select.POLLIN | (select.POLLOUT if link.socket.has_unsent else 0))
            if not link.lost and link.process is not None:
                poll.register(link.process.sentinel, select.POLLIN)
        started = time.monotonic()
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        self.wait_s += time.monotonic() - started
        if self._bell.fileno() in ready:
            self._bell.receive()
        died = False
        for link in self._links:
            if not link.silent and link.socket.fileno() in ready:
                if link.socket.has_unsent:
                    link.socket.flush()
                self._take_in(link)
            if not link.lost and link.process is not None and link.process.sentinel in ready and self._take_in(link):
                link.silent = link.lost = True
                link.process.join(_REAP_S)
                died = died or not link.dismissed
        if died and not self._received:
            raise queue.Empty

    def _take_in(self, link: WorkerLink) -> bool:
        """Receive what a worker has sent, up to some messages; True: there is nothing more."""
        if link.silent:
            return True
        try:
            while len(self._received) < _RECEIVED:
                message = link.socket.receive()
                if message is None:
                    return True
                self._received.append((link, message))
        except EOFError:
            link.silent = True
            return True
        return False

    def _decode(self, link: WorkerLink, received: Received) -> tuple[Any, Any]:
        message, fds = received
        remaining = iter(fds)

        def open_segments(references: list[SegmentRef], dropped: list[int]) -> list[Bytes]:
            link.segments.drop(dropped)
            return [link.segments.open(ref, next(remaining) if ref[2] else None) for ref in references]

        task, batch, notes = unpack(message, open_segments)
        if isinstance(task, int):
            indices = link.tasks.pop(task, None)
            if notes is not None and not isinstance(batch, _IterableDatasetStopIteration):
                batch = Delivery(task, batch, link.number, indices, notes)
        return task, batch

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def join_thread(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """Free the descriptors; what has not been got is dropped."""
        self._bell.close()
        self._bell_push.close()
        while self._received:
            for fd in self._received.popleft()[1][1]:
                os.close(fd)
