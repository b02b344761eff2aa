"""The benchmark of the order runs, tiny, and measures what it says."""

from __future__ import annotations

import pytest

from forebay.benchmarks.order import measure
from forebay.errors import ConfigError


@pytest.mark.parametrize("window", [None, 1, 8, 300])
def test_a_tiny_run_measures_every_number(window: int | None) -> None:
    result = measure(samples=40_000, shards=200, window=window)
    assert (result["samples"], result["shards"]) == (40_000, 200)
    assert result["window"] == {None: 64, 300: 200}.get(window, window)
    assert 0 < result["open_s"] <= result["first_sample_s"]
    assert result["seek_s"] > 0
    assert result["positions_per_s"] > 0
    assert 0 < result["peak_memory_mb"] < 10
    assert 1 <= result["cipher_calls"] < 1.2


def test_one_sample_in_one_shard_is_enough() -> None:
    assert measure(samples=1, shards=1, window=None)["window"] == 1


def test_fewer_samples_than_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least as many samples as shards"):
        measure(samples=3, shards=4, window=None)
