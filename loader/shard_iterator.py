"""One pass over an epoch as the training loop sees it: batches, and their count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.errors import ClosedError
from forebay.loader.batches import BatchGrid
from forebay.loader.engine_batches import Engine, EngineBatches
from forebay.loader.frameworks import GradientPlace
from forebay.loader.stats import Meter

__all__ = ["Pass", "ShardIterator"]


@dataclass(slots=True)
class Pass:
    """How far one iterator has come. Shared by the iterator, which moves it, and the loader, which reads it."""

    epoch: int
    grid: BatchGrid
    delivered: int = 0
    ended: bool = False
    resumed: bool = False
    """Whether it goes on where a loaded state was."""
    told: bool = False
    """Whether its epoch was told after it had begun; asked for again before it gave anything, it is this one still."""


class ShardIterator(Iterator[dict[str, Any]]):
    """The batches of one pass. Closes its engine when it ends, fails, is closed, or is no longer referenced."""

    def __init__(
        self,
        engine: Engine,
        current: Pass,
        meter: Meter,
        *,
        timeout_s: float | None,
        place: GradientPlace | None = None,
    ) -> None:
        if place is not None:
            place.begin()
        then = None if place is None else place.end
        batches = EngineBatches(engine, meter, self, epoch=current.epoch, timeout_s=timeout_s, then=then)
        self._hold(batches, current, place)

    def _hold(self, batches: EngineBatches, current: Pass, place: GradientPlace | None) -> None:
        self._batches = batches
        self._pass = current
        self._place = place
        self.close = batches.close
        """Stop reading ahead. Calling it again does nothing."""

    def become(self, other: ShardIterator) -> None:
        """Give the batches of `other`, that nobody else has, instead of one's own, of which none was given."""
        self.close()
        self._hold(other._batches.handed_to(self), other._pass, other._place)

    def __next__(self) -> dict[str, Any]:
        delivery = self._batches.next()
        if delivery is None:
            self._pass.ended = self._pass.delivered == len(self._pass.grid)
            if self._pass.ended:
                raise StopIteration
            raise ClosedError(
                f"this pass was closed after {self._pass.delivered} of {len(self._pass.grid)} batches of epoch "
                f"{self._pass.epoch}; iter(loader) begins the next epoch, loader.load_state_dict goes on with this one"
            )
        self._pass.delivered += 1
        if self._place is not None:
            self._place.end_of_dataloader = self._pass.delivered == len(self._pass.grid)
        return delivery.batch

    def __iter__(self) -> ShardIterator:
        return self

    def __len__(self) -> int:
        """Batches that are still to come."""
        return len(self._pass.grid) - self._pass.delivered
