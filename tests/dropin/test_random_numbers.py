"""Random numbers: which are drawn where, so that a seed gives torch's order, its augmentation and its next draw.

Workers' seeds differ over workers and epochs and come again when a run is repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from forebay import DataLoader
from tests.dropin.same import LOADERS, assert_same, assert_same_outcome, read, seed_all
from tests.dropin.samples import Augmented, Numbers, Split, as_is

Make = Callable[..., Any]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("given", [{}, {"shuffle": True}, {"batch_size": None, "shuffle": True}], ids=repr)
def test_batches_and_what_the_generators_draw_next_are_torch_s(
    workers: int, persistent: bool, given: dict[str, Any]
) -> None:
    def use(make: Make) -> Any:
        loader = make(Augmented(7), num_workers=workers, persistent_workers=persistent and workers > 0, **given)
        batches = read(loader, 3)
        loader._iterator = None
        return batches

    assert_same_outcome(use)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_generator_of_the_user_s_is_drawn_from_as_by_torch_and_the_global_one_is_not(
    workers: int, shuffle: bool
) -> None:
    def use(make: Make) -> Any:
        generator = torch.Generator().manual_seed(3)
        batches = read(make(Numbers(9), 2, shuffle, num_workers=workers, generator=generator), 2)
        return batches, generator.get_state()

    assert_same_outcome(use)
    seed_all()
    before = torch.get_rng_state()
    use(DataLoader)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_one_number_is_drawn_for_an_iterator_and_one_more_for_a_shuffle(workers: int) -> None:
    for shuffle, draws in ((False, 1), (True, 2)):
        loader = DataLoader(Numbers(9), shuffle=shuffle, num_workers=workers)
        torch.manual_seed(8)
        list(loader)
        after = torch.get_rng_state()
        torch.manual_seed(8)
        for _ in range(draws):
            torch.empty((), dtype=torch.int64).random_()
        assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_draws_happen_when_the_iterator_is_made(workers: int) -> None:
    def use(make: Make) -> Any:
        loader = make(Numbers(6), 2, True, num_workers=workers)
        iterator = iter(loader)
        drawn = torch.rand(()).item()
        return drawn, list(iterator)

    assert_same_outcome(use)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(range(9), replacement=True, num_samples=20),
        lambda: RandomSampler(range(9), num_samples=25),
        lambda: WeightedRandomSampler([0.1] * 4 + [1.0] * 5, 12),
        lambda: torch.utils.data.SubsetRandomSampler([4, 1, 7, 2]),
    ],
    ids=["with replacement", "more than there are", "weighted", "subset"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_torch_s_random_samplers_draw_the_same(sampler: Callable[[], Any], workers: int) -> None:
    def use(make: Make) -> Any:
        by_sample = read(make(Numbers(9), 2, sampler=sampler(), num_workers=workers), 2)
        batches = BatchSampler(sampler(), 4, True)
        return by_sample, read(make(Numbers(9), batch_sampler=batches, num_workers=workers), 2)

    assert_same_outcome(use)


@pytest.mark.parametrize("data", [Augmented(24), Split(24)])
@pytest.mark.parametrize("persistent", [False, True])
def test_numbers_drawn_in_workers_differ_over_workers_and_epochs_and_come_again(data: Any, persistent: bool) -> None:
    """Workers that draw the same numbers, or the same in every epoch, are the oldest fault of all (a forked numpy)."""

    def draws() -> dict[str, list[float]]:
        seed_all(9)
        loader = DataLoader(data, 4, num_workers=2, persistent_workers=persistent)
        found: dict[str, list[float]] = {"torch": [], "numpy": [], "python": []}
        for batch in (batch for epoch in read(loader, 3) for batch in epoch):
            if isinstance(batch, dict):
                for name in found:
                    found[name] += batch[name].flatten().tolist()
            else:
                found["torch"] += batch[1].flatten().tolist()
                found["python"] += batch[2].tolist()
        loader._iterator = None
        return found

    first = draws()
    for name, numbers in first.items():
        assert len(set(numbers)) == len(numbers), f"{name} drew a number twice"
    assert draws() == first
    torch.manual_seed(10)


def test_a_worker_s_seeds_are_base_seed_plus_number_and_numpy_s_own_mix() -> None:
    """The expected numpy state is numpy's own SeedSequence of worker and base seed."""
    torch.manual_seed(2)
    base_seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(2)
    for worker, state, drawn in DataLoader(NumpyState(2), None, num_workers=2, collate_fn=as_is):
        low, high = base_seed & 0xFFFFFFFF, base_seed >> 32
        words = np.random.SeedSequence([worker, low, high, 0]).generate_state(4)
        expected: Any = np.random.RandomState(words).get_state()
        assert state == expected[1].tolist()
        assert drawn == random.Random(base_seed + worker).random()


class NumpyState(Numbers):
    """Sample i is where numpy's global generator stands, and a number from python's."""

    def __getitem__(self, index: int) -> Any:
        state: Any = np.random.get_state()
        return index, state[1].tolist(), random.random()


def test_the_same_seed_gives_the_same_epochs_through_one_loader_or_two() -> None:
    epochs = []
    for make in LOADERS:
        torch.manual_seed(1)
        epochs.append(read(make(Numbers(20), 3, True), 3))
    torch.manual_seed(1)
    apart = [list(DataLoader(Numbers(20), 3, True)) for _ in range(3)]
    assert_same(epochs[0], epochs[1])
    assert_same(epochs[0], apart)
    assert len({str(epoch) for epoch in apart}) == 3
