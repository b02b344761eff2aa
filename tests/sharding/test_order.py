"""The epoch's order: exact, the same from everywhere, different from epoch to epoch, and well mixed."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigError
from forebay.sharding import EpochOrder, NodeOrder, default_window, rank_slice
from forebay.sharding.staggered import StaggeredWindow

Int64s = npt.NDArray[np.int64]

ROWS = st.one_of(
    st.lists(st.integers(0, 12), max_size=40),
    st.lists(st.integers(0, 300), max_size=25),
    st.integers(1, 150).map(lambda shards: [3] * shards),
)
WINDOWS = st.one_of(st.none(), st.integers(1, 50))
PROPERTY = settings(max_examples=60, deadline=None)


def make_order(
    rows: list[int] | Int64s, *, seed: int = 0, epoch: int = 0, shuffle: bool = True, window: int | None = None
) -> EpochOrder:
    return EpochOrder(
        np.asarray(rows, np.int64), fingerprint="f00d", seed=seed, epoch=epoch, shuffle=shuffle, window=window
    )


def samples_at(order: EpochOrder, rows: list[int] | Int64s, positions: Int64s | None = None) -> Int64s:
    """Storage index of the sample at each position (all positions by default)."""
    shards, in_shard = order.locate(np.arange(order.samples) if positions is None else positions)
    rows = np.asarray(rows, np.int64)
    assert (in_shard >= 0).all()
    assert (in_shard < rows[shards]).all()
    return (np.cumsum(rows) - rows)[shards] + in_shard


@PROPERTY
@given(rows=ROWS, window=WINDOWS, shuffle=st.booleans(), seed=st.integers(), epoch=st.integers(0, 10))
def test_every_sample_comes_exactly_once(
    rows: list[int], window: int | None, shuffle: bool, seed: int, epoch: int
) -> None:
    order = make_order(rows, seed=seed, epoch=epoch, shuffle=shuffle, window=window)
    assert order.samples == sum(rows)
    assert np.array_equal(np.sort(samples_at(order, rows)), np.arange(sum(rows)))


@PROPERTY
@given(rows=ROWS, window=WINDOWS, batch_size=st.integers(1, 200), world_size=st.integers(1, 9), data=st.data())
def test_start_batch_size_and_world_size_change_nothing(
    rows: list[int], window: int | None, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    order = make_order(rows, window=window)
    whole = samples_at(order, rows)
    start = data.draw(st.integers(0, order.samples))
    resumed = make_order(rows, window=window)
    slices = [
        rank_slice(first, min(first + batch_size, order.samples), rank=rank, world_size=world_size)
        for first in range(start, order.samples, batch_size)
        for rank in range(world_size)
    ]
    pieces = [samples_at(resumed, rows, np.arange(*bounds)) for bounds in slices]
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *pieces]), whole[start:])


@PROPERTY
@given(rows=ROWS.filter(any), window=WINDOWS, data=st.data())
def test_positions_may_be_asked_for_in_any_order_and_again(
    rows: list[int], window: int | None, data: st.DataObject
) -> None:
    order = make_order(rows, window=window)
    whole = samples_at(order, rows)
    positions = np.array(data.draw(st.lists(st.integers(0, order.samples - 1), min_size=1, max_size=40)))
    assert np.array_equal(samples_at(order, rows, positions), whole[positions])


def test_scattered_positions_of_many_large_blocks_agree_with_neighbouring_ones() -> None:
    rows = np.random.default_rng(0).integers(0, 40, 6000)
    order = make_order(rows, window=500)
    whole = samples_at(order, rows)
    positions = np.random.default_rng(1).integers(0, order.samples, 3000)
    assert np.array_equal(samples_at(order, rows, positions), whole[positions])


def test_unordered_positions_within_few_blocks_of_a_huge_window_lay_each_block_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = make_order(np.full(70_000, 100), window=50_000)
    whole = order.locate(np.arange(4_000_000, 4_001_000))
    laid_out: list[int] = []
    lay_out = StaggeredWindow._lay_out

    def counting(self: StaggeredWindow, blocks: Int64s) -> Any:
        laid_out.extend(blocks.tolist())
        return lay_out(self, blocks)

    monkeypatch.setattr(StaggeredWindow, "_lay_out", counting)
    shuffled = np.random.default_rng(0).permutation(1000)
    shards, rows = order.locate(4_000_000 + shuffled)
    assert np.array_equal(shards, whole[0][shuffled])
    assert np.array_equal(rows, whole[1][shuffled])
    assert len(laid_out) == len(set(laid_out)) > 1


def test_threads_share_an_order() -> None:
    rows = np.random.default_rng(0).integers(0, 200, 700)
    order = make_order(rows)
    whole = samples_at(make_order(rows), rows)
    starts = np.random.default_rng(1).integers(0, order.samples - 256, 400).tolist()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: samples_at(order, rows, np.arange(start, start + 256)), starts))
    assert all(np.array_equal(part, whole[start : start + 256]) for start, part in zip(starts, found, strict=True))


@given(start=st.integers(0, 10**12), length=st.integers(0, 10**6), world_size=st.integers(1, 512))
def test_ranks_divide_positions_evenly_without_gap_or_overlap(start: int, length: int, world_size: int) -> None:
    slices = [rank_slice(start, start + length, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert slices[0][0] == start
    assert slices[-1][1] == start + length
    assert all(one[1] == other[0] for one, other in pairwise(slices))
    assert {stop - first for first, stop in slices} <= {length // world_size, -(-length // world_size)}


@PROPERTY
@given(rows=ROWS, window=WINDOWS, shuffle=st.booleans(), nodes=st.integers(1, 5))
def test_each_shard_is_one_nodes_and_nodes_together_plan_what_one_does(
    rows: list[int], window: int | None, shuffle: bool, nodes: int
) -> None:
    order = make_order(rows, shuffle=shuffle, window=window)
    shards = np.arange(len(rows))
    assert np.array_equal(np.sort(order.places(shards)), shards)
    parts = [NodeOrder(order, node=node, nodes=nodes) for node in range(nodes)]
    assert np.array_equal(sum(part.owns(shards).astype(int) for part in parts), np.ones(len(rows)))
    together = sorted((span for part in parts for span in part.spans(3)), key=lambda span: span.shard)
    assert together == sorted(order.spans(3), key=lambda span: span.shard)
    uses = np.min([part.next_use(shards, 0) for part in parts], axis=0)
    assert np.array_equal(uses, order.next_use(shards, 0))
    assert parts[0].following().order is order.following()


def test_places_are_those_in_which_shards_come() -> None:
    order = make_order([10] * 40, window=4)
    firsts = [span.shard for span in order.spans()]
    assert order.places(np.array(firsts)).tolist() == list(range(40))


def test_storage_order_is_storage_order() -> None:
    rows = [3, 0, 5, 1]
    assert samples_at(make_order(rows, shuffle=False, window=2), rows).tolist() == list(range(9))


@pytest.mark.parametrize(
    ("rows", "window"), [([20], None), ([1] * 20, None), ([1] * 20, 3), ([4] * 5, 1), ([9] * 40, 4)]
)
def test_no_two_of_many_seeds_epochs_and_data_sets_agree(rows: list[int], window: int | None) -> None:
    orders = [make_order(rows, seed=seed, window=window) for seed in range(-50, 700)]
    orders += [make_order(rows, epoch=epoch, window=window) for epoch in range(1, 100)]
    orders += [make_order(rows, seed=2**64 - seed, epoch=7, window=window) for seed in range(50)]
    orders.append(EpochOrder(np.array(rows), fingerprint="beef", seed=0, epoch=0, shuffle=True, window=window))
    seen = {samples_at(order, rows).tobytes() for order in orders}
    assert len(seen) == len(orders)


@pytest.mark.parametrize("window", [2, 3, 8, 64])
@pytest.mark.parametrize("average", [1, 2, 3, 5, 7, 12, 40, 64, 100, 1000])
def test_neighbours_are_of_one_shard_at_most_1_2_times_as_often_as_the_window_says(window: int, average: int) -> None:
    num_shards = max(200, min(5000, 400_000 // average))
    rows = np.random.default_rng(average).integers(-(-average * 8 // 10), average * 12 // 10 + 1, num_shards)
    shards, _ = make_order(rows, window=window).locate(np.arange(rows.sum()))
    assert np.mean(shards[1:] == shards[:-1]) <= 1.2 / window


def test_the_default_window_keeps_its_word_for_the_smallest_data_set_that_it_does_not_cover() -> None:
    shards, _ = make_order([500] * 129).locate(np.arange(129 * 500))
    assert np.mean(shards[1:] == shards[:-1]) <= 1.2 / 64


@pytest.mark.parametrize("rows", [[1_000_000], [1000] * 1000, [100_000] * 10])
def test_the_exact_shuffle_of_a_million_forgets_storage_order(rows: list[int]) -> None:
    samples = samples_at(make_order(rows, window=len(rows)), rows)
    positions = np.arange(len(samples))
    assert abs(np.corrcoef(positions, samples)[0, 1]) < 0.01
    assert abs(np.corrcoef(samples[1:], samples[:-1])[0, 1]) < 0.01


def test_two_epochs_of_the_exact_shuffle_are_unrelated() -> None:
    rows = [1000] * 200
    one, other = (samples_at(make_order(rows, window=200, epoch=epoch), rows) for epoch in (0, 1))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.01
    assert np.count_nonzero(one == other) < 10


@pytest.mark.parametrize("window", [1, 4, 64])
def test_rows_of_a_shard_come_in_random_order(window: int) -> None:
    rows = [1500] * 150
    shards, in_shard = make_order(rows, window=window).locate(np.arange(150 * 1500))
    by_shard = in_shard[np.argsort(shards, kind="stable")].reshape(150, 1500)
    correlations = [np.corrcoef(np.arange(1500), shard)[0, 1] for shard in by_shard]
    assert abs(np.mean(correlations)) < 4 / math.sqrt(150 * 1500)
    assert np.max(np.abs(correlations)) < 5 / math.sqrt(1500)


@pytest.mark.parametrize(("rows", "window"), [([100], None), ([10] * 10, None), ([10] * 10, 3), ([1] * 100, 7)])
def test_every_sample_is_first_equally_often(rows: list[int], window: int | None) -> None:
    epochs = 2000
    first = [
        samples_at(make_order(rows, epoch=epoch, window=window), rows, np.zeros(1, np.int64))[0]
        for epoch in range(epochs)
    ]
    counts = np.bincount(first, minlength=100)
    expected = epochs / 100
    z = (((counts - expected) ** 2 / expected).sum() - 99) / math.sqrt(2 * 99)
    assert abs(z) < 4


def test_every_sample_comes_at_every_place_of_the_exact_shuffle_equally_often() -> None:
    rows, epochs = [7, 20, 3, 20], 2000
    counts = np.zeros((50, 50), np.int64)
    for epoch in range(epochs):
        counts[samples_at(make_order(rows, epoch=epoch), rows), np.arange(50)] += 1
    expected = epochs / 50
    z = (((counts - expected) ** 2 / expected).sum() - 49 * 49) / math.sqrt(2 * 49 * 49)
    assert abs(z) < 4


@PROPERTY
@given(rows=ROWS, window=WINDOWS, shuffle=st.booleans(), data=st.data())
def test_spans_hold_every_use_of_every_shard(
    rows: list[int], window: int | None, shuffle: bool, data: st.DataObject
) -> None:
    order = make_order(rows, window=window, shuffle=shuffle)
    start = data.draw(st.integers(0, order.samples))
    spans = list(order.spans(start))
    shards, _ = order.locate(np.arange(start, order.samples))
    assert [span.first for span in spans] == sorted(span.first for span in spans)
    by_shard = {span.shard: span for span in spans}
    assert len(by_shard) == len(spans)
    assert set(shards.tolist()) <= set(by_shard)
    for position, shard in enumerate(shards.tolist(), start):
        assert start <= by_shard[shard].first <= position < by_shard[shard].last <= order.samples


@PROPERTY
@given(rows=ROWS.filter(any), window=WINDOWS, shuffle=st.booleans(), data=st.data())
def test_the_next_use_is_never_later_than_the_use_and_never_told_of_a_spent_shard(
    rows: list[int], window: int | None, shuffle: bool, data: st.DataObject
) -> None:
    order = make_order(rows, window=window, shuffle=shuffle)
    position = data.draw(st.integers(0, order.samples))
    uses = order.next_use(np.arange(len(rows)), position)
    shards, _ = order.locate(np.arange(order.samples))
    spans = {span.shard: span for span in order.spans(position)}
    for shard, use in enumerate(uses.tolist()):
        remaining = np.flatnonzero(shards[position:] == shard) + position
        if len(remaining):
            assert position <= use <= remaining[0]
        if use < order.samples:
            assert spans[shard].first <= use < spans[shard].last
        if shard not in spans:
            assert use == order.samples


def test_no_more_shards_than_the_window_are_in_use_between_the_ends_of_an_epoch() -> None:
    rows, window = np.random.default_rng(0).integers(50, 150, 300), 20
    order = make_order(rows, window=window)
    spans = list(order.spans())
    for position in range(0, order.samples, 97):
        in_use = sum(span.first <= position < span.last for span in spans)
        assert in_use <= window


def test_a_million_shards_are_looked_at_one_by_one_and_from_the_middle() -> None:
    order = make_order(np.full(10**6, 1000))
    middle = list(islice(order.spans(5 * 10**8), 100))
    assert len(middle) == 100
    assert {span.first for span in middle[:64]} == {5 * 10**8}
    assert all(span.first > 5 * 10**8 for span in middle[64:])


def test_memory_follows_the_shards_and_not_the_samples() -> None:
    tracemalloc.start()
    try:
        peaks = []
        for rows in (np.full(10**6, 10), np.full(10**6, 10**6)):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            make_order(rows).locate(np.arange(256))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert max(peaks) < 100_000_000


@pytest.mark.parametrize("rows", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("window", [None, 1])
def test_no_samples_are_an_order_too(rows: list[int], shuffle: bool, window: int | None) -> None:
    order = make_order(rows, shuffle=shuffle, window=window)
    assert order.samples == 0
    assert [part.tolist() for part in order.locate(np.empty(0, np.int64))] == [[], []]
    assert list(order.spans()) == []
    assert order.next_use(np.arange(len(rows)), 0).tolist() == [0] * len(rows)


def test_the_default_window_is_64_and_all_shards_up_to_128() -> None:
    assert [default_window(shards) for shards in (1, 64, 128, 129, 10**6)] == [1, 64, 128, 64, 64]
    assert make_order([5] * 100).window == 100
    assert make_order([5] * 200).window == 64
    assert make_order([5] * 100, window=1000).window == 100


def test_a_window_of_no_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match="window=0"):
        make_order([5], window=0)


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_the_epoch_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match=f"position {position} of an epoch of 10 samples"):
        make_order([5, 5]).locate(np.array([3, position]))


def test_golden_values() -> None:
    twenty = [8, 11, 5, 16, 14, 1, 15, 10, 6, 9, 17, 2, 12, 3, 7, 13, 0, 19, 4, 18]
    window_of_2 = [10, 9, 23, 11, 8, 20, 0, 3, 22, 21, 1, 2, 19, 16, 18, 4, 7, 17, 13, 12, 5, 6, 14, 15]
    next_epoch = [14, 12, 8, 15, 13, 9, 10, 6, 11, 4, 21, 7, 5, 22, 0, 1, 20, 23, 3, 17, 18, 2, 19, 16]
    default = [123371, 133877, 11459, 243705, 258247, 164921]
    billion = [802910704, 357720347, 109133877, 46825475]
    assert samples_at(make_order([20]), [20]).tolist() == twenty
    assert samples_at(make_order([4] * 6, seed=1, window=2), [4] * 6).tolist() == window_of_2
    assert samples_at(make_order([4] * 6, seed=1, epoch=1, window=2), [4] * 6).tolist() == next_epoch
    assert samples_at(make_order([1000] * 300), [1000] * 300, np.arange(150_000, 150_006)).tolist() == default
    assert samples_at(make_order([10**6] * 1000, window=1000), [10**6] * 1000, np.arange(4)).tolist() == billion
