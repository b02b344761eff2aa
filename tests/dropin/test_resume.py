"""`state_dict` and `load_state_dict` for any data set: a new loader goes on with exactly the next batch.

For map-style and iterable sets, with and without workers; what a state holds and refuses is tested elsewhere.
"""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch

from forebay import DataLoader
from tests.dropin.resumable import COUNT, KINDS, StatefulSampler, as_json, make, stop_after
from tests.dropin.same import assert_same, read
from tests.dropin.samples import Numbers, Split


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("batches", [0, 1, 10])
def test_a_new_loader_gives_exactly_the_rest(kind: str, workers: int, batch_size: int | None, batches: int) -> None:
    whole = list(make(kind, workers, batch_size))
    seen, state = stop_after(make(kind, workers, batch_size), batches)
    resumed = make(kind, workers, batch_size, seed=99)
    resumed.load_state_dict(state)
    assert_same(whole, seen + list(resumed))


@pytest.mark.parametrize("kind", KINDS)
def test_three_workers_and_pinning_change_nothing(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    whole = list(make(kind, 3))
    seen, state = stop_after(make(kind, 3, pin_memory=True), 4)
    resumed = make(kind, 3, pin_memory=True)
    resumed.load_state_dict(state)
    assert_same(whole, seen + list(resumed))
    warned = [str(w.message) for w in recwarn if w.category is UserWarning]
    assert all("pin_memory" in text or "worker processes" in text for text in warned)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_pass_keeps_the_order_to_come(kind: str, workers: int) -> None:
    loader = make(kind, workers)
    state = as_json(loader.state_dict())
    epochs = read(loader, 2)
    resumed = make(kind, workers, seed=99)
    resumed.load_state_dict(state)
    assert_same(epochs, read(resumed, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_on_this_side_of_the_end_nothing_remains_and_on_the_other_an_epoch_does(kind: str, workers: int) -> None:
    loader = make(kind, workers)
    first, second, third = read(loader, 3)
    loader = make(kind, workers)
    iterator = iter(loader)
    assert_same(first, list(itertools.islice(iterator, len(first))))
    before = as_json(loader.state_dict())
    with pytest.raises(StopIteration):
        next(iterator)
    after = as_json(loader.state_dict())
    for state, expected in ((before, [[], second, third]), (after, [second, third])):
        resumed = make(kind, workers)
        resumed.load_state_dict(state)
        assert_same(expected, read(resumed, len(expected)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_resume_in_the_second_epoch_equals_the_run_that_went_on(kind: str, workers: int, persistent: bool) -> None:
    more = {"persistent_workers": persistent and workers > 0}
    loader = make(kind, workers, **more)
    first, second, third = read(loader, 3)
    loader.close()
    loader = make(kind, workers, **more)
    assert_same(first, list(loader))
    seen, state = stop_after(loader, 4)
    resumed = make(kind, workers, **more)
    resumed.load_state_dict(state)
    assert_same([second, third], [seen + list(resumed), list(resumed)])
    resumed.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_again_and_again_after_a_step_or_two_loses_and_repeats_nothing(kind: str, workers: int) -> None:
    whole = [batch for epoch in read(make(kind, workers), 2) for batch in epoch]
    seen: list[Any] = []
    state: Any = None
    choose = random.Random(workers)
    while len(seen) < len(whole):
        loader = make(kind, workers)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        for _ in range(choose.choice([1, 1, 2, 5])):
            batch = next(iterator, None)
            if batch is None:
                break
            seen.append(batch)
        state = as_json(loader.state_dict())
        loader.close()
    assert_same(whole, seen[: len(whole)])


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1), (1, 2)])
def test_a_map_style_set_goes_on_with_any_number_of_workers(before: int, after: int) -> None:
    """torchdata refuses another number; ours accepts it, for each sample is fetched once whoever fetches it."""
    whole = list(make("map"))
    seen, state = stop_after(make("map", before), 4)
    resumed = make("map", after)
    resumed.load_state_dict(state)
    assert_same(whole, seen + list(resumed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_two_loaders_side_by_side_do_not_touch_each_other(kind: str, workers: int) -> None:
    whole = list(make(kind, workers))
    one, two = make(kind, workers), make(kind, workers)
    _, state = stop_after(make(kind, workers), 5)
    two.load_state_dict(state)
    first: list[Any] = []
    second: list[Any] = []
    for a, b in itertools.zip_longest(one, two):
        first.append(a)
        if b is not None:
            second.append(b)
    assert_same(whole, first)
    assert_same(whole[5:], second)


def test_in_completion_order_a_resume_loses_and_repeats_nothing() -> None:
    for batches in (0, 1, 4, 9):
        seen, state = stop_after(make("map", 2, in_order=False), batches)
        for workers in (2, 1):
            resumed = make("map", workers, in_order=False)
            resumed.load_state_dict(copy.deepcopy(state))
            rest = list(resumed)
            assert sorted(int(x) for batch in seen + rest for x in batch.flatten()) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_has_a_state_is_asked_for_it_and_draws_nothing_twice(workers: int) -> None:
    def loader() -> DataLoader:
        return DataLoader(Numbers(40), 3, sampler=StatefulSampler(40), num_workers=workers)

    whole = list(loader())
    seen, state = stop_after(loader(), 5)
    resumed = loader()
    resumed.load_state_dict(state)
    assert_same(whole, seen + list(resumed))
    assert isinstance(resumed.sampler, StatefulSampler)
    assert resumed.sampler.drawn == 40 - 15


def test_the_global_generator_s_order_comes_again() -> None:
    """Without a generator of the loader's own, the order is torch's global one's, and loading brings it back."""
    torch.manual_seed(17)
    loader = DataLoader(Numbers(COUNT), 7, shuffle=True)
    first, second = read(loader, 2)
    torch.manual_seed(17)
    loader = DataLoader(Numbers(COUNT), 7, shuffle=True)
    seen, state = stop_after(loader, 3)
    torch.manual_seed(1234)
    resumed = DataLoader(Numbers(COUNT), 7, shuffle=True)
    resumed.load_state_dict(state)
    assert_same([first, second], [seen + list(resumed), list(resumed)])


def test_augmentation_after_a_resume_at_an_epoch_s_start_is_that_of_the_run_that_went_on() -> None:
    """Between epochs nothing is in flight, so even what workers draw comes again."""
    torch.manual_seed(5)
    loader = DataLoader(Split(20), 4, num_workers=1)
    list(loader)
    state = as_json(loader.state_dict())
    expected = list(loader)
    torch.manual_seed(77)
    resumed = DataLoader(Split(20), 4, num_workers=1)
    resumed.load_state_dict(state)
    assert_same(expected, list(resumed))
