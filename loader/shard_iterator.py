"""One pass over an epoch as the training loop sees it: batches, their count, and the time spent waiting for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.errors import ClosedError, StallError
from forebay.loader.batches import BatchGrid
from forebay.loader.channel import ChannelEnd
from forebay.loader.engine import ShardEngine
from forebay.loader.stats import Meter

__all__ = ["Pass", "ShardIterator"]


@dataclass(slots=True)
class Pass:
    """How far one iterator has come. Shared by the iterator, which moves it, and the loader, which reads it."""

    epoch: int
    grid: BatchGrid
    delivered: int = 0
    ended: bool = False


class ShardIterator(Iterator[dict[str, Any]]):
    """The batches of one pass. Closes its engine when it ends, fails, is closed, or is no longer referenced."""

    def __init__(self, engine: ShardEngine, current: Pass, meter: Meter, *, timeout_s: float | None) -> None:
        self._engine = engine
        self._pass = current
        self._meter = meter
        self._timeout_s = timeout_s
        self._last_return: float | None = None
        self.close = weakref.finalize(self, engine.close)
        """Stop reading ahead. Calling it again does nothing."""
        self.close.atexit = False  # threads are joined before atexit: the engine's own hook comes earlier

    def __next__(self) -> dict[str, Any]:
        asked = time.monotonic()
        try:
            delivery = self._engine.next(self._timeout_s)
            self._meter.bad.delivered(delivery.samples, delivery.bad)
        except ChannelEnd:
            self.close()
            self._pass.ended = self._pass.delivered == len(self._pass.grid)
            if self._pass.ended:
                raise StopIteration from None
            raise ClosedError(
                f"this pass was closed after {self._pass.delivered} of {len(self._pass.grid)} batches of epoch "
                f"{self._pass.epoch}; iter(loader) begins the next epoch, loader.load_state_dict goes on with this one"
            ) from None
        except TimeoutError as error:
            self.close()
            raise StallError(
                f"batch {self._pass.delivered} of epoch {self._pass.epoch} did not come within "
                f"timeout={self._timeout_s} s ({self._meter.stats()}); raise timeout, or look for the slow stage",
                batch=self._pass.delivered,
                epoch=self._pass.epoch,
            ) from error
        except BaseException:
            self.close()
            raise
        self._pass.delivered += 1
        returned = time.monotonic()
        since = asked if self._last_return is None else self._last_return
        self._meter.delivered(delivery.samples, stall_s=returned - asked, seconds=returned - since)
        self._last_return = returned
        return delivery.batch

    def __iter__(self) -> ShardIterator:
        return self

    def __len__(self) -> int:
        """Batches that are still to come."""
        return len(self._pass.grid) - self._pass.delivered
