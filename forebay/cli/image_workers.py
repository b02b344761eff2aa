"""Worker processes that each do the same work on a handful of images at a time, for `forebay shard`.

What the work is they are told; in which order images are handed out, and how many ahead, is for whoever asks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from forebay.errors import SourceError
from forebay.sharding import ImageFile, printable

__all__ = ["worker_pool"]

_LITTLE_MEMORY = "the shards that are whole are safe: go on with --resume, and with --workers 1 where memory is short"
_Result = TypeVar("_Result")


@contextlib.contextmanager
def worker_pool(
    work: Callable[[ImageFile], _Result], workers: int, *, preload: Sequence[str]
) -> Iterator[Callable[[list[ImageFile]], Future[list[_Result | Exception]]]]:
    """Processes that are ready, and what hands them a handful of images. Leaving ends them at once.

    The answers are one for each image; an error is the last. For each process a thread waits, which an answer wakes,
    and the death of the process too.

    Args:
        work: what is done to an image; pickles. An error of it goes to whoever asked.
        workers: processes, at least 1.
        preload: modules that the work needs, imported once for all processes.

    Raises:
        SourceError: a process cannot be started. One that is lost is such an answer, and names the image.
    """
    context = _server_context(preload)
    idle: SimpleQueue[_Worker[_Result]] = SimpleQueue()  # holds at most `workers`

    def ask(images: list[ImageFile]) -> list[_Result | Exception]:
        worker = idle.get()  # as many threads as workers: there is one
        try:
            return worker(images)
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as stack:
        started: list[_Worker[_Result]] = []
        threads = ThreadPoolExecutor(workers, thread_name_prefix="forebay-shard")
        try:
            for _ in range(workers):
                started.append(worker := _Worker(context, work))
                stack.callback(worker.close)
                idle.put(worker)
            yield lambda images: threads.submit(ask, images)
        finally:
            for worker in started:
                worker.kill()
            threads.shutdown(wait=True, cancel_futures=True)


class _Worker(Generic[_Result]):
    """A process that does the work on a handful of images at a time, and ends when this end of its pipe is closed.

    One caller at a time; a call waits for the process, and ends when the process does.
    """

    def __init__(self, context: ForkServerContext, work: Callable[[ImageFile], _Result]) -> None:
        self._pipe, theirs = context.Pipe()
        # daemon: one that is left over is ended with this process, not waited for.
        self._process = context.Process(target=_serve, args=(theirs, work), name="forebay-shard", daemon=True)
        try:
            self._process.start()
        except (OSError, EOFError) as error:  # the end of the file: the server could not fork, and has died of it
            self._pipe.close()
            raise SourceError(
                f"a worker process cannot be started ({error or 'no more processes'}); give fewer --workers, or 0 to "
                f"work in one process"
            ) from error
        finally:
            theirs.close()

    def __call__(self, images: list[ImageFile]) -> list[_Result | Exception]:
        answers: list[_Result | Exception] = []
        try:
            self._pipe.send(images)
            while len(answers) < len(images) and not (answers and isinstance(answers[-1], Exception)):
                answers.append(self._pipe.recv())
        except (EOFError, OSError):
            answers.append(self._lost(images[len(answers)]))
        return answers

    def kill(self) -> None:
        """End the process in the middle of whatever it does: it only reads."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end; after `kill`, or it waits forever."""
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _lost(self, image: ImageFile) -> SourceError:
        self._process.join()
        code = self._process.exitcode or 0
        name = printable(image.path)
        if code == -signal.SIGKILL:
            reason = f"was killed, as the system does when memory is short, with {name} in hand; {_LITTLE_MEMORY}"
        elif code < 0:
            how = signal.strsignal(-code) or f"signal {-code}"
            reason = f"crashed ({how}) on {name}; move that image away and go on with --resume, and please report it"
        else:
            reason = f"ended with code {code}, with {name} in hand; go on with --resume"
        return SourceError(f"a worker process {reason}", image=image.path, exitcode=code)


def _server_context(preload: Sequence[str]) -> ForkServerContext:
    """A server that forks workers, with the modules they need imported once for all.

    Ctrl-C is held back in the server and in its workers: it is for the command, which then ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    resource_tracker.ensure_running()  # the server would start it, and let signals through again
    before = os.environ.get("PYTHONSAFEPATH")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ["PYTHONSAFEPATH"] = "1"  # else it imports what lies in the current folder, such as a checkout
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return context


def _serve(pipe: Connection, work: Callable[[ImageFile], Any]) -> None:
    """What a worker process does until the other end of the pipe is closed, by whoever asks or by its death."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # of odd metadata
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for image in pipe.recv():
                answer = _answer(image, work)
                pipe.send(answer)
                if isinstance(answer, Exception):
                    break


def _answer(image: ImageFile, work: Callable[[ImageFile], _Result]) -> _Result | Exception:
    try:
        return work(image)
    except SourceError as error:
        return error
    except MemoryError:
        return SourceError(f"no memory for {printable(image.path)}; {_LITTLE_MEMORY}", image=image.path)
    except Exception as error:  # noqa: BLE001 - raised by whoever asked
        error.add_note(traceback.format_exc())
        return error
