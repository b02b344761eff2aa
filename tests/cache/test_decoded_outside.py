"""Decoded samples seen from outside: listed beside the shards, verified, pruned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forebay.cache import CacheConfig, DecodedStore, ShardStore, look_into_cache, prune_cache, verify_cache
from forebay.sharding import StoredDataset

MakeDataset = Callable[..., StoredDataset]
OpenStore = Callable[[StoredDataset, CacheConfig], ShardStore]


@pytest.fixture
def config(tmp_path: Path, make_dataset: MakeDataset, opened: OpenStore) -> CacheConfig:
    """A cache with two whole shards, and decoded samples of two others."""
    data = make_dataset()
    config = CacheConfig(path=tmp_path / "cache", budget=1 << 30, min_free=0)
    store = opened(data, config)
    for shard in (0, 1):
        store.open_shard(shard).close()
    decoded = DecodedStore(config, data, "pixels")
    for shard in (1, 2):
        file = decoded.make(shard, [300] * 4)
        assert file is not None
        file.write(2, np.full((10, 10, 3), shard, np.uint8))
        file.close()
    decoded.close()
    return config


def test_decoded_samples_are_listed_apart(config: CacheConfig) -> None:
    (data,) = look_into_cache(config.path).data
    assert (data.shards, data.decoded_files) == (2, 2)
    assert 0 < data.decoded_nbytes < data.nbytes


def test_verifying_finds_a_flipped_byte_and_forgets_the_sample(config: CacheConfig) -> None:
    whole, damaged, unknown = verify_cache(config.path, progress=lambda _: None)
    assert (whole, list(damaged), unknown) == (2, [], 0)
    path = min(config.path.rglob("*.decoded"))
    content = bytearray(path.read_bytes())
    content[content.index(bytes([1] * 300)) + 17] ^= 1
    path.write_bytes(content)
    whole, damaged, unknown = verify_cache(config.path, progress=lambda _: None)
    assert (whole, unknown) == (2, 0)
    assert [reason.partition(": ")[2] for reason in damaged] == ["decoded row 2 is not as it was written"]
    assert verify_cache(config.path, progress=lambda _: None)[1] == []


def test_pruning_removes_decoded_samples_too(config: CacheConfig) -> None:
    removed, _ = prune_cache(config.path)
    assert removed == 4
    assert list(config.path.rglob("*.decoded")) == []
