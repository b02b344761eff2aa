"""What the state of any data set's loader holds and costs, what the data set is asked for, and what is refused.

That a resumed loader gives the rest is tested elsewhere.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from forebay import DataLoader
from forebay.errors import StateError
from tests.dropin.resumable import COUNT, KINDS, Plain, as_json, make, stop_after
from tests.dropin.same import assert_same, outcome
from tests.dropin.samples import Numbers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_was_loaded_is_told_again(kind: str, workers: int) -> None:
    for batches in (0, 3):
        _, state = stop_after(make(kind, workers), batches)
        resumed = make(kind, workers)
        resumed.load_state_dict(state)
        assert as_json(resumed.state_dict()) == state


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_plain_and_small(kind: str) -> None:
    loader = DataLoader(KINDS[kind](10**7), 7, num_workers=2)
    iterator = iter(loader)
    for _ in range(20):
        next(iterator)
    state = loader.state_dict()
    loader.close()
    assert as_json(state) == state
    assert len(json.dumps(state)) < 30_000, "torch's own generator is 5056 bytes of it"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_says_what_was_delivered_not_what_was_made_ahead(workers: int) -> None:
    ahead: dict[str, Any] = {"prefetch_factor": 4} if workers else {}
    loader = make("map", workers, **ahead)
    whole = list(make("map"))
    iterator = iter(loader)
    states = [as_json(loader.state_dict())]
    for _ in whole:
        next(iterator)
        states.append(as_json(loader.state_dict()))
    loader.close()
    for batches in (0, 1, 5, len(whole)):
        resumed = make("map", 0)
        resumed.load_state_dict(states[batches])
        assert_same(whole[batches:], list(resumed))


def test_skipped_samples_of_a_map_style_set_are_not_fetched_again() -> None:
    class Watched(Numbers):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            self.fetched: list[int] = []

        def __getitem__(self, index: int) -> Any:
            self.fetched.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Watched(30), 3)
    _, state = stop_after(loader, 6)
    data = Watched(30)
    resumed = DataLoader(data, 3)
    resumed.load_state_dict(state)
    list(resumed)
    assert data.fetched == list(range(18, 30))


@pytest.mark.parametrize("kind", ["counted stream", "placed stream", "plain stream"])
def test_a_stream_wants_the_same_number_of_workers_and_refuses_without_a_change(kind: str) -> None:
    _, state = stop_after(make(kind, 2), 4)
    other = make(kind, 1)
    before = other.state_dict()
    with pytest.raises(StateError, match="2"):
        other.load_state_dict(state)
    assert other.state_dict() == before


def test_errors_of_a_worker_s_start_are_raised_after_loading_too() -> None:
    def refuse(worker: int) -> None:
        raise LookupError("cannot begin")

    _, state = stop_after(make("map", 1), 2)

    def use(_: Any) -> Any:
        loader = make("map", 1, worker_init_fn=refuse)
        loader.load_state_dict(state)
        try:
            return list(loader)
        finally:
            loader.close()

    error = outcome(use, DataLoader).error
    assert isinstance(error, LookupError)
    assert "cannot begin" in str(error)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stream_is_asked_for_its_iterator_once_an_epoch(resumed: bool) -> None:
    class Asked(Plain):
        asked = 0

        def __iter__(self) -> Any:
            self.asked += 1
            return super().__iter__()

    data = Asked(COUNT)
    loader = DataLoader(data, 7)
    if resumed:
        _, state = stop_after(make("plain stream"), 3)
        loader.load_state_dict(state)
    for epoch in (1, 2, 3):
        list(loader)
        assert data.asked == epoch


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: {**state, "version": 99}, "version"),
        (lambda state: {}, "state"),
        (lambda state: [1], "state"),
        (lambda state: {**state, "batches": -1}, "batches"),
        (lambda state: {**state, "batches": "4"}, "batches"),
        (lambda state: {**state, "colour": "red"}, "colour"),
    ],
    ids=["newer", "empty", "a list", "negative", "text", "unknown"],
)
def test_what_is_no_state_is_refused_and_changes_nothing(change: Any, word: str) -> None:
    _, state = stop_after(make("map"), 4)
    loader = make("map")
    before = loader.state_dict()
    with pytest.raises(StateError, match=word):
        loader.load_state_dict(change(state))
    assert loader.state_dict() == before


def test_a_state_of_a_stream_is_not_one_of_a_map_style_set() -> None:
    for one, other in itertools.permutations(["map", "plain stream"]):
        _, state = stop_after(make(one), 2)
        with pytest.raises(StateError, match="style"):
            make(other).load_state_dict(state)
