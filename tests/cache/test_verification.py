"""When the checksum of a cached shard is compared, and what happens when it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.cache import CacheConfig, ShardStore, Verify
from forebay.sharding import StoredDataset

MakeDataset = Callable[..., StoredDataset]
OpenStore = Callable[[StoredDataset, CacheConfig], ShardStore]


def flip_a_byte_of_padding(copy: Path, data: StoredDataset) -> None:
    """Damage a copy where no sample and no footer lies: only the checksum of the whole file tells."""
    damaged = bytearray(copy.read_bytes())
    damaged[6] += 1  # after ARROW1 come two bytes that fill up
    copy.unlink()  # a map of the old file must not be written under
    copy.write_bytes(damaged)
    assert damaged != (Path(data.name) / copy.name).read_bytes()


@pytest.mark.parametrize(
    ("verify", "found_at_first", "found_later"),
    [("arrival", False, False), ("first_use", True, False), ("always", True, True)],
)
def test_a_copy_is_compared_when_the_configuration_says(
    tmp_path: Path,
    opened: OpenStore,
    make_dataset: MakeDataset,
    verify: Verify,
    found_at_first: bool,
    found_later: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = make_dataset()
    config = CacheConfig(path=tmp_path / "cache", budget=10**9, verify=verify)
    copy = config.path / data.fingerprint / data.shard_name(1)
    filling = opened(data, CacheConfig(path=config.path, budget=10**9))
    filling.open_shard(1).close()
    filling.close()
    store = opened(data, config)
    for corrupt in (found_at_first, found_later):
        before = store.stats()
        flip_a_byte_of_padding(copy, data)
        store.open_shard(1).close()
        after = store.stats()
        assert after["corrupt"] - before["corrupt"] == corrupt
        assert after["fetched"] - before["fetched"] == corrupt
        assert (copy.read_bytes() == (Path(data.name) / copy.name).read_bytes()) == corrupt
    assert any("damaged and removed" in message for message in caplog.messages) == found_at_first
