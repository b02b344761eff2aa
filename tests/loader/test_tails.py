"""The end of an epoch on every rank: dropped, padded or short, its weights, and never a rank without a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay import DataLoader, ShardDataset
from forebay.errors import ConfigError, StateError
from forebay.loader.batches import Tail
from tests.loader.numbers import COLUMNS, read_rank, write_numbers

SAMPLES = 53
TAILS: list[Tail] = ["drop", "pad", "short"]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """53 numbers in a few shards."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "train", SAMPLES)


def all_ranks(path: Path, world_size: int, **given: Any) -> list[list[dict[str, Any]]]:
    """By rank, its batches."""
    return [read_rank(path, rank=rank, world_size=world_size, seed=5, **given) for rank in range(world_size)]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 8])
def test_every_rank_has_as_many_batches_and_valid_samples_come_once(numbers: Path, tail: Tail, world_size: int) -> None:
    ranks = all_ranks(numbers, world_size, global_batch_size=10, shuffle=True, tail=tail)
    assert {len(batches) for batches in ranks} == {5 if tail == "drop" else 6}
    seen = Counter(x for batches in ranks for batch in batches for x in batch["x"][batch["__valid__"]].tolist())
    assert set(seen.values()) == {1}
    assert len(seen) == (50 if tail == "drop" else SAMPLES)
    lasts = [len(batches[-1]["x"]) for batches in ranks]
    assert min(lasts) >= 1
    assert max(lasts) - min(lasts) <= 1
    if tail == "pad":
        assert lasts == [len(batches[0]["x"]) for batches in ranks]


@pytest.mark.parametrize("tail", TAILS)
def test_weighted_means_over_the_ranks_are_those_of_one_process(numbers: Path, tail: Tail) -> None:
    alone = all_ranks(numbers, 1, global_batch_size=10, shuffle=True, tail=tail)[0]
    for world_size in (3, 7):
        ranks = all_ranks(numbers, world_size, global_batch_size=10, shuffle=True, tail=tail)
        for number, whole in enumerate(alone):
            parts = [batches[number] for batches in ranks]
            assert all(part["__weight__"].dtype == torch.float64 and part["__weight__"].ndim == 0 for part in parts)
            means = [
                float(part["__weight__"]) * float(part["x"][part["__valid__"]].double().mean())
                for part in parts
                if part["__valid__"].any()
            ]
            expected = float(whole["x"][whole["__valid__"]].double().mean())
            assert sum(means) / world_size == pytest.approx(expected)
            assert all(float(part["__weight__"]) == 0 for part in parts if not part["__valid__"].any())


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("tail", ["pad", "short"])
def test_fewer_samples_than_ranks_leave_no_rank_without_a_batch(tmp_path: Path, samples: int, tail: Tail) -> None:
    path = write_numbers(tmp_path / "few", samples)
    ranks = all_ranks(path, 4, batch_size=3, tail=tail)
    assert [len(batches) for batches in ranks] == [1] * 4
    assert all(len(batches[0]["x"]) == (3 if tail == "pad" else 1) for batches in ranks)
    valid = [x for batches in ranks for x in batches[0]["x"][batches[0]["__valid__"]].tolist()]
    assert sorted(valid) == list(range(samples))


def test_drop_last_is_a_tail_and_both_are_refused(numbers: Path) -> None:
    data = ShardDataset(numbers)
    with DataLoader(data, 10, drop_last=True) as dropping, DataLoader(data, 10) as short:
        assert dropping.state_dict()["tail"] == "drop"
        assert short.state_dict()["tail"] == "short"
    with pytest.raises(ConfigError, match="drop_last=True and tail='pad'"):
        DataLoader(data, 10, drop_last=True, tail="pad")
    wrong: Any = "long"
    with pytest.raises(ConfigError, match="tail='long'"):
        DataLoader(data, 10, tail=wrong)
    with pytest.raises(ConfigError, match="tail: only for a ShardDataset"):
        DataLoader(torch.utils.data.TensorDataset(torch.arange(3)), tail="pad")
    with pytest.raises(ConfigError, match="tail= cannot be used with a sampler"):
        DataLoader(data, 2, sampler=[1, 2], tail="pad")


def test_a_state_of_another_tail_is_refused(numbers: Path) -> None:
    data = ShardDataset(numbers)
    with DataLoader(data, 10, tail="pad", seed=1) as padded, DataLoader(data, 10, seed=1) as other:
        state = padded.state_dict()
        with pytest.raises(StateError, match=r"tail \(drop_last\) is 'short' here and 'pad' in the state"):
            other.load_state_dict(state)
        padded.load_state_dict(state)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_ids_of_a_batch_and_its_weight_are_known_without_reading(numbers: Path, tail: Tail, nodes: int) -> None:
    for rank in range(3):
        data = ShardDataset(numbers, columns=COLUMNS)
        place: dict[str, Any] = {"rank": rank, "world_size": 3, "nodes": nodes, "tail": tail, "seed": 5}
        with DataLoader(data, global_batch_size=10, shuffle=True, num_workers=1, **place) as loader:
            told = [loader.ids_of(batch=n) for n in range(len(loader))]
            weights = [loader.weight_of(batch=n) for n in range(len(loader))]
            assert loader.stats().read_nbytes == loader.stats().batches == 0
            assert told[0].dtype == np.int64
            batches = list(loader)
            assert [ids.tolist() for ids in told] == [batch["__index__"].tolist() for batch in batches]
            assert weights == [float(batch["__weight__"]) for batch in batches]
            assert [loader.ids_of(batch=n).tolist() for n in range(len(loader))] == [ids.tolist() for ids in told]
            following = iter(loader)
            assert loader.ids_of(batch=0).tolist() == next(following)["__index__"].tolist()
            with pytest.raises(ConfigError, match=f"has {len(loader)} batches"):
                loader.ids_of(batch=len(loader))


def test_after_a_resume_ids_count_from_the_first_batch_that_is_still_to_come(numbers: Path) -> None:
    data = ShardDataset(numbers, columns=COLUMNS)
    with DataLoader(data, 10, shuffle=True, seed=5) as first, DataLoader(data, 10, shuffle=True, seed=5) as second:
        batches = iter(first)
        next(batches)
        second.load_state_dict(first.state_dict())
        assert second.ids_of(batch=0).tolist() == next(batches)["__index__"].tolist()
        assert second.ids_of(batch=0).tolist() == next(iter(second))["__index__"].tolist()
    with pytest.raises(ConfigError, match="without a sampler"):
        DataLoader(data, 2, sampler=[1, 2]).ids_of(batch=0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    legs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=4),
    tail=st.sampled_from(["pad", "short"]),
)
def test_any_number_of_ranks_goes_on_in_mid_epoch_again_and_again(
    numbers: Path, legs: list[tuple[int, int, int]], tail: Tail
) -> None:
    order = [x for batch in read_rank(numbers, batch_size=7, shuffle=True, seed=5) for x in batch["x"].tolist()]
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for number, (world_size, batch_size, steps) in enumerate([*legs, (3, 4, SAMPLES)]):
        delivered: list[list[list[int]]] = []
        states = []
        for rank in range(world_size):
            place: dict[str, Any] = {"rank": rank, "world_size": world_size, "nodes": 1 + (number + 1) % world_size}
            data = ShardDataset(numbers, columns=COLUMNS)
            with DataLoader(data, batch_size, shuffle=True, seed=5, tail=tail, num_workers=1, **place) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                taken = [batch for batch, _ in zip(loader, range(steps), strict=False)]
                delivered.append([batch["x"][batch["__valid__"]].tolist() for batch in taken])
                states.append(loader.state_dict(batches=len(taken)))
        assert all(other == states[0] for other in states)
        for parts in zip(*delivered, strict=True):
            together = [x for part in parts for x in part]
            assert sorted(together) == sorted(order[len(seen) : len(seen) + len(together)])
            seen += together
        state = states[0]
        assert state["position"] == min(len(seen), SAMPLES)
        if len(seen) == SAMPLES:
            break
    assert sorted(seen) == list(range(SAMPLES))
