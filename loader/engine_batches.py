"""The batches of an engine as a training loop receives them: waits and bad samples are counted, errors say where."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

from forebay.errors import StallError
from forebay.loader.channel import ChannelEnd
from forebay.loader.engine import ShardEngine
from forebay.loader.engine_settings import Delivery
from forebay.loader.shard_workers import ShardWorkers
from forebay.loader.stats import Meter
from forebay.loader.table_engine import TableEngine

__all__ = ["Engine", "EngineBatches"]

Engine = ShardEngine | ShardWorkers | TableEngine
"""One pass: over shards, by threads of this process or by worker processes, or over a table."""


class EngineBatches:
    """Closes its engine when it ends, fails, or is closed; so does the end of `owner`. One thread.

    Args:
        engine: of one pass.
        meter: of the loader.
        owner: the iterator that the user has.
        epoch: of the pass.
        timeout_s: seconds after which a batch that has not come is an error; None waits.
        then: called after the engine is closed.
    """

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        owner: object,
        *,
        epoch: int,
        timeout_s: float | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._epoch = epoch
        self._timeout_s = timeout_s
        self._then = then
        self._last_return: float | None = None
        self.delivered = 0
        """Batches received."""
        self.close = weakref.finalize(owner, _close, engine, then)
        """Stop reading ahead. Calling it again does nothing."""
        self.close.atexit = False  # threads are joined before atexit: the engine's own hook comes earlier

    def handed_to(self, owner: object) -> EngineBatches:
        """The same for another owner; none was given, and this one is done with."""
        self.close.detach()
        return EngineBatches(
            self._engine, self._meter, owner, epoch=self._epoch, timeout_s=self._timeout_s, then=self._then
        )

    def next(self) -> Delivery | None:
        """The next batch; None when there is none.

        Raises:
            StallError: none came in time.
            BadSampleBudgetError: more samples were bad than allowed.
            BaseException: what went wrong with this batch.
        """
        asked = time.monotonic()
        try:
            delivery = self._engine.next(self._timeout_s)
            self._meter.bad.delivered(delivery.samples, delivery.bad)
        except ChannelEnd:
            self.close()
            return None
        except TimeoutError as error:
            self.close()
            raise StallError(
                f"batch {self.delivered} of epoch {self._epoch} did not come within timeout={self._timeout_s} s "
                f"({self._meter.stats()}); raise timeout, or look for the slow stage",
                batch=self.delivered,
                epoch=self._epoch,
            ) from error
        except BaseException:
            self.close()
            raise
        self.delivered += 1
        returned = time.monotonic()
        since = asked if self._last_return is None else self._last_return
        self._meter.delivered(
            delivery.samples,
            excess=delivery.excess,
            unread_nbytes=delivery.unread_nbytes,
            stall_s=returned - asked,
            seconds=returned - since,
        )
        self._last_return = returned
        return delivery


def _close(engine: Engine, then: Callable[[], None] | None) -> None:
    engine.close()
    if then is not None:
        then()
