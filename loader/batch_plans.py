"""Which samples the batches of one pass are of: those of the epoch's order, or those that a user's sampler names.

The engine asks batch by batch, and the cache is told what comes; nothing is read here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from forebay.cache import Order
from forebay.errors import ConfigError
from forebay.loader.batches import BatchGrid, BatchPlaces
from forebay.loader.channel import Channel
from forebay.loader.node_division import divide_places
from forebay.loader.ranks import Ranks
from forebay.sharding import EpochOrder, NodeOrder, ShardSpan, StoredDataset

__all__ = ["BatchPlan", "Follower", "OrderPlan", "PlannedSamples", "SampledPlan"]

Ints = npt.NDArray[np.int64]
_OCCURRENCES = 1 << 16
"""As many as a sample's counter has bits for."""


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """The samples of one batch, of this rank."""

    start: int
    """Position of the global batch in the epoch."""
    position: int
    """Position of the first sample."""
    shards: Ints
    """int64 (n,)."""
    rows: Ints
    """int64 (n,) in the shard."""
    occurrences: Ints
    """int64 (n,): how often the sample came before in this epoch."""
    valid: npt.NDArray[np.bool_]
    """bool (n,): false for a sample that only fills a place."""
    weight: float = 1.0
    """Of the rank's mean in the mean over ranks: its own valid samples x ranks / all valid samples."""
    excess: int = 0
    """Valid samples among them that are of shards of another node."""


class Follower(Protocol):
    """Who is told what comes: `ShardStore`, or whoever passes it on."""

    def follow(self, order: Order, start: int = 0) -> None:
        """See `ShardStore.follow`."""


class BatchPlan(Protocol):
    """The batches of one pass. One thread goes through the numbers, and asks for the samples of each, once."""

    window: int
    """Shards that are read in turn."""
    rank: int
    largest: int | None
    """Samples of the largest batch; None where nobody knows."""

    def follow(self, store: Follower) -> None:
        """Tell the cache what comes."""

    def numbers(self) -> Iterator[int]:
        """0, 1, ... as the batches are known; waits for the next one where it is not."""

    def samples(self, number: int) -> PlannedSamples:
        """The samples of a batch."""

    def close(self) -> None:
        """Let nobody wait for a number any more."""


class OrderPlan:
    """Batches along the epoch's order, divided among the ranks. Conforms to `BatchPlan`.

    Unlike other plans, it may be asked for any batch, any number of times, by any thread.
    """

    def __init__(self, order: EpochOrder, grid: BatchGrid, ranks: Ranks) -> None:
        self._order = order
        self._grid = grid
        self._ranks = ranks
        self._nodes = len(set(ranks.node_of))
        self.rank = ranks.rank
        self.window = order.window
        self.largest: int | None = -(-grid.global_batch_size // ranks.world_size)

    @property
    def batches(self) -> int:
        """How many there are."""
        return len(self._grid)

    def follow(self, store: Follower) -> None:
        """See `BatchPlan.follow`."""
        order: EpochOrder | NodeOrder = self._order
        if self._nodes > 1:
            order = NodeOrder(self._order, node=self._ranks.node_of[self.rank], nodes=self._nodes)
        store.follow(order, self._grid.start)

    @property
    def shuffles(self) -> bool:
        """Whether samples of several shards are mixed."""
        return self._order.shuffle

    def numbers(self) -> Iterator[int]:
        """See `BatchPlan.numbers`."""
        return iter(range(len(self._grid)))

    def samples(self, number: int) -> PlannedSamples:
        """See `BatchPlan.samples`. What fills up a last batch are repetitions of its samples."""
        places, excess = self._places(number)
        shards, rows = self._order.locate(places.positions)
        return PlannedSamples(
            start=self._grid.bounds(number)[0],
            position=int(places.positions[0]),
            shards=shards,
            rows=rows,
            occurrences=places.occurrences & (_OCCURRENCES - 1),
            valid=places.valid,
            weight=self.weight(number, places),
            excess=excess,
        )

    def weight(self, number: int, places: BatchPlaces | None = None) -> float:
        """The weight of this rank's part of a batch; of `places` where the caller has them."""
        places = self._places(number)[0] if places is None else places
        return self._grid.weight(number, int(places.valid.sum()), world_size=self._ranks.world_size)

    def _places(self, number: int) -> tuple[BatchPlaces, int]:
        """This rank's places of a batch, and how many of their samples are of shards of another node."""
        ranks = self._ranks
        if self._nodes == 1:
            return self._grid.rank_places(number, rank=self.rank, world_size=ranks.world_size), 0
        whole = self._grid.places(number, world_size=ranks.world_size)
        # Frameworks that want even ranks also want all repetitions behind the samples.
        if self._grid.even and not whole.valid.all():
            return self._grid.rank_places(number, rank=self.rank, world_size=ranks.world_size), 0
        shards, _ = self._order.locate(whole.positions)
        owners = self._order.places(shards) % self._nodes
        mine = divide_places(owners, ranks.node_of, self.rank)
        places = whole.take(mine)
        elsewhere = owners[mine] != ranks.node_of[self.rank]
        return places, int((elsewhere & places.valid).sum())

    def close(self) -> None:
        """Nobody waits."""


class _GivenOrder:
    """What a sampler has given and the engine has not asked for yet. Conforms to the cache's `Order`; thread-safe."""

    samples = 1 << 60
    """Nobody knows where it ends; the next use, too, of a shard that no index on its way is of."""

    def __init__(self) -> None:
        self.position = 0
        """Of the first sample that is not read yet."""
        self._lock = threading.Lock()
        self._ahead: deque[PlannedSamples] = deque()

    def append(self, planned: PlannedSamples) -> None:
        """The next batch."""
        with self._lock:
            self._ahead.append(planned)

    def take(self) -> PlannedSamples:
        """The oldest batch, which is about to be read."""
        with self._lock:
            planned = self._ahead.popleft()
            self.position = planned.position
            return planned

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        """See `Order.spans`: the shards that are known to come."""
        with self._lock:
            ahead = list(self._ahead)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for planned in ahead:
            for shard in np.unique(planned.shards).tolist():
                first.setdefault(shard, max(planned.position, start))
                last[shard] = planned.position + len(planned.shards)
        return iter([ShardSpan(shard, begin, last[shard]) for shard, begin in first.items()])

    def next_use(self, shards: Ints, position: int) -> Ints:
        """See `Order.next_use`."""
        with self._lock:
            ahead = list(self._ahead)
        uses = np.full(len(shards), self.samples, np.int64)
        for planned in reversed(ahead):
            uses[np.isin(shards, planned.shards)] = max(planned.position, position)
        return uses

    def following(self) -> _GivenOrder:
        """See `Order.following`: nothing is known of it."""
        return _GivenOrder()


class SampledPlan:
    """Batches of indices that a sampler gives, as they are added by the training loop. Conforms to `BatchPlan`.

    Args:
        data: the indices are of.
        largest: indices of a batch, at most; None: any number.
    """

    def __init__(self, data: StoredDataset, *, largest: int | None) -> None:
        self._data = data
        self.window = max(1, len(data.shard_rows))
        self.rank = 0
        self.largest = largest
        self._seen = np.zeros(data.rows, np.uint16)
        self._order = _GivenOrder()
        self._numbers: Channel[int] = Channel(capacity=1 << 62)
        self._store: Follower | None = None
        self._position = 0
        self.added = 0
        """Batches."""

    def pass_over(self, indices: Sequence[Any]) -> None:
        """Count samples that were delivered before this pass went on."""
        places = self._places(indices)
        self._occurrences(places)
        self._position += len(places)

    def add(self, indices: Sequence[Any]) -> None:
        """The next batch; the cache hears of it.

        Raises:
            IndexError: there is no such sample.
            ConfigError: no list of whole numbers, or more than were announced.
        """
        places = self._places(indices)
        if self.largest is not None and len(places) > self.largest:
            raise ConfigError(
                f"batch_sampler gave a batch of {len(places)} indices, and its batch_size is {self.largest}: DALI made "
                'room for as many; mend batch_size, or take decode="native"'
            )
        shards, rows = self._data.find(places)
        valid = np.ones(len(places), np.bool_)
        planned = PlannedSamples(self._position, self._position, shards, rows, self._occurrences(places), valid)
        self._position += len(places)
        self._order.append(planned)
        self._numbers.put(self.added)
        self.added += 1
        if self._store is not None:
            self.follow(self._store)

    def end(self) -> None:
        """The sampler has no more."""
        self._numbers.finish()

    def _places(self, indices: Sequence[Any]) -> Ints:
        rows = self._data.rows
        places = np.asarray(indices)
        if places.ndim != 1 or places.dtype.kind not in "iu" or not places.size:
            raise ConfigError(
                f"the sampler gave {indices!r:.100} as the samples of a batch; a ShardDataset is asked for lists of "
                "whole numbers, one at least"
            )
        outside = places[(places < -rows) | (places >= rows)]
        if outside.size:
            raise IndexError(f"sample {outside[0]} of {self._data.name}, which has {rows}")
        return places.astype(np.int64) % rows

    def _occurrences(self, places: Ints) -> Ints:
        """How often each was seen before, in the batch too; and count them."""
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        begins = np.flatnonzero(first)
        within = np.arange(len(places)) - np.repeat(begins, np.diff(np.append(begins, len(places))))
        occurrences = np.empty(len(places), np.int64)
        occurrences[order] = within
        occurrences = (occurrences + self._seen[places]) % _OCCURRENCES
        np.add.at(self._seen, places, 1)
        return occurrences

    def follow(self, store: Follower) -> None:
        """See `BatchPlan.follow`. Told again with every batch that is added."""
        self._store = store
        store.follow(self._order, self._order.position)

    def numbers(self) -> Iterator[int]:
        """See `BatchPlan.numbers`."""
        return iter(self._numbers)

    def samples(self, number: int) -> PlannedSamples:
        """See `BatchPlan.samples`."""
        return self._order.take()

    def close(self) -> None:
        """See `BatchPlan.close`."""
        self._numbers.abandon()
