from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.lookahead import Lookahead
from forebay.sharding import ShardSpan

ROWS = 10


class Order:
    """An oracle of its own: shards in a list, each used over `overlap` shards' worth of positions."""

    def __init__(self, order: list[int], overlap: int = 1) -> None:
        self.samples = len(order) * ROWS
        self.first = {shard: max(0, place - overlap + 1) * ROWS for place, shard in enumerate(order)}
        self.last = {shard: (place + 1) * ROWS for place, shard in enumerate(order)}
        self.order = order

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        for shard in self.order:
            if self.last[shard] > start:
                yield ShardSpan(shard, max(start, self.first[shard]), self.last[shard])

    def following(self) -> Order:
        return self

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        uses = [max(position, self.first[s]) if position < self.last[s] else self.samples for s in shards.tolist()]
        return np.array(uses, np.int64)


def lookahead(order: Order, soon: int = 2) -> Lookahead:
    return Lookahead(order, 0, soon=soon)


def test_shards_come_in_order_of_first_use_and_then_none() -> None:
    plan = lookahead(Order([3, 1, 2]))
    assert [span.shard for span in iter(plan.take, None)] == [3, 1, 2]
    assert plan.take() is None


def test_reading_starts_in_the_middle() -> None:
    plan = Lookahead(Order([3, 1, 2]), 15, soon=1)
    assert plan.position == 15
    assert [span.shard for span in iter(plan.take, None)] == [1, 2]


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


def test_without_an_order_nothing_is_fetched_ahead_and_nothing_is_in_use() -> None:
    plan = Lookahead(None, 0, soon=0)
    assert plan.take() is None
    assert not plan.in_use(4).any()


def test_shards_in_use_are_those_whose_window_holds_the_position() -> None:
    plan = lookahead(Order([3, 1, 2, 0], overlap=2))
    plan.advance(15)
    assert plan.in_use(4).tolist() == [False, True, True, False]
    plan.advance(40)
    assert not plan.in_use(4).any()


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
