"""Messages and file descriptors between the loader and one worker process, by a socket that never makes a sender wait.

It knows nothing of what the messages say. What the other side has no room for stays here until it has.
"""

from __future__ import annotations

import collections
import errno
import multiprocessing.reduction
import os
import select
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["MESSAGE_NBYTES", "MessageSocket", "Received"]

MESSAGE_NBYTES = 96 << 10
"""The longest message; two of them fit in the smallest socket buffer of a common Linux."""
_FDS = 64
_BUFFER_NBYTES = 1 << 20  # asked for; the system gives less
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)

Received = tuple[bytes, list[int]]
"""A message and its descriptors, which the receiver closes."""


class MessageSocket:
    """One end of a connected pair. Any thread may send; one thread at a time receives.

    A message arrives whole or not at all, so a process that dies while sending leaves no half of one. It can be given
    to a process that is being started.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._unsent: collections.deque[tuple[list[Any], list[int]]] = collections.deque()
        self._lock = threading.Lock()
        self._finished = False
        weakref.finalize(self, end.close)

    @classmethod
    def pair(cls, *, both_stay: bool = False) -> tuple[MessageSocket, MessageSocket]:
        """Two ends; the first, or both, are closed in processes that this one forks."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_NBYTES)
        ours, theirs = cls(ends[0]), cls(ends[1])
        _stay_here.update((ours, theirs) if both_stay else (ours,))
        return ours, theirs

    def fileno(self) -> int:
        """For `poll`; negative once it is closed."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for the other side to have room."""
        return bool(self._unsent)

    def send(self, parts: Sequence[bytes | memoryview], fds: Sequence[int] = ()) -> None:
        """Send the parts as one message, now or, by `flush`, later. The descriptors are closed once they are sent.

        When the other side is gone, the message is dropped: who receives learns it.
        """
        with self._lock:
            self._unsent.append((list(parts), list(fds)))
            self._flush()

    def flush(self) -> None:
        """Send what has waited, as far as there is room now."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            parts, fds = self._unsent[0]
            if not self._finished:
                try:
                    if fds:
                        socket.send_fds(self._socket, parts, fds)
                    else:
                        self._socket.sendmsg(parts)
                except OSError as error:
                    if error.errno in _FULL:
                        return
                    if error.errno not in _GONE:
                        raise
                    self._finished = True
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)

    def receive(self) -> Received | None:
        """The next message; None when there is none yet.

        Raises:
            EOFError: the other side has finished or died, and everything that it sent was received.
        """
        try:
            message, fds, flags, _ = socket.recv_fds(self._socket, MESSAGE_NBYTES + 1024, _FDS)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            raise EOFError("the other side of the socket is gone") from error
        if flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise OSError(
                errno.EMFILE,
                "a worker process sent shared memory, and this process has no file descriptor left for it; close "
                "files, or raise the limit with `ulimit -n`",
            )
        if not message:
            raise EOFError("the other side of the socket has finished")
        return message, fds

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until there is something to receive, sending what has waited meanwhile; False: the time is over."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
        if self._unsent:
            self.flush()
        return any(event & ~select.POLLOUT for _, event in ready)

    @property
    def other_side_finished(self) -> bool:
        """Whether the other side sends no more, though what it sent may not have been received yet."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def finish(self) -> None:
        """Drop what has waited, and tell the other side that nothing follows."""
        with self._lock:
            self._finished = True
            self._flush()
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno not in (*_GONE, errno.EBADF):
                    raise

    def close(self) -> None:
        """Free the descriptor. Calling it again does nothing."""
        with self._lock:
            self._finished = True
            self._flush()
            self._socket.close()

    def __getstate__(self) -> tuple[Any]:
        return (multiprocessing.reduction.DupFd(self._socket.fileno()),)

    def __setstate__(self, state: tuple[Any]) -> None:
        MessageSocket.__init__(self, socket.socket(fileno=state[0].detach()))


_stay_here: weakref.WeakSet[MessageSocket] = weakref.WeakSet()


def _close_in_child() -> None:
    for end in list(_stay_here):
        # Without the lock, which a thread that stayed in the parent may hold.
        end._socket.close()


os.register_at_fork(after_in_child=_close_in_child)
