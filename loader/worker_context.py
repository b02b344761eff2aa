"""The start of worker processes: torch's iterator asks this context for queues and processes, and gets ours.

The start method is the user's or torch's default; the loop that runs in the worker is torch's.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing
from torch.utils.data import get_worker_info

from forebay.errors import ConfigError
from forebay.loader.fetch_samples import FetchSettings, SampleFetcher
from forebay.loader.shared_memory import BatchMemory
from forebay.loader.shared_queue import ResultQueue, TaskQueue, WorkerLink
from forebay.loader.shared_segments import SegmentPool
from forebay.loader.shared_socket import MessageSocket
from forebay.loader.stateful_iterable import IterableState, ResumedIterable
from forebay.loader.worker_collate import stack_into
from forebay.loader.worker_notes import WorkerNotes
from forebay.loader.worker_queues import DoneFlag, WorkerBatches, WorkerTasks

__all__ = ["WorkerContext", "WorkerSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """What the workers of one iterator do beside torch's loop."""

    fetch: FetchSettings
    segments: int
    """That each worker may lend; more than it may prefetch, or none is ever used again."""
    states: tuple[IterableState, ...] | None = None
    """By worker: where it goes on in an iterable data set; None: at the start, and no state is kept."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What one worker process is started with, beside torch's own arguments."""

    worker: int
    socket: MessageSocket
    settings: WorkerSettings


class WorkerContext:
    """Stands in for a `multiprocessing` context in torch's iterator.

    Args:
        context: the user's, or None for torch's default.
        settings: of the workers.
    """

    def __init__(self, context: Any, settings: WorkerSettings) -> None:
        self._context = torch.multiprocessing if context is None else context
        self._settings = settings
        self._done = DoneFlag()
        self.links: list[WorkerLink] = []
        self.results = ResultQueue(self.links)
        self._asked = False

    def Queue(self) -> ResultQueue | TaskQueue:
        """The queue of batches the first time, then one of tasks for each worker."""
        if not self._asked:
            self._asked = True
            return self.results
        self._release_worker_ends()
        ours, theirs = MessageSocket.pair()
        self.links.append(WorkerLink(len(self.links), ours, theirs))
        return TaskQueue(self.links[-1], self._done.is_set)

    def Event(self) -> DoneFlag:
        """What tells the workers that the loader has finished."""
        return self._done

    def Process(self, *, target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
        """The worker for the newest queue of tasks."""
        link = self.links[-1]
        ours = (TaskQueue, ResultQueue, DoneFlag)
        args = tuple(None if isinstance(value, ours) else value for value in args)
        start = _Start(link.number, link.worker_end, self._settings)
        process: BaseProcess = self._context.Process(target=_run_worker, args=(target, args, start))
        link.process = process
        return process

    def _release_worker_ends(self) -> None:
        for link in self.links:
            link.worker_end.close()

    def close(self) -> None:
        """Free every descriptor. The workers must have ended, or end when they find the socket closed."""
        self._release_worker_ends()
        for link in self.links:
            link.socket.close()
        self.results.close()

    def explain_start(self, error: Exception) -> ConfigError | None:
        """Say what to do when a worker could not be started because something does not pickle."""
        if not isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
            return None
        method = self._context.get_start_method()
        if method == "fork":
            return None
        return ConfigError(
            f"a worker process could not be started by {method!r}, which pickles the data set, collate_fn and "
            f"worker_init_fn for it: {error}; define what it names at the top level of a module (no lambda, no class "
            'or function inside a function), or use workers="thread", which pickles nothing'
        )


def _run_worker(target: Callable[..., None], args: tuple[Any, ...], start: _Start) -> None:
    """Run torch's loop in a worker process, with our queues, and with what we add to the data set's calls."""
    given = inspect.signature(target).bind(*args).arguments
    # Since torch 2.14 the data set comes in a list, which the loop empties, so that nothing else keeps it alive.
    holder: list[Any] = given.get("dataset_holder") or [given["dataset"]]
    pool = SegmentPool(start.settings.segments)
    memory, notes = BatchMemory(pool), WorkerNotes()
    dataset, init_fn = holder.pop(), given["init_fn"]
    served = dataset
    given["index_queue"] = tasks = WorkerTasks(start.socket, pool, notes)
    given["data_queue"] = WorkerBatches(start.worker, start.socket, memory, notes)
    given["done_event"] = DoneFlag(start.socket)

    # torch makes its fetcher after init_fn, with the data set that it was given; the user's code sees the user's.
    if start.settings.states is not None:
        resumed = ResumedIterable(dataset, start.settings.states[start.worker])
        served = notes.iterable = resumed
    elif start.settings.fetch.wraps(dataset, given["dataset_kind"]):
        fetcher = SampleFetcher(
            dataset, start.settings.fetch.seeded(start.settings.fetch.seed or given["base_seed"]), notes.bad.append
        )
        served = fetcher
        tasks.resumed = fetcher.next_epoch

    def initialise(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        if info.dataset is served:
            object.__setattr__(info, "dataset", dataset)
        stack_into(memory)
        if init_fn is not None:
            init_fn(worker)

    given["init_fn"] = initialise
    if "dataset_holder" in given:
        holder.append(served)
    else:
        given["dataset"] = served
    try:
        target(**given)
    except BrokenPipeError:
        return
    finally:
        start.socket.close()
