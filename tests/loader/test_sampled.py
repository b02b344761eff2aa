"""A ShardDataset in the order of the user's sampler: torch's order, the cache's look-ahead, exact state, errors."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.cache import Order
from forebay.errors import ClosedError, ConfigError, SampleError
from forebay.loader.batch_plans import SampledPlan
from forebay.sharding import open_dataset

SAMPLES = 97
COLUMNS = ["image", "label", "__index__"]


def dataset(path: Path, **settings: Any) -> ShardDataset:
    transforms = {"image": [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]}
    return ShardDataset(path, transforms=transforms, columns=COLUMNS, **settings)


def indices(batches: Any) -> list[list[int]]:
    return [batch["__index__"].tolist() for batch in batches]


def assert_equal(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> None:
    assert indices(a) == indices(b)
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left["image"], right["image"])


class Counted(Sampler[int]):
    """An order of its own, with a state of its own."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            yield (self.at * 31) % SAMPLES
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("decode", ["auto", "library"])
def test_the_samples_are_those_that_the_data_set_gives_by_index(pictures: Path, decode: Any) -> None:
    data = dataset(pictures)
    order = [5, 96, 0, -1, 41, 41, 7]
    with DataLoader(data, 3, sampler=order, seed=11, decode=decode) as loader:
        for epoch in range(2):
            batches = list(loader)
            assert indices(batches) == [[5, 96, 0], [96, 41, 41], [7]]
            data.set_epoch(epoch, seed=11)
            for batch, first_seen in zip(batches, ([0, 1, 2], [1], [0]), strict=True):
                for place in first_seen:
                    expected = data[int(batch["__index__"][place])]
                    difference = (batch["image"][place].int() - expected["image"].int()).abs()
                    assert difference.float().mean() <= 1
            assert not torch.equal(batches[1]["image"][1], batches[1]["image"][2])  # the second time another crop
    data.close()


@given(
    kind=st.sampled_from(["random", "replacement", "shuffle of a generator", "batches", "uneven batches"]),
    batch_size=st.integers(1, 40),
    drop_last=st.booleans(),
    threads=st.integers(1, 3),
    prefetch=st.sampled_from([None, 1, 4]),
)
@settings(deadline=None, max_examples=25)
def test_the_order_is_torch_s(
    pictures: Path, kind: str, batch_size: int, drop_last: bool, threads: int, prefetch: int | None
) -> None:
    def arguments() -> dict[str, Any]:
        match kind:
            case "random":
                return {"batch_size": batch_size, "sampler": RandomSampler(range(SAMPLES)), "drop_last": drop_last}
            case "replacement":
                sampler = WeightedRandomSampler([1.0, 2.0, 0.5] * 20, 70)
                return {"batch_size": batch_size, "sampler": sampler, "drop_last": drop_last}
            case "shuffle of a generator":
                shuffled = RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(3))
                return {"batch_size": batch_size, "sampler": shuffled, "generator": torch.Generator().manual_seed(4)}
            case "batches":
                return {"batch_sampler": BatchSampler(RandomSampler(range(SAMPLES)), batch_size, drop_last)}
            case _:
                return {"batch_sampler": [[1, 2, 3], [4], list(range(50)), [96]]}

    class Indices:
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> dict[str, int]:
            return {"__index__": index}

    torch.manual_seed(9)
    of_torch: Any = torch.utils.data.DataLoader(Indices(), **arguments())  # type: ignore[arg-type]
    expected = [indices(of_torch) for _ in range(2)], torch.rand(1)
    torch.manual_seed(9)
    with DataLoader(dataset(pictures), num_workers=threads, prefetch_factor=prefetch, **arguments()) as loader:
        assert len(loader) == len(of_torch)
        assert ([indices(loader) for _ in range(2)], torch.rand(1)) == expected


def test_an_endless_sampler_is_left_when_the_user_has_enough(pictures: Path) -> None:
    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.cycle(range(SAMPLES))

    with DataLoader(dataset(pictures), 10, sampler=Endless(), num_workers=2) as loader:
        first = indices(itertools.islice(loader, 25))
    assert first[9] == [*range(90, 97), 0, 1, 2]
    assert len(first) == 25


def test_distributed_samplers_divide_the_data(pictures: Path) -> None:
    seen = []
    for rank in range(3):
        sampler: Any = DistributedSampler(range(SAMPLES), num_replicas=3, rank=rank, seed=1)  # type: ignore[arg-type]
        with DataLoader(dataset(pictures), 8, sampler=sampler) as loader:
            loader.set_epoch(4)
            seen.append([index for batch in indices(loader) for index in batch])
        assert sampler.epoch == 4
    assert set(itertools.chain(*seen)) == set(range(SAMPLES))
    assert {len(each) for each in seen} == {33}


@pytest.mark.parametrize("sampler", ["repeating", "stateful", "shuffled", "batches"])
@pytest.mark.parametrize("taken", [0, 1, 4, 9])
def test_a_state_goes_on_with_the_very_next_batch(pictures: Path, sampler: str, taken: int) -> None:
    def loader() -> DataLoader:
        arguments: dict[str, Any] = {"batch_size": 8}
        match sampler:
            case "repeating":
                arguments["sampler"] = WeightedRandomSampler([1.0] * 20, 72)
            case "stateful":
                arguments["sampler"] = Counted(72)
            case "shuffled":
                arguments["sampler"] = RandomSampler(range(72))
            case _:
                arguments = {"batch_sampler": BatchSampler(RandomSampler(range(72)), 8, drop_last=False)}
        return DataLoader(dataset(pictures), num_workers=2, **arguments)

    torch.manual_seed(2)
    with loader() as whole:
        iterator = iter(whole)
        for _ in range(taken):
            next(iterator)
        state = json.loads(json.dumps(whole.state_dict()))
        rest = [list(iterator), list(whole)]
    torch.manual_seed(77)
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        again = [list(resumed), list(resumed)]
    assert_equal(rest[0], again[0])
    assert indices(rest[1]) == indices(again[1])
    assert len(rest[0]) == 9 - taken


def test_a_seed_fixes_the_crops_whatever_the_generators(pictures: Path) -> None:
    def read(seed: int, base: int) -> list[dict[str, Any]]:
        torch.manual_seed(base)
        with DataLoader(dataset(pictures), 16, sampler=range(40), seed=seed) as loader:
            return list(loader)

    assert_equal(read(5, 1), read(5, 2))
    assert not torch.equal(read(5, 1)[0]["image"], read(6, 1)[0]["image"])


@pytest.mark.parametrize(
    ("given_", "error", "word"),
    [
        ({"sampler": [3, 97]}, IndexError, "sample 97 of .* which has 97"),
        ({"sampler": [-98]}, IndexError, "sample -98"),
        ({"sampler": [0.5]}, ConfigError, "lists of whole numbers"),
        ({"sampler": ["a"]}, ConfigError, "lists of whole numbers"),
        ({"batch_sampler": [[1], []]}, ConfigError, "one at least"),
        ({"batch_sampler": [3]}, ConfigError, "lists of whole numbers"),
        ({"batch_sampler": [[1, 2]], "decode": "dali"}, ConfigError, "give the batch sampler an attribute batch_size"),
    ],
)
def test_indices_that_cannot_be_end_in_an_error_that_says_so(
    pictures: Path, given_: dict[str, Any], error: type[Exception], word: str
) -> None:
    with DataLoader(dataset(pictures), **given_) as loader, pytest.raises(error, match=word):
        list(loader)


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        ({"sampler": [1], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "batch_sampler option is mutually exclusive"),
        ({"sampler": [1], "window": 4}, "window= cannot be used with a sampler"),
        ({"sampler": [1], "rank": 0, "world_size": 2}, "rank= cannot be used with a sampler"),
        ({"sampler": [1], "global_batch_size": 4}, "global_batch_size= cannot be used with a sampler"),
        ({"batch_sampler": [[1]], "on_error": "skip"}, "cannot be used with a batch_sampler"),
    ],
)
def test_what_contradicts_a_sampler_is_refused(pictures: Path, given_: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        DataLoader(dataset(pictures), **given_)


def test_a_bad_sample_is_named_or_its_place_is_filled(make_pictures: Any, tmp_path: Path) -> None:
    path = make_pictures(tmp_path / "bad", broken=(13,))
    with DataLoader(dataset(path), 4, sampler=range(10, 20)) as loader:
        iterator = iter(loader)
        with pytest.raises(SampleError, match="row"):
            list(iterator)
        with pytest.raises(ClosedError, match="begins the next epoch"):
            next(iterator)
    with DataLoader(dataset(path), 4, sampler=range(10, 20), on_error="skip") as loader:
        batches = indices(loader)
        assert loader.stats().bad_count == 1
    filled = batches[0].pop(3)
    assert filled != 13
    assert batches == [[10, 11, 12], [14, 15, 16, 17], [18, 19]]


def test_an_iterator_that_is_left_or_closed_ends_its_threads(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), 4, sampler=SequentialSampler(range(SAMPLES)), num_workers=2)
    next(iter(loader))  # dropped at once
    iterator: Any = iter(loader)
    next(iterator)
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)
    other = iter(loader)
    next(other)
    loader.close()
    with pytest.raises(ClosedError):
        next(other)
    assert len(list(loader)) == 25
    loader.close()


def test_a_loader_with_a_sampler_stays_in_its_process(pictures: Path) -> None:
    with DataLoader(dataset(pictures), 4, sampler=[1]) as loader, pytest.raises(TypeError, match="another process"):
        pickle.dumps(loader)


def test_the_cache_is_told_the_shards_that_come_and_when(pictures: Path) -> None:
    data = open_dataset(pictures)
    plan = SampledPlan(data, largest=None)

    class Followed:
        def follow(self, order: Order, start: int) -> None:
            self.spans, self.next_use = list(order.spans(start)), order.next_use

    told: Any = Followed()
    plan.follow(told)
    starts = data.shard_starts.tolist()
    plan.add([starts[2], starts[0]])
    plan.add([starts[1], starts[1], starts[0]])
    plan.end()
    assert sorted((s.shard, s.first, s.last) for s in told.spans) == [(0, 0, 5), (1, 2, 5), (2, 0, 2)]
    assert told.next_use(np.array([0, 1, 2]), 0).tolist() == [0, 2, 0]
    assert list(plan.numbers()) == [0, 1]
    assert plan.samples(0).occurrences.tolist() == [0, 0]
    uses = told.next_use(np.array([0, 1, 2, 3]), 2).tolist()
    assert uses[:2] == [2, 2]
    assert min(uses[2:]) > SAMPLES
    assert plan.samples(1).occurrences.tolist() == [0, 1, 1]


def test_shards_behind_a_cache_are_fetched_once(pictures: Path, tmp_path: Path) -> None:
    data = dataset(pictures, cache=f"{tmp_path / 'cache'}:1GB")
    with DataLoader(data, 8, sampler=RandomSampler(range(SAMPLES))) as loader:
        assert sorted(itertools.chain(*indices(loader))) == list(range(SAMPLES))
        counts = loader.stats().cache
    assert counts["fetched"] == len(data.data.shard_rows)
    assert counts["bypassed"] == 0
