from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.lookahead import Lookahead, NoPlan
from forebay.cache.plan import Resident, plan_admission
from forebay.sharding import ShardSpan

ROWS = 10


class Order:
    """An oracle of its own: shards in a list, each used over `overlap` shards' worth of positions."""

    def __init__(self, order: list[int], overlap: int = 1) -> None:
        self.samples = len(order) * ROWS
        self.first = {shard: max(0, place - overlap + 1) * ROWS for place, shard in enumerate(order)}
        self.last = {shard: (place + 1) * ROWS for place, shard in enumerate(order)}
        self.order = order

    def spans(self) -> Iterator[ShardSpan]:
        for shard in self.order:
            yield ShardSpan(shard, self.first[shard], self.last[shard])

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        uses = [max(position, self.first[s]) if position < self.last[s] else self.samples for s in shards.tolist()]
        return np.array(uses, np.int64)


def lookahead(order: Order, soon: int = 2) -> Lookahead:
    return Lookahead(order.spans(), order.next_use, soon=soon)


def test_shards_come_in_order_of_first_use_and_then_none() -> None:
    plan = lookahead(Order([3, 1, 2]))
    assert [span.shard for span in iter(plan.take, None)] == [3, 1, 2]
    assert plan.take() is None


def test_reading_starts_at_the_first_span() -> None:
    order = Order([3, 1, 2])
    spans = [ShardSpan(1, 15, 20), ShardSpan(2, 20, 30)]
    assert Lookahead(iter(spans), order.next_use, soon=1).position == 15


def test_an_order_of_nothing_has_nothing_to_fetch() -> None:
    assert lookahead(Order([])).take() is None


def test_a_shard_without_room_is_not_asked_for_again_before_something_has_changed() -> None:
    plan = lookahead(Order([0, 1, 2, 3, 4, 5]))
    taken = [plan.take() for _ in range(5)]
    assert taken[4] is not None
    plan.hold(taken[4])
    assert plan.take() is None
    assert not plan.advance(9)
    assert plan.take() is None
    assert plan.advance(10)  # shard 0 has been read to its end
    assert plan.take() == taken[4]


def test_a_shard_without_room_is_asked_for_again_when_it_is_wanted_soon() -> None:
    plan = lookahead(Order([0, 1, 2, 3, 4, 5], overlap=3))
    taken = [plan.take() for _ in range(6)]
    last = taken[5]
    assert last is not None
    plan.hold(last)
    assert not plan.is_soon(last)
    assert plan.advance(10)
    assert plan.is_soon(last)


def test_a_shard_that_is_read_past_the_cache_is_not_fetched_any_more() -> None:
    plan = lookahead(Order([0, 1, 2]))
    first = plan.take()
    assert first is not None
    plan.hold(first)
    plan.pass_by(0)
    plan.pass_by(1)
    plan.advance(1)
    plan.idle_until = 0
    following = plan.take()
    assert following is not None
    assert following.shard == 2


def test_after_a_failed_fetch_nothing_is_asked_for_before_the_reader_has_come_further() -> None:
    plan = lookahead(Order([0, 1, 2]))
    plan.take()
    plan.pause()
    assert plan.take() is None
    assert plan.advance(1)
    assert plan.take() is not None


def test_without_a_plan_all_shards_are_alike_and_none_is_fetched_ahead() -> None:
    plan = NoPlan()
    assert plan.take() is None
    assert not plan.advance(100)
    assert plan.next_uses(np.array([4, 7, 9])).tolist() == [0, 0, 0]


@settings(deadline=None, max_examples=50)
@given(data=st.data(), shards=st.integers(1, 12), overlap=st.integers(1, 4), soon=st.integers(1, 4))
def test_whatever_finds_no_room_every_shard_is_offered_until_it_is_fetched_or_read_out(
    data: st.DataObject, shards: int, overlap: int, soon: int
) -> None:
    order = Order(data.draw(st.permutations(range(shards))), overlap)
    plan = lookahead(order, soon)
    fetched: set[int] = set()
    offered: set[int] = set()
    for position in range(0, order.samples + 1, 5):
        plan.advance(position)
        while (span := plan.take()) is not None:
            assert span.last > position
            assert span.shard not in fetched
            offered.add(span.shard)
            if data.draw(st.booleans()):
                fetched.add(span.shard)
            else:
                plan.hold(span)
                if plan.idle_until <= position:
                    break
    assert offered == set(range(shards))


class OneCache:
    """A cache of `room` shards of one byte, whose fetches take no time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.came: dict[int, int] = {}
        self.fetched = 0

    def fetch(self, plan: Lookahead, shard: int, keep_until: int) -> bool:
        uses = plan.next_uses(np.array(list(self.came), np.int64)).tolist()
        here = [Resident(str(s), 1, use, came) for (s, came), use in zip(self.came.items(), uses, strict=True)]
        victims = plan_admission(here, nbytes=1, reserved=0, budget=self.room, keep_until=keep_until)
        if victims is None:
            return False
        for victim in victims:
            del self.came[int(victim.key)]
        self.fetched += 1
        self.came[shard] = self.fetched
        return True

    def read_epoch(self, order: Order, *, far_rule: bool) -> int:
        """Read all shards in order, fetching ahead; how many openings were not served by shards kept from before."""
        plan = lookahead(order, soon=4)
        self.fetched = past = 0
        for place, shard in enumerate(order.order):
            plan.advance(place * ROWS)
            while (span := plan.take()) is not None:
                if span.shard in self.came:
                    continue
                use = int(plan.next_uses(np.array([span.shard]))[0])
                if not self.fetch(plan, span.shard, order.samples - 1 if far_rule and not plan.is_soon(span) else use):
                    plan.hold(span)
                    break
            if shard not in self.came:
                past += 1
                plan.pass_by(shard)
        return self.fetched + past


def hit_ratio(*, shards: int, room: int, epochs: int, overlap: int, far_rule: bool) -> float:
    rng = random.Random(2)
    cache = OneCache(room)
    orders = [Order(rng.sample(range(shards), shards), overlap) for _ in range(epochs)]
    misses = [cache.read_epoch(order, far_rule=far_rule) for order in orders]
    return 1 - sum(misses[1:]) / (shards * (epochs - 1))


@pytest.mark.parametrize("overlap", [1, 4])
def test_fetching_ahead_keeps_the_hit_ratio_because_far_fetches_only_replace_what_is_done(overlap: int) -> None:
    careful = hit_ratio(shards=100, room=50, epochs=8, overlap=overlap, far_rule=True)
    eager = hit_ratio(shards=100, room=50, epochs=8, overlap=overlap, far_rule=False)
    assert careful >= 0.45
    assert eager <= 0.3
