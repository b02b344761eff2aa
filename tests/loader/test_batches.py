"""The arithmetic of batches: who takes which positions, whatever the sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.loader.batches import BatchGrid

grids = st.builds(
    BatchGrid,
    samples=st.integers(1, 500),
    global_batch_size=st.integers(1, 600),
    drop_last=st.booleans(),
    start=st.just(0),
)


@given(grid=grids, world_size=st.integers(1, 9))
def test_ranks_together_take_each_position_once(grid: BatchGrid, world_size: int) -> None:
    taken = []
    for batch in range(len(grid)):
        parts = [grid.rank_positions(batch, rank=r, world_size=world_size) for r in range(world_size)]
        assert all(len(positions) for positions, _ in parts), "a rank without samples would leave the others waiting"
        taken += [p for positions, valid in parts for p in positions[valid].tolist()]
    whole = grid.samples // grid.global_batch_size * grid.global_batch_size if grid.drop_last else grid.samples
    assert taken == list(range(whole))


@given(grid=grids, batches=st.integers(0, 600), size=st.integers(1, 600))
def test_going_on_with_another_batch_size_delivers_exactly_the_rest(grid: BatchGrid, batches: int, size: int) -> None:
    position = grid.position_after(batches)
    rest = BatchGrid(samples=grid.samples, global_batch_size=size, drop_last=False, start=position)
    seen = [p for b in range(len(rest)) for p in rest.rank_positions(b, rank=0, world_size=1)[0].tolist()]
    assert seen == list(range(position, grid.samples))


@given(grid=grids, world_size=st.integers(1, 9))
def test_shares_of_a_batch_differ_by_one_sample_at_most(grid: BatchGrid, world_size: int) -> None:
    for batch in range(len(grid)):
        shares = [int(grid.rank_positions(batch, rank=r, world_size=world_size)[1].sum()) for r in range(world_size)]
        assert max(shares) - min(shares) <= 1


def test_a_tail_smaller_than_the_ranks_is_padded_and_marked() -> None:
    grid = BatchGrid(samples=10, global_batch_size=8, drop_last=False)
    parts = [grid.rank_positions(1, rank=r, world_size=4) for r in range(4)]
    assert sorted(int(v.sum()) for _, v in parts) == [0, 0, 1, 1]
    assert all(positions.tolist() == [9] for positions, valid in parts if not valid.any())
    assert np.concatenate([p[v] for p, v in parts]).tolist() == [8, 9]
