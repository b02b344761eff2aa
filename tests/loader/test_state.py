"""The loader's state: what it takes, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StateError
from forebay.loader.state import STATE_VERSION, LoaderState

GOOD: dict[str, Any] = {
    "version": STATE_VERSION,
    "fingerprint": "00ff",
    "seed": 3,
    "epoch": 1,
    "position": 70,
    "shuffle": True,
    "window": 64,
    "global_batch_size": 16,
    "tail": "short",
}


@given(
    seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6), position=st.integers(0, 10**12), shuffle=st.booleans()
)
def test_a_state_survives_json(seed: int, epoch: int, position: int, shuffle: bool) -> None:
    state = LoaderState.parse({**GOOD, "seed": seed, "epoch": epoch, "position": position, "shuffle": shuffle})
    assert LoaderState.parse(json.loads(json.dumps(state.to_dict()))) == state


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": STATE_VERSION + 1}, "version"),
        ({"version": None}, "version"),
        ({"epoch": -1}, "epoch"),
        ({"position": "70"}, "position"),
        ({"position": True}, "position"),
        ({"shuffle": 1}, "shuffle"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"tail": "long"}, "tail"),
        ({"tail": True}, "tail"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_state_that_cannot_be_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(StateError, match=word):
        LoaderState.parse({**GOOD, **change})


def test_a_state_with_a_missing_entry_names_it() -> None:
    with pytest.raises(StateError, match="fingerprint"):
        LoaderState.parse({name: value for name, value in GOOD.items() if name != "fingerprint"})


@pytest.mark.parametrize("junk", [None, [], {}, "state", 3])
def test_what_is_no_state_is_refused(junk: Any) -> None:
    with pytest.raises(StateError, match="not a loader state"):
        LoaderState.parse(junk)
