"""Whether decoded samples are stored: by how long training waits, and how much of the data has room."""

from __future__ import annotations

import pytest

from forebay.loader.decoded_choice import Pace, StoreDecision, choose_storing

WAITING = Pace(samples=5000, stall_share=0.4, decode_per_s=900.0)


def test_training_that_waits_and_room_for_all_let_it_store() -> None:
    choice = choose_storing(WAITING, sample_nbytes=200_000, samples=10_000, room_nbytes=4 * 10**9)
    assert choice.store
    assert choice.why == (
        "stored: training waits 40% of its time, 900 samples/s are decoded; the cache has room for 100% of the decoded "
        "samples"
    )


def test_training_that_hardly_waits_needs_no_store() -> None:
    pace = Pace(samples=5000, stall_share=0.01, decode_per_s=900.0)
    choice = choose_storing(pace, sample_nbytes=200_000, samples=10_000, room_nbytes=4 * 10**9)
    assert not choice.store
    assert choice.why.endswith("which is enough")


@pytest.mark.parametrize(("room_nbytes", "store"), [(0, False), (99 * 10**6, False), (101 * 10**6, True)])
def test_a_small_part_of_the_data_is_not_worth_it(room_nbytes: int, store: bool) -> None:
    choice = choose_storing(WAITING, sample_nbytes=200_000, samples=10_000, room_nbytes=room_nbytes)
    assert choice.store is store
    assert ("larger budget" in choice.why) is not store


def test_it_is_decided_once_when_enough_is_known() -> None:
    paces = [Pace(samples=1000, stall_share=1.0, decode_per_s=1.0), WAITING]
    decision = StoreDecision(lambda: paces[0])
    assert not decision.is_due(10)
    paces.pop(0)
    assert not decision.is_due(0)
    assert decision.is_due(10)
    decision.decide(sample_nbytes=1, samples=1, room_nbytes=1)
    assert decision.choice.store
    assert not decision.is_due(10)
