"""Samplers and batch samplers of the user's, whole batches at once, prefetching, and completion order.

The order of a shuffle is tested with the random numbers.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler, Subset

from forebay import DataLoader
from tests.dropin.same import assert_same_outcome, read
from tests.dropin.samples import Listed, Numbers, as_is

Make = Callable[..., Any]


class Endless(Sampler[int]):
    """Indices without end; it has no length, and may be given batches of them."""

    def __init__(self, of: int, batch: int | None = None) -> None:
        self.of, self.batch = of, batch
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        for i in itertools.count():
            self.asked += 1
            yield i % self.of if self.batch is None else [(i + k) % self.of for k in range(self.batch)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "given",
    [
        {"sampler": [5, 1, 1, 3], "batch_size": 2},
        {"sampler": range(5, 0, -2), "batch_size": None},
        {"sampler": iter([5, 1]), "batch_size": 1},
        {"sampler": collections.deque([2, 0]), "batch_size": 3},
        {"sampler": [], "batch_size": 2},
        {"batch_sampler": [[1], [], [2, 3, 4]], "collate_fn": as_is},
        {"batch_sampler": ([i] * i for i in range(1, 4))},
        {"batch_sampler": [(1, 2), [3]]},
        {"sampler": [[0, 1], [2, 3]], "batch_size": None},
        {"sampler": ["a", "b"], "batch_size": 2},
    ],
    ids=str,
)
def test_a_sampler_of_any_kind_is_followed_as_by_torch(workers: int, given: dict[str, Any]) -> None:
    sampler = "sampler" if "sampler" in given else "batch_sampler"
    indices = list(given[sampler])
    once = iter(given[sampler]) is given[sampler]

    class Echo(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.tensor(index) if isinstance(index, list) else index

    def use(make: Make) -> Any:
        mine = {**given, sampler: iter(indices) if once else given[sampler]}
        return read(make(Echo(6), num_workers=workers, **mine), 1 if once else 2)

    assert_same_outcome(use)


def test_a_tensor_of_indices_is_a_sampler() -> None:
    """A permutation that the user has drawn; its elements are tensors, and go to the workers as such."""

    class Echo(Numbers):
        def __getitem__(self, index: Any) -> Any:
            assert isinstance(index, torch.Tensor)
            return index * 2

    for workers in (0, 2):
        loader = DataLoader(Echo(6), 2, sampler=torch.tensor([3, 5, 2]), num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[6, 10], [4]]
    resource_sharer.stop(timeout=30)  # torch's queues serve tensors' descriptors from a thread of Python's


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [None, 3])
def test_an_endless_sampler_without_length_is_read_as_far_as_wanted(workers: int, batch: int | None) -> None:
    def use(make: Make) -> Any:
        sampler = Endless(6, batch)
        loader = make(Numbers(6), num_workers=workers, **{"sampler" if batch is None else "batch_sampler": sampler})
        with pytest.raises(TypeError):
            len(loader)
        with pytest.raises(TypeError):
            len(iter(loader))
        return list(itertools.islice(loader, 9))

    assert_same_outcome(use)


@pytest.mark.parametrize("prefetch", [None, 1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_is_asked_for_than_prefetch_allows(prefetch: int | None, workers: int) -> None:
    """The sampler is the measure: each batch in flight was asked from it."""

    def use(make: Make) -> Any:
        sampler = Endless(6)
        iterator = iter(make(Numbers(6), None, sampler=sampler, num_workers=workers, prefetch_factor=prefetch))
        asked = [sampler.asked]
        for _ in range(5):
            next(iterator)
            asked.append(sampler.asked)
        return asked

    asked = assert_same_outcome(use)
    ahead = (prefetch or 2) * workers
    assert asked == [ahead + taken for taken in range(6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_fetched_at_once_where_the_data_set_can(workers: int) -> None:
    def use(make: Make) -> Any:
        return read(make(Listed("abcdefg", many=True), 3, num_workers=workers, collate_fn=as_is))

    (epoch,) = assert_same_outcome(use)
    assert epoch[0] == [("a", 3), ("b", 3), ("c", 3)]
    assert epoch[2] == [("g", 1)]


def test_a_fetch_at_once_that_is_none_or_is_not_batched_is_not_used() -> None:
    class Without(Numbers):
        __getitems__ = None

    assert len(list(DataLoader(Without(5), 2, num_workers=1))) == 3
    data = Listed("abc", many=True)
    assert list(DataLoader(data, None, num_workers=1)) == ["a", "b", "c"]


def test_a_subset_of_a_subset_is_fetched_through_both() -> None:
    def use(make: Make) -> Any:
        inner = Subset(Listed("abcdefg", many=True), [6, 4, 2, 0])
        return read(make(Subset(inner, [3, 1, 0]), 2, num_workers=1, collate_fn=as_is))

    (epoch,) = assert_same_outcome(use)
    assert [[sample[0] for sample in batch] for batch in epoch] == [["a", "e"], ["g"]]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_changes_between_epochs_is_asked_anew(persistent: bool) -> None:
    class Changing(Sampler[int]):
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch * 3 + i for i in range(self.epoch + 1)])

        def __len__(self) -> int:
            return self.epoch + 1

    def use(make: Make) -> Any:
        sampler = Changing()
        loader = make(Numbers(20), None, sampler=sampler, num_workers=2, persistent_workers=persistent)
        epochs = []
        for epoch in range(4):
            sampler.epoch = epoch
            epochs.append((len(loader), list(loader)))
        loader._iterator = None
        return epochs

    epochs = assert_same_outcome(use)
    assert [[int(x) for x in batches] for _, batches in epochs] == [[0], [3, 4], [6, 7, 8], [9, 10, 11, 12]]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_distributed_sampler_follows_set_epoch(persistent: bool) -> None:
    def use(make: Make) -> Any:
        sampler: Any = torch.utils.data.DistributedSampler(Numbers(11), num_replicas=2, rank=1, seed=4)
        loader = make(Numbers(11), 2, sampler=sampler, num_workers=1, persistent_workers=persistent)
        epochs = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            epochs.append([int(x) for batch in loader for x in batch])
        loader._iterator = None
        return epochs

    zero, one, again = assert_same_outcome(use)
    assert zero == again
    assert zero != one


def test_a_sampler_that_raises_in_the_middle_raises_in_the_loop() -> None:
    def broken() -> Iterator[int]:
        yield from (0, 1, 2)
        raise LookupError("no more indices")

    for workers in (0, 1):

        def use(make: Make, workers: int = workers) -> Any:
            return read(make(Numbers(9), None, sampler=broken(), num_workers=workers))

        assert_same_outcome(use)
        with pytest.raises(LookupError, match="no more indices"):
            use(DataLoader)


@pytest.mark.parametrize("persistent", [False, True])
def test_completion_order_gives_every_batch_once(persistent: bool) -> None:
    loader = DataLoader(Numbers(50), 4, num_workers=2, in_order=False, persistent_workers=persistent)
    for _ in range(2):
        assert sorted(int(x) for batch in loader for x in batch) == list(range(50))
    loader._iterator = None


def test_completion_order_does_not_wait_for_a_slow_batch() -> None:
    """Worker 0 makes no batch before worker 1 has made all that it may: a barrier of the test's, no clock."""
    gate = multiprocessing.get_context("fork").Event()

    class Gated(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 0:
                assert gate.wait(60)
            elif index == 5:
                gate.set()
            return index

    for in_order, expected in ((False, [1, 3, 4]), (True, [0, 1, 2])):
        gate.clear()
        if in_order:
            gate.set()
        iterator = iter(DataLoader(Gated(8), None, num_workers=2, in_order=in_order))
        assert [next(iterator) for _ in range(3)] == expected
        assert sorted(iterator) == sorted(set(range(8)) - set(expected))
