"""The cache's decisions played on recorded accesses, beside the offline optimum and LRU: numbers, no files, no threads.

The decisions are those of the real cache (`lookahead.py`, `future.py`, `plan.py`); fetching takes no time, and all
shards are equally large.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forebay.cache.future import Order, until_next_use
from forebay.cache.lookahead import Lookahead, shards_soon
from forebay.cache.plan import FAR, Resident, plan_admission
from forebay.sharding import EpochOrder, rank_slice

__all__ = ["HitRatios", "Step", "hit_ratios", "in_turn", "record_epoch"]

FETCH_THREADS = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of one reader: which shards it touches."""

    reader: int
    order: Order
    """Of the epoch that it reads. Ranks of one job share it: what one has fetched is no second fetch for another."""
    position: int
    """Where the batch begins."""
    shards: tuple[int, ...]
    """In order of first use, each once."""
    counted: bool = True
    """False while the cache is filled for the first time."""


@dataclass(frozen=True, slots=True)
class HitRatios:
    """Shares of the uses that needed no fetch. A use: one shard in one epoch of one job."""

    ours: float
    optimum: float
    """Of who knows all accesses beforehand: farthest next use first, with bypass (Belady 1966)."""
    lru: float
    uses: int


def record_epoch(
    order: EpochOrder,
    *,
    reader: int = 0,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    stop: int | None = None,
    batch: int,
    counted: bool = True,
) -> Iterator[Step]:
    """What one rank touches in an epoch, or a part of it, batch by batch.

    Args:
        order: of the epoch.
        reader: number of this reader.
        rank: of this reader in its job.
        world_size: ranks of the job.
        start: position where it begins, as after a resume.
        stop: position where it ends; None for the end of the epoch.
        batch: samples of a global batch.
        counted: see `Step`.
    """
    samples = order.samples if stop is None else stop
    for begin in range(start, samples, batch):
        low, high = rank_slice(begin, min(begin + batch, samples), rank=rank, world_size=world_size)
        if low < high:
            shards, _ = order.locate(np.arange(low, high))
            yield Step(reader, order, low, tuple(dict.fromkeys(shards.tolist())), counted)


def in_turn(*readers: Iterable[Step]) -> list[Step]:
    """The steps of readers that run side by side: one of each in turn, until all have ended."""
    left = [iter(steps) for steps in readers]
    mixed: list[Step] = []
    while left:
        taken = [(steps, next(steps, None)) for steps in left]
        mixed += [step for _, step in taken if step is not None]
        left = [steps for steps, step in taken if step is not None]
    return mixed


def hit_ratios(steps: Sequence[Step], room: int) -> HitRatios:
    """Play the accesses on a cache for `room` shards.

    Args:
        steps: in the order in which they happen.
        room: shards that the cache holds, at least as many as are in use at a time.
    """
    uses = len({(id(step.order), shard) for step in steps if step.counted for shard in step.shards})
    return HitRatios(
        ours=1 - _ours(steps, room) / uses,
        optimum=1 - _optimum(steps, room) / uses,
        lru=1 - _lru(steps, room) / uses,
        uses=uses,
    )


def _ours(steps: Sequence[Step], room: int) -> int:
    """How many shards the cache would fetch, ahead or not, or read past itself."""
    cache = _SimulatedCache(room)
    fetched = 0
    last = {step.reader: i for i, step in enumerate(steps)}
    for i, step in enumerate(steps):
        before = cache.fetched
        cache.play(step)
        fetched += (cache.fetched - before) * step.counted
        if i == last[step.reader]:
            cache.leave(step.reader)
    return fetched


class _SimulatedCache:
    """What the stores of all readers and the folder decide together."""

    def __init__(self, room: int) -> None:
        self.fetched = 0
        self._room = room
        self._came: dict[int, int] = {}  # shards that are kept, and when they came
        self._plans: dict[int, tuple[Order, Lookahead]] = {}  # of each reader

    def play(self, step: Step) -> None:
        plan = self._plan(step)
        plan.advance(step.position)
        while (span := plan.take()) is not None:
            if not self._fetch(span.shard, far=not plan.is_soon(span)):
                plan.hold(span)
                break
        for shard in step.shards:
            if not self._fetch(shard, far=False):
                self.fetched += 1  # read in place
                plan.pass_by(shard)

    def leave(self, reader: int) -> None:
        """A reader has ended: what it would have read next counts no longer."""
        del self._plans[reader]

    def _plan(self, step: Step) -> Lookahead:
        order, plan = self._plans.get(step.reader, (None, None))
        if plan is None or order is not step.order:
            plan = Lookahead(step.order, step.position, soon=shards_soon(self._room, FETCH_THREADS))
            self._plans[step.reader] = step.order, plan
        return plan

    def _fetch(self, shard: int, *, far: bool) -> bool:
        if shard in self._came:
            return True
        kept = list(self._came)
        asked = np.array([*kept, shard], np.int64)
        uses = np.min(
            [until_next_use(order, asked, plan.position) for order, plan in self._plans.values()], axis=0
        ).tolist()
        residents = [Resident(str(s), 1, use, self._came[s]) for s, use in zip(kept, uses, strict=False)]
        victims = plan_admission(
            residents, nbytes=1, reserved=0, budget=self._room, keep_until=FAR if far else uses[-1]
        )
        if victims is None:
            return False
        for victim in victims:
            del self._came[int(victim.key)]
        self.fetched += 1
        self._came[shard] = self.fetched
        return True


def _accesses(steps: Sequence[Step]) -> list[tuple[int, bool]]:
    return [(shard, step.counted) for step in steps for shard in step.shards]


def _optimum(steps: Sequence[Step], room: int) -> int:
    """The fewest misses that any policy can have, counting a shard that is not kept at each access."""
    accesses = _accesses(steps)
    never = len(accesses)
    next_access, seen = [never] * never, dict[int, int]()
    for i in range(never - 1, -1, -1):
        shard = accesses[i][0]
        next_access[i] = seen.get(shard, never)
        seen[shard] = i
    kept: dict[int, int] = {}  # shards, and their next access
    farthest: list[tuple[int, int]] = []  # (-next access, shard), a heap with entries that no longer hold
    misses = 0
    for i, (shard, counted) in enumerate(accesses):
        misses += counted and shard not in kept
        kept[shard] = next_access[i]
        heapq.heappush(farthest, (-next_access[i], shard))
        while len(kept) > room:
            use, victim = heapq.heappop(farthest)
            if kept.get(victim) == -use:
                del kept[victim]
    return misses


def _lru(steps: Sequence[Step], room: int) -> int:
    kept: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for shard, counted in _accesses(steps):
        misses += counted and shard not in kept
        kept[shard] = None
        kept.move_to_end(shard)
        if len(kept) > room:
            kept.popitem(last=False)
    return misses
