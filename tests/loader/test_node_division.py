"""The division of global batches over nodes: the same samples whatever the ranks, and as few of others' as can be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.loader.batch_plans import OrderPlan, PlannedSamples
from forebay.loader.batches import BatchGrid, Tail
from forebay.loader.node_division import divide_places, node_of_ranks
from forebay.loader.ranks import Ranks
from forebay.sharding import EpochOrder, rank_slice

ROWS = np.array([7, 0, 31, 12, 5, 40, 18, 9, 3, 22, 1, 14], np.int64)
RANKS = (1, 2, 3, 4, 7, 8)
TAILS: list[Tail] = ["drop", "pad", "short"]


def plans(
    grid: BatchGrid, world_size: int, nodes: int, *, rows: npt.NDArray[np.int64] = ROWS, window: int = 5
) -> list[OrderPlan]:
    """One plan a rank."""
    order = EpochOrder(rows, fingerprint="f00d", seed=3, epoch=1, shuffle=True, window=window)
    node_of = node_of_ranks(world_size, nodes)
    return [OrderPlan(order, grid, Ranks(rank, world_size, False, node_of)) for rank in range(world_size)]


def samples_of(parts: list[PlannedSamples]) -> set[tuple[int, int]]:
    """Shard and row of all valid samples; each of them once."""
    found = [
        (int(shard), int(row))
        for part in parts
        for shard, row, valid in zip(part.shards, part.rows, part.valid, strict=True)
        if valid
    ]
    assert len(set(found)) == len(found)
    return set(found)


@settings(max_examples=10, deadline=None)
@given(size=st.integers(5, 60), tail=st.sampled_from(TAILS), start=st.integers(0, 100), data=st.data())
def test_global_batches_have_the_same_samples_on_any_number_of_ranks_and_nodes(
    size: int, tail: Tail, start: int, data: st.DataObject
) -> None:
    grid = BatchGrid(samples=int(ROWS.sum()), global_batch_size=size, tail=tail, start=start)
    alone = plans(grid, 1, 1)
    for world_size in RANKS:
        nodes = data.draw(st.integers(1, world_size))
        spread = plans(grid, world_size, nodes)
        for number in {0, len(grid) // 2, len(grid) - 1} & set(range(len(grid))):
            parts = [plan.samples(number) for plan in spread]
            assert samples_of(parts) == samples_of([alone[0].samples(number)])
            assert all(len(part.shards) for part in parts)
            assert sum(part.weight for part in parts) == pytest.approx(world_size)
            sizes = [len(part.shards) for part in parts]
            assert max(sizes) - min(sizes) <= 1


@given(
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    node_of=st.lists(st.integers(0, 4), min_size=1, max_size=8),
)
def test_every_place_is_taken_once_and_a_node_with_room_takes_all_that_it_owns(
    owners: list[int], node_of: list[int]
) -> None:
    numbers = np.unique(node_of, return_inverse=True)[1].tolist()
    owned = np.array(owners) % (max(numbers) + 1)
    parts = [divide_places(owned, numbers, rank) for rank in range(len(numbers))]
    assert sorted(place for part in parts for place in part.tolist()) == list(range(len(owners)))
    bounds = [rank_slice(0, len(owners), rank=rank, world_size=len(numbers)) for rank in range(len(numbers))]
    assert [len(part) for part in parts] == [stop - first for first, stop in bounds]
    for node in range(max(numbers) + 1):
        share = sum(len(part) for rank, part in enumerate(parts) if numbers[rank] == node)
        kept = sum(int((owned[part] == node).sum()) for rank, part in enumerate(parts) if numbers[rank] == node)
        if max(numbers):
            assert kept == min(share, int((owned == node).sum()))


def test_one_node_takes_contiguous_slices() -> None:
    owners = np.array([2, 0, 1, 1, 0, 2, 2])
    assert [divide_places(owners, (0, 0, 0), rank).tolist() for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]


def test_each_node_keeps_its_own_and_the_rest_goes_where_there_is_room() -> None:
    owners = np.array([0, 0, 0, 1, 0, 0, 1, 0])
    parts = [divide_places(owners, (0, 0, 1, 1), rank).tolist() for rank in range(4)]
    assert parts == [[0, 2], [1, 4], [3, 5], [6, 7]]


def test_neighbouring_ranks_are_on_one_node() -> None:
    assert node_of_ranks(8, 2) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert node_of_ranks(7, 3) == (0, 0, 1, 1, 2, 2, 2)
    assert node_of_ranks(3, 1) == (0, 0, 0)


@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize("size", [1024, 4096])
def test_few_samples_are_of_other_nodes_shards(nodes: int, size: int) -> None:
    rows = np.full(128, 500, np.int64)
    grid = BatchGrid(samples=int(rows.sum()), global_batch_size=size, tail="drop")
    spread = plans(grid, nodes, nodes, rows=rows, window=64)
    parts = [plan.samples(number) for plan in spread for number in range(len(grid))]
    excess = sum(part.excess for part in parts) / sum(len(part.shards) for part in parts)
    assert 0 < excess < 0.1
