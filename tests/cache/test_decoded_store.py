"""Files of decoded samples: filled in any order, found by others, never believed when damaged, within the budget."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from forebay.cache import CacheConfig, ShardStore
from forebay.cache.decoded_file import DecodedFile
from forebay.cache.decoded_names import decoded_key, decoded_name, is_decoded, key_of, shard_of
from forebay.cache.decoded_store import DecodedStore
from forebay.sharding import EpochOrder, StoredDataset
from tests.cache.on_disk import used_nbytes

MakeDataset = Callable[..., StoredDataset]
MakeStore = Callable[..., DecodedStore]
OpenStore = Callable[[StoredDataset, CacheConfig], ShardStore]

SIZES = [60, 3 * 9 * 7, 0, 3 * 5 * 5]


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def data(make_dataset: MakeDataset) -> StoredDataset:
    return make_dataset()


@pytest.fixture
def stores() -> Iterator[MakeStore]:
    opened: list[DecodedStore] = []

    def open_one(config: CacheConfig, data: StoredDataset, what: str = "pixels") -> DecodedStore:
        opened.append(DecodedStore(config, data, what))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def config(tmp_path: Path) -> CacheConfig:
    return CacheConfig(path=tmp_path / "cache", budget=1 << 20)


@pytest.fixture
def file(stores: MakeStore, config: CacheConfig, data: StoredDataset) -> Iterator[DecodedFile]:
    made = stores(config, data).make(0, SIZES)
    assert made is not None
    yield made
    made.close()


def path_of(config: CacheConfig) -> Path:
    (path,) = (path for path in config.path.rglob("*.decoded"))
    return path


def test_names_tell_shard_and_kind() -> None:
    key = decoded_key("image, resized")
    name = decoded_name("shard-00001.arrow", key)
    assert shard_of(name) == "shard-00001.arrow"
    assert key_of(name) == key
    assert is_decoded(name)
    assert shard_of("shard-00001.arrow") == "shard-00001.arrow"
    assert key_of("shard-00001.arrow") is None


def test_samples_come_back_as_they_were_written(file: DecodedFile) -> None:
    assert file.read(1) is None
    assert file.write(1, picture(9, 7))
    assert file.write(3, picture(5, 5, 1))
    assert np.array_equal(file.read(1), picture(9, 7))  # type: ignore[arg-type]
    assert np.array_equal(file.read(3), picture(5, 5, 1))  # type: ignore[arg-type]
    assert file.read(0) is None
    assert file.num_filled() == 2


def test_a_sample_without_room_is_not_written(file: DecodedFile) -> None:
    assert not file.write(2, picture(1, 1))
    assert not file.write(0, picture(9, 9))
    assert file.num_filled() == 0


def test_another_process_sees_what_was_filled_once_it_looks_again(
    file: DecodedFile, stores: MakeStore, config: CacheConfig, data: StoredDataset
) -> None:
    other = stores(config, data).make(0, SIZES)
    assert other is not None
    file.write(1, picture(9, 7))
    assert other.read(1) is None
    other.refresh()
    assert np.array_equal(other.read(1), picture(9, 7))  # type: ignore[arg-type]
    other.close()


def test_every_flipped_byte_is_found_and_none_is_believed(
    file: DecodedFile, stores: MakeStore, config: CacheConfig, data: StoredDataset
) -> None:
    file.write(0, picture(4, 5))
    path = path_of(config)
    whole = path.read_bytes()
    used = [i for i in range(len(whole)) if i < 24 + 8 * 5 + 16 or 4096 <= i < 4096 + 60]
    for i in used:
        flipped = bytearray(whole)
        flipped[i] ^= 0x40
        path.write_bytes(flipped)
        other = stores(config, data).open(0)
        if other is None:  # of the header: the file is gone
            assert not path.exists()
            continue
        found = other.read(0)
        assert found is None
        other.close()
    path.write_bytes(whole)
    other = stores(config, data).open(0)
    assert other is not None
    assert np.array_equal(other.read(0), picture(4, 5))  # type: ignore[arg-type]
    other.close()


def test_a_file_that_was_cut_short_is_removed(
    file: DecodedFile, stores: MakeStore, config: CacheConfig, data: StoredDataset
) -> None:
    path = path_of(config)
    for nbytes in (0, 10, 30, 4096):
        path.write_bytes(path.read_bytes()[:nbytes])
        assert stores(config, data).open(0) is None
        assert not path.exists()
        again = stores(config, data).make(0, SIZES)
        assert again is not None
        again.close()


def test_another_description_has_other_files(
    file: DecodedFile, stores: MakeStore, config: CacheConfig, data: StoredDataset
) -> None:
    file.write(0, picture(4, 5))
    assert stores(config, data, "other pixels").open(0) is None


def test_a_file_counts_whole_and_what_does_not_fit_is_not_made(
    stores: MakeStore, tmp_path: Path, data: StoredDataset, opened: OpenStore
) -> None:
    config = CacheConfig(path=tmp_path / "cache", budget=60_000, min_free=0)
    opened(data, config)
    store = stores(config, data)
    files = [store.make(shard, [10_000, 10_000, 0, 0]) for shard in range(4)]
    assert [file is not None for file in files] == [True, True, False, False]
    assert store.is_full(0)
    assert used_nbytes(config.path) <= 60_000
    for file in files:
        if file is not None:
            file.close()


def test_files_of_a_kind_that_nobody_reads_make_room(
    stores: MakeStore, tmp_path: Path, data: StoredDataset, opened: OpenStore
) -> None:
    config = CacheConfig(path=tmp_path / "cache", budget=60_000, min_free=0)
    opened(data, config)
    old = stores(config, data, "old head")
    for shard in range(2):
        file = old.make(shard, [20_000, 0, 0, 0])
        assert file is not None
        file.close()
    assert stores(config, data, "new head").make(1, [20_000, 0, 0, 0]) is None
    old.close()
    new = stores(config, data, "new head")
    file = new.make(1, [20_000, 0, 0, 0])
    assert file is not None
    assert new.evicted >= 1
    file.close()


def test_decoded_samples_push_out_no_shard_that_is_read(
    stores: MakeStore, tmp_path: Path, make_dataset: MakeDataset, opened: OpenStore
) -> None:
    data = make_dataset(shards=6)
    config = CacheConfig(path=tmp_path / "cache", budget=int(data.shard_nbytes.sum()) + 6_000, min_free=0)
    store = opened(data, config)
    for shard in range(6):
        store.open_shard(shard).close()
    assert store.stats()["fetched"] == 6
    assert stores(config, data).make(0, [20_000, 0, 0, 0]) is None
    assert len(list((config.path / data.fingerprint).iterdir())) == 6


def test_decoded_samples_go_by_the_next_use_of_their_shard(
    stores: MakeStore, tmp_path: Path, make_dataset: MakeDataset, opened: OpenStore
) -> None:
    data = make_dataset(shards=6)
    shard_nbytes = int(data.shard_nbytes.max())
    config = CacheConfig(path=tmp_path / "cache", budget=2 * shard_nbytes + 32_000, min_free=0)
    decoded = stores(config, data)
    order = EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=0, epoch=0, shuffle=False, window=1)
    store = opened(data, config)
    for shard in (1, 5):
        file = decoded.make(shard, [8_000, 0, 0, 0])
        assert file is not None
        file.close()
    store.follow(order)
    for shard in range(4):
        store.open_shard(shard).close()
        store.advance(4 * (shard + 1))
    names = {shard_of(path.name) for path in (config.path / data.fingerprint).glob("*.decoded")}
    assert data.shard_name(1) not in names or data.shard_name(5) in names


def test_a_full_disk_leaves_no_file_and_is_no_error(
    stores: MakeStore, config: CacheConfig, data: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = stores(config, data)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert store.make(0, SIZES) is None
    assert store.is_full(0)
    assert list(config.path.rglob("*.decoded*")) == []


def test_an_evicted_file_says_so(file: DecodedFile, config: CacheConfig) -> None:
    file.write(0, picture(4, 5))
    assert file.kept()
    path_of(config).unlink()
    assert not file.kept()
    assert np.array_equal(file.read(0), picture(4, 5))  # type: ignore[arg-type]
