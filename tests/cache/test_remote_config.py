from __future__ import annotations

import itertools
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache import RemoteConfig
from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_config import LONGEST_PAUSE_S, Pace, pause_s
from forebay.cache.remote_source import merge, public_name
from forebay.errors import ClosedError, ConfigError


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_pauses_grow_to_a_limit_and_differ_by_chance(failures: int, chance: float) -> None:
    pause = pause_s(failures, chance)
    assert 0 < pause <= LONGEST_PAUSE_S
    assert pause_s(failures, 0) == pause_s(failures, 1) / 2
    assert pause_s(failures + 1, chance) >= pause


def test_a_request_is_late_when_it_takes_longer_than_its_like() -> None:
    pace = Pace(hedge_s=0.5)
    assert pace.late_after_s(1000) == 0.5
    assert pace.late_after_s(4_000_000) == 4.0, "nothing is known: 1 MB/s is slow enough"
    for _ in range(50):
        pace.add(4_000_000, 0.01)
    assert pace.late_after_s(4_000_000) == 0.5
    for _ in range(200):
        pace.add(4_000_000, 3.0)
    assert pace.late_after_s(4_000_000) == pytest.approx(12.0, rel=0.01)
    assert pace.late_after_s(1000) == 0.5, "other sizes have their own pace"


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20))), st.integers(0, 10), st.integers(1, 100))
def test_merged_ranges_hold_all_and_no_more_than_narrow_gaps(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    wanted = [(low, low + nbytes) for low, nbytes in ranges]
    merged = list(merge(wanted, gap, most=most))
    held = [byte for begin, end in merged for byte in range(begin, end)]
    asked = {byte for begin, end in wanted for byte in range(begin, end)}
    assert asked <= set(held)
    assert len(held) == len(set(held)), "no byte twice"
    for left, right in itertools.pairwise(merged):
        assert right[0] - left[1] > gap or right[1] - left[0] > most
    edges = {edge for bounds in wanted for edge in bounds}
    assert all(begin in edges and end in edges for begin, end in merged)
    for low, high in wanted:
        assert low == high or any(begin <= low and high <= end for begin, end in merged), "whole in one of them"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b/"),
        ("https://user:pass@host:80/x?token=1#y", "https://host:80/x"),
        ("memory://data", "memory://data"),
    ],
)
def test_names_of_places_carry_no_secrets(url: str, name: str) -> None:
    assert public_name(url) == name


@pytest.mark.parametrize("setting", ["connections", "ahead_nbytes", "piece_nbytes", "retry_limit_s", "hedge_s"])
def test_settings_that_cannot_work_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        RemoteConfig(**{setting: 0})
    with pytest.raises(ConfigError, match="merge_nbytes"):
        RemoteConfig(merge_nbytes=-1)


def test_settings_pickle() -> None:
    assert pickle.loads(pickle.dumps(RemoteConfig(connections=2))) == RemoteConfig(connections=2)  # noqa: S301


def test_an_interrupt_wakes_those_who_wait_and_those_who_come_later() -> None:
    interrupts = Interrupts("the data")
    woken = threading.Event()
    with interrupts.waking(woken.set):
        interrupts.set()
        assert woken.is_set()
    with pytest.raises(ClosedError, match="the data"), interrupts.waking(woken.set):
        pass


def test_who_has_left_is_not_woken() -> None:
    interrupts, woken = Interrupts("the data"), threading.Event()
    with interrupts.waking(woken.set):
        pass
    interrupts.set()
    assert not woken.is_set()
