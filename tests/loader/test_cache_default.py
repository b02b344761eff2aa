"""Where a data set's cache comes from: the argument, or else the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay import CacheConfig, DataLoader, ShardDataset
from forebay.sharding import ShardWriter


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "data", {"number": "int64"}, shard_nbytes=400) as writer:
        for number in range(200):
            writer.write({"number": number})
    return tmp_path / "data"


def test_the_environment_gives_the_cache_where_the_program_gives_none(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CACHE", f"{tmp_path / 'cache'}:1GB")
    for cache, used in ((None, "cache"), (f"{tmp_path / 'other'}:1GB", "other"), ("", None)):
        dataset = ShardDataset(numbers, cache=cache)
        loader = DataLoader(dataset, batch_size=50, shuffle=True, seed=0)
        seen = sorted(int(number) for batch in loader for number in batch["number"])
        assert seen == list(range(200))
        assert dataset.cache == (None if used is None else CacheConfig(path=tmp_path / used, budget=10**9))
        fetched = loader.stats().cache["fetched"]
        assert fetched == (0 if used is None else dataset.data.num_shards)


def test_a_program_without_a_cache_reads_in_place(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CACHE", raising=False)
    assert ShardDataset(numbers).cache is None
