"""Passes over any data set: what one iterator was begun with, what it has delivered, and the state of that.

It begins passes and remembers; torch's iterators make the batches.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any

from forebay.errors import ConfigError
from forebay.loader.bad_samples import BadSampleLog
from forebay.loader.fetch_replacements import as_sample_errors
from forebay.loader.shared_queue import Delivery
from forebay.loader.stateful_generators import Generators, sampler_chain, write
from forebay.loader.stateful_iterable import IterableState
from forebay.loader.stateful_sampler import PassSampler, PassStart, Progress
from forebay.loader.stateful_state import PassState
from forebay.loader.stats import LoaderStats, StageStats

__all__ = ["Pass", "PassIterator", "Passes"]


class Tally:
    """Counts and times of a loader's passes. Written by the training loop alone."""

    def __init__(self, max_bad: float | None) -> None:
        self.bad = BadSampleLog(max_bad)
        self.samples = self.batches = 0
        self.seconds = self.stall_s = self.busy_s = self.idle_s = 0.0

    def stats(self, workers: int) -> LoaderStats:
        """Everything so far, as `LoaderStats` has it."""
        return LoaderStats(
            samples=self.samples,
            batches=self.batches,
            seconds=self.seconds,
            stall_s=self.stall_s,
            read_nbytes=0,
            stages={"fetch": StageStats(busy_s=self.busy_s, samples=self.samples, threads=max(workers, 1))},
            cache={},
            decoder="the data set's own",
            decoding={},
            bad_count=self.bad.count,
            bad=self.bad.listed(),
        )


class Pass:
    """One pass, shared by the iterator that moves it and the loader that tells its state."""

    def __init__(
        self,
        loader: Any,
        passes: Passes,
        sampler: PassSampler,
        state: PassState | None,
        start: PassStart | None,
    ) -> None:
        self.epoch = passes.epoch
        self.ended = False
        self.untold: str | None = None
        """Why there is no state of this pass; None: there is one."""
        self.sampler = sampler
        self.first_worker = 0 if state is None else state.next_worker
        self._kind = kind_of(loader)
        self._dataset = type(loader.dataset).__name__
        self._batched = loader._auto_collation
        self._passes = passes
        self._progress = Progress() if state is None else Progress(state.batches, state.beyond)
        self._next_worker = self.first_worker
        workers = _streams(loader)
        self.workers: list[Any] | None = None
        if self._kind == "iterable":
            loaded = None if state is None else state.workers
            self.workers = [IterableState().to_list()] * workers if loaded is None else list(loaded)
        self.seed = None if state is None else state.seed
        """Base seed that draws for the places of bad samples; None until the iterator tells."""
        self._written = None if start is None else dict(state.generators) if state is not None else None
        own = None if state is None or self._kind == "iterable" else state.sampler
        sampler.begin(self._progress, own, start=start)
        self._returned: float | None = None

    def seeded(self, iterator: Any) -> int:
        """The base seed of this pass: the loaded one, or else the iterator's."""
        if self.seed is None:
            self.seed = int(iterator._base_seed)
        return self.seed

    def delivered(self, delivery: Delivery) -> None:
        """The user is about to receive a batch, or the error of making it.

        Raises:
            BadSampleBudgetError: more samples were bad than allowed.
        """
        self._progress.delivered(delivery.task)
        notes, tally = delivery.notes, self._passes.tally
        if self.workers is not None:
            if notes.get("state") is not None:
                self.workers[delivery.worker] = notes["state"]
            self._next_worker = (delivery.worker + 1) % len(self.workers)
        tally.busy_s += notes.get("busy_s", 0.0)
        tally.idle_s += notes.get("wait_s", 0.0)
        samples = notes.get("samples", _count(delivery.indices) if self._batched else 1)
        tally.samples += samples
        tally.batches += 1
        tally.bad.delivered(samples, as_sample_errors(self._dataset, notes.get("bad", ())))

    def waited(self, asked: float) -> None:
        """A call of `next` that began at `asked` returns."""
        now = time.monotonic()
        self._passes.tally.stall_s += now - asked
        self._passes.tally.seconds += now - (asked if self._returned is None else self._returned)
        self._returned = now

    def state(self) -> PassState:
        """After what was delivered, of a pass that has not ended.

        Raises:
            ConfigError: there is no telling.
        """
        if self.untold is not None:
            raise ConfigError(f"this loader has no state: {self.untold}")
        if self._written is None:
            self._written = write(self.sampler.taken)
        return PassState(
            kind=self._kind,
            epoch=self.epoch,
            batches=self._progress.batches,
            beyond=sorted(self._progress.beyond),
            generators=self._written,
            seed=self.seed,
            seed_follows=self.sampler.seed_follows,
            sampler=self.sampler.state_at(self._progress.batches),
            sampler_epochs=self.sampler.epochs(),
            workers=None if self.workers is None else list(self.workers),
            next_worker=self._next_worker,
        )


def _count(indices: Any) -> int:
    return len(indices) if hasattr(indices, "__len__") else 1


def _streams(loader: Any) -> int:
    """Iterators that a pass over an iterable data set has: one a worker process; threads share one."""
    return max(loader.num_workers, 1) if loader.workers == "process" else 1


def kind_of(loader: Any) -> str:
    """`map` or `iterable`."""
    return "map" if loader._dataset_kind == 0 else "iterable"


class PassIterator:
    """What torch's iterators lack: telling their pass how long each `next` took. Comes before them among the bases."""

    current: Pass

    def __next__(self) -> Any:
        asked = time.monotonic()
        batch = super().__next__()  # type: ignore[misc]
        self.current.waited(asked)
        return batch


class Passes:
    """All passes of one loader; the state speaks of the newest. One thread.

    Args:
        max_bad: bad samples that are tolerated, as `BadSampleLog` takes it.
    """

    def __init__(self, max_bad: float | None) -> None:
        self._max_bad = max_bad
        self.tally = Tally(max_bad)
        self._pending: PassState | None = None
        self.epoch = 0
        self._newest: Pass | None = None
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Passes, (self._max_bad,)

    @property
    def pending(self) -> bool:
        """Whether a loaded state waits for the next pass."""
        return self._pending is not None

    def begin(self, loader: Any, sampler: PassSampler | None = None) -> Pass:
        """Begin the next pass, or the rest of the one that a loaded state is in.

        Args:
            loader: whose.
            sampler: of the iterator that begins another pass; a new one when None.
        """
        state, start = self._pending, None
        generators = Generators(loader)
        if state is not None:
            taken = generators.read(state.generators)
            if state.seed_follows is None:
                generators.put(taken)
            else:
                start = PassStart(taken, state.seed_follows, state.sampler_epochs)
            self.epoch = state.epoch
        sampler = PassSampler(sampler_chain(loader), generators) if sampler is None else sampler
        self._newest = Pass(loader, self, sampler, state, start)
        self._pending = None
        self.epoch += 1
        return self._newest

    def set_epoch(self, epoch: int) -> None:
        """Number the next pass, unless a loaded state does."""
        if self._pending is None:
            self.epoch = epoch

    def state_dict(self, loader: Any) -> dict[str, Any]:
        """Where the newest pass stands; the start of the next one before the first and after the end of one."""
        if self._pending is not None:
            return self._pending.to_dict()
        if self._newest is not None and not self._newest.ended:
            return self._newest.state().to_dict()
        return PassState(
            kind=kind_of(loader), epoch=self.epoch, batches=0, generators=write(Generators(loader).take())
        ).to_dict()

    def load_state_dict(self, loader: Any, state: Any) -> None:
        """Make the next pass go on where the state was taken.

        Raises:
            StateError: it does not belong here. Nothing is changed then.
        """
        if isinstance(state, Mapping):
            state = {name: value for name, value in state.items() if name != "_iterator_finished"}  # accelerate's note
        self._pending = PassState.parse(state, kind=kind_of(loader), workers=_streams(loader))

    def follow(self, iterator: Any) -> None:
        """Have `close` end this iterator."""
        self._iterators.add(iterator)

    def close(self) -> None:
        """End the workers of every iterator that is still referenced."""
        for iterator in list(self._iterators):
            iterator.close()

    def stats(self, workers: int) -> LoaderStats:
        """Where the time went since the loader was made, or `reset_stats`."""
        return self.tally.stats(workers)

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self.tally = Tally(self._max_bad)
