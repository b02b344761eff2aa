"""What `len` says of every kind of data set, and the warnings that torch gives: the same ones, in the same words."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from forebay import DataLoader
from tests.dropin.same import assert_same_outcome, read
from tests.dropin.samples import Listed, Numbers, Split

Make = Callable[..., Any]


@pytest.mark.parametrize("count", [0, 1, 6, 7])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 10])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_length_is_torch_s(count: int, batch_size: int | None, drop_last: bool, stream: bool) -> None:
    data: Any = Split(count, length=count) if stream else Numbers(count)

    def lengths(make: Make) -> list[int]:
        loader = make(data, batch_size, drop_last=drop_last and batch_size is not None)
        return [len(loader), len(list(loader))]

    value = assert_same_outcome(lengths)
    assert value[0] == value[1]


def test_length_of_a_growing_data_set_is_asked_each_time() -> None:
    samples = [1, 2, 3]
    loader = DataLoader(Listed(samples), 2)
    assert len(loader) == 2
    samples.extend([4, 5])
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4], [5]]


def test_a_stream_without_length_has_none_and_is_read_all_the_same() -> None:
    def use(make: Make) -> Any:
        loader = make(Split(5), 2)
        with pytest.raises(TypeError, match="does not know its length"):
            len(loader)
        return read(loader)

    assert_same_outcome(use)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("asked", [True, False])
def test_a_stream_longer_than_it_said_warns_once_len_was_asked(
    workers: int, batch_size: int | None, asked: bool
) -> None:
    data = Split(12, length=3)

    def use(make: Make) -> Any:
        loader = make(data, batch_size, num_workers=workers)
        if asked:
            assert len(loader) == (3 if batch_size is None else 2)
        return read(loader)

    assert_same_outcome(use)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(data, batch_size, num_workers=workers)
        if asked:
            len(loader)
        read(loader)
    told = [str(w.message) for w in caught if "Length of IterableDataset" in str(w.message)]
    assert bool(told) is asked
    if told:
        assert "was reported to be 3" in told[0]
        assert ("multiprocessing data-loading" in told[0]) is (workers > 0)


def test_a_length_asked_during_a_pass_counts_from_the_next_pass() -> None:
    data = Split(4, length=2)

    def use(make: Make) -> Any:
        loader = make(data, 1, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        first = [next(iterator)]
        len(loader)
        first += list(iterator)
        second = list(loader)
        loader._iterator = None
        return first, second

    assert_same_outcome(use)


@pytest.mark.parametrize("data", [Numbers(4), Split(4)])
def test_more_workers_than_cores_warn(data: Any) -> None:
    most = len(os.sched_getaffinity(0))

    def use(make: Make) -> Any:
        return read(make(data, 2, num_workers=most + 1))

    assert_same_outcome(use)
    with pytest.warns(UserWarning, match=f"will create {most + 1} worker processes .*suggested max number of worker"):
        read(DataLoader(data, 2, num_workers=most + 1))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator: pinning works here")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", ["", "cuda"])
def test_pinning_without_an_accelerator_warns_and_gives_plain_batches(workers: int, device: str) -> None:
    def use(make: Make) -> Any:
        batches = read(make(Numbers(4), 2, num_workers=workers, pin_memory=True, pin_memory_device=device))
        return [batch.is_pinned() for epoch in batches for batch in epoch], batches

    with pytest.warns(UserWarning, match="pin_memory") as caught:
        read(DataLoader(Numbers(4), 2, num_workers=workers, pin_memory=True, pin_memory_device=device))
    assert any("no accelerator is found" in str(w.message) for w in caught)
    assert any("pin_memory_device is deprecated" in str(w.message) for w in caught) is bool(device)
    pinned, _ = assert_same_outcome(use)
    assert not any(pinned)


def test_nothing_warns_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Numbers(8), 2, shuffle=True, num_workers=2, persistent_workers=True)
        read(loader, 2)
        loader._iterator = None
