"""The arithmetic of batches: who takes which positions, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.loader.batches import BatchGrid, BatchPlaces, Tail

TAILS: list[Tail] = ["drop", "pad", "short"]

grids = st.builds(
    BatchGrid,
    samples=st.integers(1, 500),
    global_batch_size=st.integers(1, 600),
    tail=st.sampled_from(TAILS),
    start=st.just(0),
)


def parts_of(grid: BatchGrid, batch: int, world_size: int) -> list[BatchPlaces]:
    """What each rank takes."""
    return [grid.rank_places(batch, rank=rank, world_size=world_size) for rank in range(world_size)]


@given(grid=grids, world_size=st.integers(1, 9))
def test_ranks_together_take_each_position_once(grid: BatchGrid, world_size: int) -> None:
    taken = []
    for batch in range(len(grid)):
        parts = parts_of(grid, batch, world_size)
        assert all(len(part.positions) for part in parts), "a rank without samples would leave the others waiting"
        taken += [p for part in parts for p in part.positions[part.valid].tolist()]
    whole = grid.samples // grid.global_batch_size * grid.global_batch_size if grid.tail == "drop" else grid.samples
    assert taken == list(range(whole))


@given(grid=grids, batches=st.integers(0, 600), size=st.integers(1, 600))
def test_going_on_with_another_batch_size_delivers_exactly_the_rest(grid: BatchGrid, batches: int, size: int) -> None:
    position = grid.position_after(batches)
    rest = BatchGrid(samples=grid.samples, global_batch_size=size, tail="short", start=position)
    seen = [p for b in range(len(rest)) for p in rest.rank_places(b, rank=0, world_size=1).positions.tolist()]
    assert seen == list(range(position, grid.samples))


@given(grid=grids, world_size=st.integers(1, 9))
def test_shares_of_a_batch_differ_by_one_sample_at_most(grid: BatchGrid, world_size: int) -> None:
    for batch in range(len(grid)):
        shares = [len(part.positions) for part in parts_of(grid, batch, world_size)]
        assert max(shares) - min(shares) <= 1


@given(grid=grids, world_size=st.integers(1, 9))
def test_a_padded_tail_is_as_large_as_the_other_batches_on_every_rank(grid: BatchGrid, world_size: int) -> None:
    padded = replace(grid, tail="pad")
    sizes = {tuple(len(part.positions) for part in parts_of(padded, b, world_size)) for b in range(len(padded))}
    assert len(sizes) == 1
    assert len(padded) == len(replace(grid, tail="short"))


@given(grid=grids, world_size=st.integers(1, 9))
def test_weighted_means_of_the_ranks_are_the_mean_over_the_valid_samples(grid: BatchGrid, world_size: int) -> None:
    for batch in range(len(grid)):
        means = []
        for part in parts_of(grid, batch, world_size):
            weight = grid.weight(batch, int(part.valid.sum()), world_size=world_size)
            means.append(weight * part.positions[part.valid].mean() if part.valid.any() else weight)
        first, stop = grid.bounds(batch)
        assert np.mean(means) == pytest.approx(np.arange(first, stop).mean())


@given(grid=grids, world_size=st.integers(1, 9))
def test_repetitions_are_of_the_batch_and_no_two_places_are_the_same(grid: BatchGrid, world_size: int) -> None:
    for batch in range(len(grid)):
        first, stop = grid.bounds(batch)
        places = grid.places(batch, world_size=world_size)
        assert set(places.positions.tolist()) == set(range(first, stop))
        pairs = set(zip(places.positions.tolist(), places.occurrences.tolist(), strict=True))
        assert len(pairs) == len(places.positions)


@given(grid=grids, world_size=st.integers(1, 9))
def test_the_samples_of_a_rank_are_those_of_its_batches(grid: BatchGrid, world_size: int) -> None:
    for rank in range(world_size):
        sizes = [len(grid.rank_places(b, rank=rank, world_size=world_size).positions) for b in range(len(grid))]
        assert grid.rank_samples(rank=rank, world_size=world_size) == sum(sizes)


@pytest.mark.parametrize("even", [False, True])
def test_a_tail_smaller_than_the_ranks_is_padded_and_marked(even: bool) -> None:
    grid = BatchGrid(samples=10, global_batch_size=8, tail="short", even=even)
    parts = parts_of(grid, 1, 4)
    assert [part.positions.tolist() for part in parts] == [[8], [9], [8], [9]]
    assert [part.valid.tolist() for part in parts] == [[True], [True], [False], [False]]
    assert grid.repeats(4) == 2
    assert replace(grid, tail="drop").repeats(4) == 0


def test_one_sample_fills_a_padded_batch_each_time_as_another_occurrence() -> None:
    grid = BatchGrid(samples=1, global_batch_size=6, tail="pad")
    parts = parts_of(grid, 0, 3)
    assert [part.positions.tolist() for part in parts] == [[0, 0]] * 3
    assert [part.occurrences.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [grid.weight(0, int(part.valid.sum()), world_size=3) for part in parts] == [3, 0, 0]
