"""What frameworks rely on, asked of the loader itself, where none of them is needed: sampler, epochs, even batches."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from forebay import DataLoader, ShardDataset
from forebay.errors import ClosedError, ConfigError
from forebay.loader.batches import BatchGrid, Tail
from tests.frameworks.samples import ROWS, Rows, expected, shard_loader, told


def read(loader: Any) -> list[list[int]]:
    return [told(batch) for batch in loader]


def sampler_of(loader: DataLoader) -> Any:
    return loader.sampler


@given(
    samples=st.integers(1, 200),
    size=st.integers(1, 40),
    world_size=st.integers(1, 9),
    tail=st.sampled_from(["drop", "short"]),
)
def test_even_ranks_get_as_many_samples_of_a_short_batch_and_repetitions_come_last(
    samples: int, size: int, world_size: int, tail: Tail
) -> None:
    plain = BatchGrid(samples=samples, global_batch_size=size, tail=tail)
    even = replace(plain, even=True)
    for number in range(len(even)):
        first, stop = even.bounds(number)
        if stop - first == size:
            continue
        shares = [even.rank_places(number, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert len({len(share.positions) for share in shares}) == 1
        together = [position for share in shares for position in share.positions.tolist()]
        valid = [good for share in shares for good in share.valid.tolist()]
        assert together[: stop - first] == list(range(first, stop))
        assert set(together[stop - first :]) <= set(range(first, stop))
        assert valid == [True] * (stop - first) + [False] * (len(together) - stop + first)
    assert len(even) == len(plain)


@pytest.mark.parametrize(("batch", "drop_last"), [(4, False), (4, True), (100, False), (1, False)])
def test_the_sampler_is_as_long_as_its_ranks_part(shards: Path, batch: int, drop_last: bool) -> None:
    for rank in range(3):
        loader = shard_loader(shards, batch_size=batch, drop_last=drop_last, rank=rank, world_size=3)
        assert isinstance(loader.sampler, DistributedSampler)
        assert len(sampler_of(loader)) == sum(map(len, read(loader)))


def test_nobody_else_goes_through_the_sampler_of_shards(shards: Path) -> None:
    loader = shard_loader(shards)
    for sampler in (loader.sampler, loader.batch_sampler):
        assert sampler is not None
        with pytest.raises(ConfigError, match="the loader's own"):
            list(sampler)


def test_the_sampler_names_the_next_epoch(shards: Path) -> None:
    epochs = expected(shards, 3, rank=0, world_size=1)
    loader = shard_loader(shards)
    sampler_of(loader).set_epoch(2)
    assert read(loader) == epochs[2]
    sampler_of(loader).set_epoch(1)
    assert read(loader) == epochs[1]
    for _left_early in loader:
        break
    sampler_of(loader).set_epoch(0)
    assert read(loader) == epochs[0]
    assert read(loader) == epochs[1]


def test_an_epoch_told_after_iter_is_that_of_the_pass_that_gave_nothing_yet(shards: Path) -> None:
    epochs = expected(shards, 4, rank=0, world_size=1)
    loader = shard_loader(shards)
    iterator = iter(loader)
    sampler_of(loader).set_epoch(0)
    sampler_of(loader).set_epoch(2)
    assert read(iterator) == epochs[2]
    iterator = iter(loader)
    sampler_of(loader).set_epoch(2)
    again = iter(loader)  # as Lightning does that makes its loaders anew
    assert read(again) == epochs[2]
    iterator.close()
    assert read(loader) == epochs[3]


def test_an_epoch_told_amid_a_pass_is_the_next_ones(shards: Path) -> None:
    epochs = expected(shards, 6, rank=0, world_size=1)
    loader = shard_loader(shards)
    iterator = iter(loader)
    batches = [told(next(iterator))]
    sampler_of(loader).set_epoch(5)
    assert batches + read(iterator) == epochs[0]
    assert read(loader) == epochs[5]


@pytest.mark.parametrize("by", ["loader", "sampler"])
def test_a_loaded_state_keeps_its_place_where_an_epoch_is_told(shards: Path, by: str) -> None:
    epochs = expected(shards, 3, rank=0, world_size=1)
    loader = shard_loader(shards)
    loader.set_epoch(1)
    iterator = iter(loader)
    states = [loader.state_dict()]
    states += [loader.state_dict() for _ in iterator]
    for done, epoch in ((0, 1), (3, 1), (3, 0), (len(epochs[1]), 2)):
        resumed = shard_loader(shards)
        resumed.load_state_dict(states[done])
        (resumed if by == "loader" else sampler_of(resumed)).set_epoch(epoch)
        assert read(resumed) == (epochs[2] if epoch == 2 else epochs[1][done:])
        assert read(resumed) != read(resumed)


def test_an_epoch_told_to_a_pass_that_goes_on_with_a_state_is_the_next_ones(shards: Path) -> None:
    epochs = expected(shards, 2, rank=0, world_size=1)
    loader = shard_loader(shards)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    iterator.close()
    resumed = shard_loader(shards)
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    sampler_of(resumed).set_epoch(1)
    assert read(iterator) == epochs[0][1:]
    assert read(resumed) == epochs[1]


def test_a_loader_of_shards_is_made_anew_from_its_own_samplers_only(shards: Path) -> None:
    data = ShardDataset(shards)
    loader = DataLoader(data, 4, shuffle=True, seed=3, drop_last=True)
    whole = expected(shards, 1, rank=0, world_size=1)[0]
    predicting = BatchSampler(sampler_of(loader), 4, drop_last=False)
    again = DataLoader(data, batch_sampler=predicting, shuffle=False, seed=3)
    assert again.batch_size == 4
    assert read(again) == whole
    assert read(DataLoader(data, 4, sampler=sampler_of(loader), seed=3)) == whole
    assert read(DataLoader(data, 4, sampler=SequentialSampler(data), seed=3))[0] == [0, 1, 2, 3]
    of_another = sampler_of(shard_loader(shards))
    for samplers in ({"sampler": of_another}, {"batch_sampler": BatchSampler(of_another, 4, drop_last=False)}):
        with pytest.raises(ConfigError, match="the order of a ShardDataset is the loader's own"):
            read(DataLoader(data, **samplers))


def test_somebody_else_s_sampler_is_followed(shards: Path) -> None:
    data = ShardDataset(shards)
    theirs = [5, 3, 1, 0, 2]
    assert read(DataLoader(data, 4, sampler=theirs)) == [[5, 3, 1, 0], [2]]
    assert read(DataLoader(data, batch_sampler=BatchSampler(theirs, 2, drop_last=True))) == [[5, 3], [1, 0]]


@pytest.mark.parametrize("settings", [{"batch_threads": 2}, {"on_error": "skip"}, {"workers": "thread"}])
def test_what_accelerate_drops_is_named(settings: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=f"without {next(iter(settings))}="):
        assert not DataLoader(Rows(), 4, **settings)._is_accelerate_prepared
    assert not DataLoader(Rows(), 4)._is_accelerate_prepared


def test_a_loader_that_was_said_to_be_prepared_stays_so() -> None:
    loader = DataLoader(Rows(), 4, on_error="skip")
    loader._is_accelerate_prepared = True
    assert loader._is_accelerate_prepared


def test_a_closed_pass_does_not_begin_again(shards: Path) -> None:
    loader = shard_loader(shards)
    iterator = iter(loader)
    loader.close()
    iterator.close()
    sampler_of(loader).set_epoch(1)
    with pytest.raises(ClosedError):
        next(iterator)
    assert read(loader) == expected(shards, 2, rank=0, world_size=1)[1]


def test_no_framework_is_imported_for_it(shards: Path) -> None:
    loader = shard_loader(shards)
    assert loader._is_accelerate_prepared
    assert sum(map(len, read(loader))) == ROWS
    assert "accelerate" not in sys.modules
