"""Batches of a ShardDataset in the order of a user's sampler or batch sampler, made by the engine for shards.

Which samples form which batch is torch's own code, as are the base seed and the state of the pass.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from forebay.errors import ClosedError, ConfigError
from forebay.loader.batch_plans import SampledPlan
from forebay.loader.dataset import ShardDataset
from forebay.loader.engine_batches import EngineBatches
from forebay.loader.engine_room import Room
from forebay.loader.shared_queue import Delivery
from forebay.loader.stateful_passes import Pass, PassIterator
from forebay.loader.worker_iterator import LoaderView

__all__ = ["SampledIterator"]

_USUAL_BATCH = 32
"""Samples of a batch, where a batch sampler does not tell: so many batches are made ahead as keep all threads busy."""


class SampledIterator(PassIterator, _BaseDataLoaderIter):
    """One pass. Closes its engine when it ends, fails, is closed, or is no longer referenced.

    Indices are taken from the sampler by the training loop, ahead by twice the batches that are made ahead: so far the
    cache looks.

    Args:
        view: of the loader.
        room: that its engine is started in.
        current: the pass.

    Raises:
        ConfigError: the decoder must know the size of the largest batch, and a batch sampler does not tell.
    """

    def __init__(self, view: LoaderView, room: Room, current: Pass) -> None:
        dataset: ShardDataset = view.dataset
        batch_size = view.batch_size or getattr(view.batch_sampler, "batch_size", None)
        largest = batch_size if isinstance(batch_size, int) and batch_size > 0 else None
        if largest is None and room.needs_largest:
            raise ConfigError(
                "DALI must be told the size of the largest batch: give the batch sampler an attribute batch_size, or "
                'take decode="native"'
            )
        self.current = current
        self._plan = SampledPlan(dataset.data, largest=largest if room.needs_largest else None)
        current.sampler.passed_over = self._plan.pass_over
        current.sampler.expect_seed()
        super().__init__(LoaderView(view, _index_sampler=current.sampler))  # type: ignore[arg-type]
        seed = current.seeded(self) if view.seed is None else view.seed
        prefetch = room.prefetch(largest or _USUAL_BATCH)
        self._ended = False
        for _ in range(2 * prefetch):
            self._add()
        engine = room.start(self._plan, seed=seed, epoch=current.epoch, prefetch=prefetch)
        self._batches = EngineBatches(engine, room.meter, self, epoch=current.epoch, timeout_s=self._timeout or None)
        self.close = self._batches.close
        """Stop reading ahead. Calling it again does nothing."""

    def _add(self) -> None:
        if self._ended:
            return
        try:
            indices = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            self._ended = True
            self._plan.end()
        else:
            self._plan.add(indices)

    def _next_data(self) -> Any:
        delivery = self._batches.next()
        if delivery is None:
            if self._batches.delivered < self._plan.added or not self._ended:
                raise ClosedError("this iterator was closed; iter(loader) begins the next epoch")
            self.current.ended = True
            raise StopIteration
        self._add()
        self.current.delivered(Delivery(self._batches.delivered - 1, None, 0, range(delivery.samples)))
        return delivery.batch
