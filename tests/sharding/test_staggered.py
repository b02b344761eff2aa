"""The staggered window against a plain reading of its definition: which shard gives how many samples to which block."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.sharding.staggered import StaggeredWindow


def staggered(rows: list[int], window: int) -> StaggeredWindow:
    return StaggeredWindow(np.array(rows, np.int64), fingerprint="f", seed=3, epoch=0, window=window)


def plain_blocks(rows_by_place: list[int], window: int) -> list[Counter[int]]:
    """Samples of each place in each block, made part by part."""
    num_shards = len(rows_by_place)
    steps: list[Counter[int]] = [Counter() for _ in range(num_shards + window - 1)]
    for place, rows in enumerate(rows_by_place):
        if rows < min(window, np.ceil(2 * window**0.5)):
            for row in range(rows):
                steps[place + row * window // rows][place] += 1
        else:
            for part in range(window):
                steps[place + part][place] += rows // window + (part < rows % window)
    blocks = [sum(steps[: window - 1], Counter()), *steps[window - 1 : num_shards], sum(steps[num_shards:], Counter())]
    return [+block for block in blocks if block.total()]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.one_of(st.integers(0, 9), st.integers(0, 90)), min_size=2, max_size=40), data=st.data())
def test_every_block_holds_the_parts_that_the_definition_gives_it(rows: list[int], data: st.DataObject) -> None:
    window = data.draw(st.integers(1, len(rows) - 1))
    order = staggered(rows, window)
    shard_of_place, _, _ = order.uses(np.arange(len(rows)))
    place_of_shard = np.argsort(shard_of_place)
    assert np.array_equal(shard_of_place[place_of_shard], np.arange(len(rows)))
    blocks = plain_blocks([rows[shard] for shard in shard_of_place], window)
    begin = 0
    for block in blocks:
        shards, _ = order.locate(np.arange(begin, begin + block.total()))
        assert Counter(place_of_shard[shards].tolist()) == block
        begin += block.total()
    assert begin == order.samples


@pytest.mark.parametrize("rows", [2, 3, 5, 7])
def test_the_rows_of_a_small_shard_are_kept_apart(rows: int) -> None:
    order = staggered([rows] * 500, 64)
    shards, _ = order.locate(np.arange(order.samples))
    middle = shards[64 * rows : -64 * rows]
    last: dict[int, int] = {}
    for position, shard in enumerate(middle.tolist()):
        assert position - last.get(shard, -(10**9)) > rows * (64 // rows - 2)
        last[shard] = position


def test_the_shard_order_is_another_in_every_epoch() -> None:
    orders = set()
    for epoch in range(200):
        order = StaggeredWindow(np.ones(50, np.int64), fingerprint="f", seed=3, epoch=epoch, window=4)
        orders.add(order.uses(np.arange(50))[0].tobytes())
    assert len(orders) == 200
