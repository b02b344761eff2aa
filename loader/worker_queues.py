"""A worker's side of the queues: tasks come in, batches go out, and the end of the loader is seen at once.

They have the methods that torch's worker loop calls; the loop itself stays torch's.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils.worker import _ResumeIteration

from forebay.loader.shared_batch import pack
from forebay.loader.shared_memory import BatchMemory
from forebay.loader.shared_segments import SegmentPool
from forebay.loader.shared_socket import MessageSocket
from forebay.loader.shared_task import unpack_task
from forebay.loader.worker_notes import WorkerNotes

__all__ = ["DoneFlag", "WorkerBatches", "WorkerTasks"]


class WorkerTasks:
    """Tasks from the loader. The loader's end, orderly or not, reads as the task None."""

    def __init__(self, socket: MessageSocket, pool: SegmentPool, notes: WorkerNotes) -> None:
        self._socket = socket
        self._pool = pool
        self._notes = notes
        self.resumed: Callable[[], None] | None = None
        """Called when a next pass begins."""

    def get(self, timeout: float | None = None) -> Any:
        """The next task; None when the worker is to end.

        Raises:
            queue.Empty: none has come within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        started = time.monotonic()
        try:
            while True:
                received = self._socket.receive()
                if received is not None:
                    task, home, kept = unpack_task(*received)
                    self._pool.returned(home, kept=kept)
                    if isinstance(task, _ResumeIteration) and self.resumed is not None:
                        self.resumed()
                    return task
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise queue.Empty
                self._socket.wait(left)
        except EOFError:
            return None
        finally:
            self._notes.task_came(time.monotonic() - started)


class WorkerBatches:
    """Batches to the loader. `put` never waits: what there is no room for goes out while the worker waits for tasks."""

    def __init__(self, worker: int, socket: MessageSocket, memory: BatchMemory, notes: WorkerNotes) -> None:
        self._worker = worker
        self._socket = socket
        self._memory = memory
        self._notes = notes

    def put(self, message: tuple[Any, Any]) -> None:
        """Send a batch with its number. One that cannot be pickled becomes the error that says so."""
        task, batch = message
        notes = self._notes.of_batch() if isinstance(task, int) else None
        try:
            packed = pack((task, batch, notes), self._memory)
        except Exception:  # noqa: BLE001 - it is delivered to the loader
            where = f"in DataLoader worker process {self._worker}, sending the batch"
            error = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            packed = pack((task, error, notes), self._memory)
        self._socket.send(packed.parts, packed.fds)

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """Drop what was not sent."""
        self._socket.close()


class DoneFlag:
    """Whether the loader has finished: set in its process, and seen in each worker by the state of its socket."""

    def __init__(self, socket: MessageSocket | None = None) -> None:
        self._socket = socket
        self._set = False

    def set(self) -> None:
        """The workers are about to be told to end."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it has finished, or died."""
        return self._set or (self._socket is not None and self._socket.other_side_finished)
