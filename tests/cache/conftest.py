"""Small data sets with known bytes, and what lies in a cache folder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.cache import CacheConfig, ShardStore, open_store
from forebay.sharding import ShardWriter, StoredDataset, open_dataset

OpenStore = Callable[[StoredDataset, CacheConfig], ShardStore]
MakeDataset = Callable[..., StoredDataset]


def sample_bytes(seed: int, number: int, nbytes: int) -> bytes:
    """What sample `number` of the data set `seed` holds."""
    return random.Random(f"{seed}/{number}").randbytes(nbytes)


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Writes a data set of `shards` shards of `rows` samples of `nbytes` each."""

    def make(name: str = "data", *, shards: int = 6, rows: int = 4, nbytes: int = 2000, seed: int = 0) -> StoredDataset:
        folder = tmp_path / name
        shard_nbytes = rows * (nbytes + 50)  # 50: the other column and the sample's share of the footer
        columns = {"payload": "bytes", "number": "int64"}
        with ShardWriter(folder, columns, shard_nbytes=shard_nbytes, batch_nbytes=nbytes) as writer:
            for number in range(shards * rows):
                writer.write({"payload": sample_bytes(seed, number, nbytes), "number": number})
        data = open_dataset(folder)
        assert data.num_shards == shards
        return data

    return make


@pytest.fixture
def opened() -> Iterator[OpenStore]:
    """Opens stores that are closed after the test, also when it fails."""
    stores: list[ShardStore] = []

    def open_one(data: StoredDataset, config: CacheConfig) -> ShardStore:
        stores.append(open_store(data, config))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()
