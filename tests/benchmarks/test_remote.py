"""The benchmark of a cold start over a slow link runs, tiny, and measures what it says."""

from __future__ import annotations

import json

import pytest

from forebay.benchmarks import RemoteWork, measure_remote
from forebay.errors import ConfigError


def test_a_tiny_run_measures_every_number() -> None:
    work = RemoteWork(nbytes=400_000, sample_nbytes=2_000, shard_nbytes=50_000, batch_size=20, rate=50e6, delay_s=0.001)
    report = measure_remote(work, rounds=2)
    assert report.shards > 5
    assert len(report.rounds) == 2
    for each in report.rounds:
        assert 0 < each.first_batch_s <= each.epoch_s
        assert 0 < each.link_share <= 2
        assert 0.9 < each.requested_share <= 1.02
        assert each.requests > report.shards
        assert each.warm_epoch_s > 0
        assert each.local_epoch_s > 0
    assert report.warm_ratio > 0
    assert report.first_batch_ratio is None
    assert report.median("epoch_s") > 0
    assert json.loads(json.dumps(report.to_dict()))["shards"] == report.shards


def test_work_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate"):
        RemoteWork(rate=0)
