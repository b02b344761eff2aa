"""The engine for shards whose samples go through Python callables: whole batches made by worker processes.

Each worker reads, decodes and transforms the samples of its batches by itself; bytes do not come from the loader's
process, which tells places of samples and takes batches out of shared memory. Processes, queues and their failures are
those of any data set's (`worker_iterator`).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data.dataloader import _DatasetKind

from forebay.cache import ShardStore
from forebay.errors import SampleError
from forebay.loader.batch_plans import Follower, PlannedSamples
from forebay.loader.batch_work import BatchWork
from forebay.loader.channel import ChannelEnd
from forebay.loader.dataset import ShardDataset
from forebay.loader.device import DeviceCopy
from forebay.loader.engine_settings import Delivery, EngineSettings
from forebay.loader.fetch_samples import FetchSettings
from forebay.loader.pending_batch import PendingBatch
from forebay.loader.shared_queue import Delivery as WorkerDelivery
from forebay.loader.slots import LoaderMemory
from forebay.loader.stats import Meter
from forebay.loader.worker_context import WorkerSettings
from forebay.loader.worker_iterator import LoaderView, WorkerIterator

__all__ = ["ShardWorkers"]

_SPARE_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class _Task:
    """One batch that a worker is to make."""

    number: int
    samples: PlannedSamples

    def __repr__(self) -> str:
        places = zip(self.samples.shards[:8].tolist(), self.samples.rows[:8].tolist(), strict=True)
        more = f", ... {len(self.samples.rows)} in all" if len(self.samples.rows) > 8 else ""
        return "; ".join(f"shard {shard}, row {row}" for shard, row in places) + more


@dataclass(slots=True)
class _Made:
    """One batch from a worker, and what it has done since it began."""

    outputs: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    bad: list[SampleError] = field(default_factory=list)
    excess: int = 0
    unread_nbytes: float = 0.0
    error: BaseException | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage, of this batch."""
    read_nbytes: int = 0
    """Of all batches of this worker."""
    store: dict[str, int | float] = field(default_factory=dict)
    """Counts of the worker's store."""


class _GivenPlan:
    """In a worker: the samples of the batch in hand. Conforms to `BatchPlan` as far as making a batch asks."""

    def __init__(self, window: int, rank: int) -> None:
        self.window = window
        self.rank = rank
        self.largest: int | None = None
        self.given: PlannedSamples

    def samples(self, number: int) -> PlannedSamples:
        """What was given."""
        return self.given

    def follow(self, store: Follower) -> None:
        """The loader's process tells the cache."""

    def numbers(self) -> Iterator[int]:
        """The loader's process knows them."""
        return iter(())

    def close(self) -> None:
        """Nobody waits."""


class _BatchMaker:
    """What the workers have for a data set: it makes batches. Opens the shards when first asked."""

    def __init__(self, dataset: ShardDataset, settings: EngineSettings) -> None:
        self._dataset = dataset
        plan = _GivenPlan(settings.plan.window, settings.plan.rank)
        self._settings = replace(settings, plan=plan, pin_memory=False, device=None, threads=1)
        self._opened: tuple[BatchWork, ShardStore] | None = None

    def __getitem__(self, task: _Task) -> _Made:
        made = _Made()
        try:
            self._make(task, made)
        except Exception as error:  # noqa: BLE001 - raised in the loader's process, as it is
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            made.error = error
        return made

    def _make(self, task: _Task, made: _Made) -> None:
        if self._opened is None:
            store = self._dataset.open_store()
            self._opened = BatchWork(self._settings, store, LoaderMemory(pin_memory=False, batches=2)), store
        work, store = self._opened
        plan = self._settings.plan
        assert isinstance(plan, _GivenPlan)
        plan.given = task.samples
        batch = PendingBatch(task.number)
        times = [time.monotonic()]
        work.plan(batch)
        work.fill(batch)
        times.append(time.monotonic())
        for i in work.decode(batch):
            work.make(batch, i)
        times.append(time.monotonic())
        made.outputs = work.finish(batch, work.assemble(batch))
        times.append(time.monotonic())
        made.seconds = {
            stage: end - begin
            for stage, begin, end in zip(("read", "decode", "collate"), times, times[1:], strict=False)
        }
        made.samples = len(batch.rows)
        made.excess, made.unread_nbytes = batch.excess, batch.unread_nbytes
        made.bad = [batch.bad[i] for i in sorted(batch.bad)]
        made.read_nbytes, made.store = work.read_nbytes, store.stats()


class _WorkersPass:
    """What `WorkerIterator` asks of a pass: the state is kept by whoever owns the engine."""

    first_worker = 0
    workers = None

    def __init__(self, engine: ShardWorkers, seed: int) -> None:
        self.sampler = engine.tasks()
        self.ended = False
        self._delivered = engine.take_notes
        self._seed = seed

    def seeded(self, iterator: object) -> int:
        """The base seed of this pass."""
        return self._seed

    def delivered(self, delivery: WorkerDelivery) -> None:
        """A batch is about to be received."""
        self._delivered(delivery)

    def waited(self, asked: float) -> None:
        """Counted by `EngineBatches`."""


class ShardWorkers:
    """One pass by worker processes, with the methods of `ShardEngine`. One thread, but for `close`.

    Args:
        dataset: opened anew by each worker.
        settings: of the pass.
        store: tells the cache what comes; closed with this.
        meter: of the loader.
        workers: processes.
        prefetch: batches a worker makes ahead.

    Raises:
        ConfigError: something does not go to another process; names it.
    """

    def __init__(
        self,
        dataset: ShardDataset,
        settings: EngineSettings,
        store: ShardStore,
        meter: Meter,
        *,
        workers: int,
        prefetch: int,
    ) -> None:
        self._settings = settings
        self._store = store
        self._meter = meter
        self._copy = None if settings.device is None else DeviceCopy(settings.device)
        self._positions: dict[int, int] = {}
        self._notes: dict[int, _Made] = {}  # the newest of each worker
        self._counted_nbytes = 0
        self._closed = False
        self._lock = threading.Lock()
        view = LoaderView(
            None,
            dataset=_BatchMaker(dataset, settings),
            num_workers=workers,
            prefetch_factor=prefetch,
            pin_memory=settings.pin_memory,
            pin_memory_device="",
            timeout=0,
            worker_init_fn=None,
            multiprocessing_context=None,
            generator=torch.Generator().manual_seed(settings.seed),
            in_order=True,
            persistent_workers=False,
            batch_size=None,
            drop_last=False,
            collate_fn=_as_it_is,
            _dataset_kind=_DatasetKind.Map,
            _IterableDataset_len_called=None,
            _auto_collation=False,
        )
        of_workers = WorkerSettings(fetch=FetchSettings(), segments=prefetch + _SPARE_SEGMENTS)
        self._iterator = WorkerIterator(view, of_workers, _WorkersPass(self, settings.seed))  # type: ignore[arg-type]
        settings.plan.follow(store)  # its threads start after the workers did

    def tasks(self) -> Iterator[_Task]:
        """The batches that workers are to make, in order."""
        for number in self._settings.plan.numbers():
            samples = self._settings.plan.samples(number)
            self._positions[number] = samples.position
            yield _Task(number, samples)

    def next(self, timeout_s: float | None) -> Delivery:
        """As `ShardEngine.next`."""
        if self._closed:
            raise ChannelEnd
        self._iterator._timeout = timeout_s or 0
        try:
            made: _Made = next(self._iterator)
        except StopIteration:
            raise ChannelEnd from None
        except RuntimeError as error:
            if str(error).startswith("DataLoader timed out"):
                raise TimeoutError(str(error)) from None
            raise
        if made.error is not None:
            raise made.error
        copied = None
        if self._copy is not None:
            made.outputs, copied = self._copy.start(made.outputs, lambda moved: moved)
            self._copy.finish(made.outputs, copied)
        return Delivery(
            batch=made.outputs,
            samples=made.samples,
            bad=made.bad,
            excess=made.excess,
            unread_nbytes=made.unread_nbytes,
        )

    def take_notes(self, delivery: WorkerDelivery) -> None:
        """Count what a worker tells beside a batch."""
        made = delivery.batch
        if not isinstance(made, _Made):  # what torch raises
            return
        self._store.advance(self._positions.pop(delivery.task))
        for stage, seconds in made.seconds.items():
            getattr(self._meter, stage).add(samples=made.samples, busy_s=seconds)
        with self._lock:
            self._notes[delivery.worker] = made

    def measure(self, *, closed: bool = False) -> None:
        """As `ShardEngine.measure`."""
        with self._lock:
            if self._closed:
                return
            counts = dict(self._store.stats())
            for made in self._notes.values():
                for name, count in made.store.items():
                    counts[name] = counts.get(name, 0) + count
            self._meter.count_store(counts, closed=closed)
            nbytes = sum(made.read_nbytes for made in self._notes.values())
            counted, self._counted_nbytes = self._counted_nbytes, nbytes
            self._meter.read_nbytes += nbytes - counted

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self.measure(closed=True)
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._settings.plan.close()
            self._iterator.close()
            self._store.close()


def _as_it_is(made: _Made) -> _Made:
    return made
