"""torch's iterator over worker processes, with our queues under it, and with errors that say what a dead worker did.

Order, seeds, prefetching and shutting down are torch's own code.
"""

from __future__ import annotations

import errno
import os
import signal
import warnings
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from forebay.loader.shared_queue import Delivery, WorkerLink
from forebay.loader.stateful_passes import Pass, PassIterator
from forebay.loader.worker_context import WorkerContext, WorkerSettings

__all__ = ["LoaderView", "TorchWayIterator", "WorkerIterator", "shared_memory_works"]


class LoaderView:
    """A loader as torch's iterators see it: the loader's attributes, some of them replaced."""

    def __init__(self, loader: Any, **replaced: Any) -> None:
        self._loader = loader
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class WorkerIterator(PassIterator, _MultiProcessingDataLoaderIter):
    """Batches made by worker processes.

    Args:
        view: of the loader.
        settings: what the workers do beside torch's loop.
        current: the pass that it begins with.
    """

    def __init__(self, view: LoaderView, settings: WorkerSettings, current: Pass) -> None:
        self._context = WorkerContext(view.multiprocessing_context, settings)
        self.current = current
        self._pid = os.getpid()
        self._first_worker = current.first_worker
        try:
            super().__init__(LoaderView(view, multiprocessing_context=self._context, _index_sampler=current.sampler))
        except BaseException as error:
            self._shutdown_workers()
            self._context.close()
            explained = self._context.explain_start(error) if isinstance(error, Exception) else None
            if explained is not None:
                raise explained from error
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.current.seeded(self)
        self._first_worker = self.current.first_worker
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        while self._first_worker:
            self._first_worker -= 1
            next(self._worker_queue_idx_cycle)
        super()._try_put_index()

    def _next_data(self) -> Any:
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self.current.ended = True
            raise
        except RuntimeError as error:
            told = self._tell_of_the_dead(error)
            if told is None:
                raise
        try:
            raise told
        finally:
            del told  # its traceback holds this frame

    def _process_data(self, data: Any, *args: Any) -> Any:
        if isinstance(data, Delivery):
            self.current.delivered(data)
            data = data.batch
        return super()._process_data(data, *args)  # type: ignore[no-untyped-call]

    def _tell_of_the_dead(self, error: RuntimeError) -> RuntimeError | None:
        """Torch's error about a dead worker, with its number, signal and the batch that it had in hand."""
        if not str(error).startswith("DataLoader worker"):
            return None
        ended = [(link, link.process.exitcode) for link in self._context.links if link.process is not None]
        dead = [link for link, code in ended if code or (code == 0 and link.lost and link.tasks)]
        if not dead:
            return None
        told = RuntimeError(f"{str(error).rstrip('. ')}: {'; '.join(_describe(link) for link in dead)}")
        told.__cause__ = error.__cause__
        return told

    def _shutdown_workers(self) -> None:
        if "_workers_done_event" not in self.__dict__ or os.getpid() != self._pid:
            return  # torch's constructor raised before there was anything to shut down, or this is a forked copy
        was_running = not self._shutdown
        super()._shutdown_workers()
        if was_running and self._shutdown:
            self._context.close()

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self._shutdown_workers()


class TorchWayIterator(PassIterator, _MultiProcessingDataLoaderIter):
    """Batches made by worker processes and sent in torch's own way, where ours is not to be had.

    Args:
        view: of the loader.
        current: the pass that it begins with.
    """

    def __init__(self, view: LoaderView, current: Pass) -> None:
        self.current = current
        if current.workers is not None:
            current.untold = "workers tell where they stand in an iterable data set only where memfd_create works"
        super().__init__(LoaderView(view, _index_sampler=current.sampler))

    def _next_data(self) -> Any:
        before = set(self._task_info)
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self.current.ended = True
            raise
        finally:
            for task in sorted(before - set(self._task_info)):
                self.current.delivered(Delivery(task, None, 0, ()))

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self._shutdown_workers()


def _describe(link: WorkerLink) -> str:
    assert link.process is not None
    code = link.process.exitcode
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += " (the system does that when memory runs out: use fewer workers or smaller batches)"
        elif -code == signal.SIGBUS:
            how += " (a file that it had mapped was cut short, or memory ran out)"
    else:
        how = f"exited with code {code}" + (" (its own message is printed above)" if code else "")
    task = next(iter(link.tasks.items()), None)
    work = "" if task is None else f" while it had batch {task[0]} in hand, the samples {_shown(task[1])}"
    return f"worker {link.number} (pid {link.process.pid}) {how}{work}"


def _shown(indices: Any) -> str:
    if isinstance(indices, (list, tuple)) and len(indices) > 8:
        return f"[{', '.join(map(repr, indices[:8]))}, ... {len(indices)} in all]"
    return f"{indices!r:.400}"


_warned: set[str] = set()


def shared_memory_works() -> bool:
    """Whether this system gives memory without a name to share; if not, says once what is lost."""
    try:
        os.close(os.memfd_create("forebay", os.MFD_CLOEXEC))
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise
        if not _warned:
            _warned.add("memfd")
            warnings.warn(
                f"this system refuses memfd_create ({error}), so batches of worker processes take torch's own way, "
                "through /dev/shm: slower, and it must be large enough; allow memfd_create in the container's seccomp "
                "profile",
                RuntimeWarning,
                stacklevel=3,
            )
        return False
    return True
