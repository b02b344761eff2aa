from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.cache import CacheConfig, UnitStore, look_into_cache, open_table, open_units, verify_cache
from forebay.cache.shard_names import ShardNames
from forebay.errors import ClosedError, ConfigError, SchemaError
from forebay.sharding import EpochOrder, ParquetDataset

ROWS = 3000


@pytest.fixture
def data(tmp_path: Path) -> ParquetDataset:
    """12 units of 3,000 rows."""
    (tmp_path / "data").mkdir()
    for number in range(12):
        numbers = np.arange(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"a": numbers, "b": numbers / 2}), tmp_path / "data" / f"{number:02}.parquet")
    return ParquetDataset(open_table(tmp_path / "data", None), columns=["a", "b"])


def as_it_is(_: int, table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def cache(tmp_path: Path, budget: int = 1 << 26) -> CacheConfig:
    return CacheConfig(path=tmp_path / "cache", budget=budget, min_free=0)


def read_all(store: UnitStore, data: ParquetDataset) -> list[int]:
    return [value for unit in range(data.num_shards) for value in store.load(unit).batch["a"].to_pylist()]


def test_units_are_made_once_and_then_mapped(tmp_path: Path, data: ParquetDataset) -> None:
    for again in (False, True):
        store = open_units(data, cache(tmp_path), as_it_is, identity="x" * 32)
        assert read_all(store, data) == list(range(12 * ROWS))
        counts = store.stats()
        store.close()
        assert (counts["converted"], counts["hits"]) == ((0, 12) if again else (12, 0))
        assert (counts["source_nbytes"] == 0) is again
    whole, damaged, unknown = verify_cache(tmp_path / "cache", progress=lambda _: None)
    assert (whole, list(damaged), unknown) == (12, [], 0)
    (known,) = look_into_cache(tmp_path / "cache").data
    assert (known.shards, known.shards_of_data) == (12, 12)


def test_without_a_cache_every_load_decodes(data: ParquetDataset) -> None:
    store = open_units(data, None, as_it_is, identity="x" * 32)
    held = store.load(3)
    assert held.memory_nbytes > 0
    assert held.batch["a"][0].as_py() == 3 * ROWS
    store.load(3)
    assert store.stats()["converted"] == 2
    store.close()


def test_what_is_made_otherwise_has_other_names(tmp_path: Path, data: ParquetDataset) -> None:
    def doubled(_: int, table: pa.Table) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": [2 * value for value in table["a"].to_pylist()]})

    first = open_units(data, cache(tmp_path), as_it_is, identity="x" * 32)
    second = open_units(data, cache(tmp_path), doubled, identity="y" * 32)
    assert first.load(1).batch["a"][1].as_py() == ROWS + 1
    assert second.load(1).batch["a"][1].as_py() == 2 * (ROWS + 1)
    first.close()
    second.close()
    names = [path.name for path in (tmp_path / "cache" / data.fingerprint).iterdir()]
    assert ShardNames(data).find([*names, "unit-7~x", "unit-000000000099~x"]).tolist() == [1, 1, -1, -1]


def test_a_damaged_unit_is_dropped_and_made_again(
    tmp_path: Path, data: ParquetDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_units(data, cache(tmp_path), as_it_is, identity="x" * 32)
    store.load(0)
    store.close()
    (path,) = (tmp_path / "cache" / data.fingerprint).iterdir()
    content = bytearray(path.read_bytes())
    content[-2000] ^= 4
    path.write_bytes(content)
    assert len(verify_cache(tmp_path / "cache", progress=lambda _: None)[1]) == 1
    path.write_bytes(content)
    monkeypatch.setattr("forebay.cache.table_store._checked", set())  # as in a new process
    store = open_units(data, cache(tmp_path), as_it_is, identity="x" * 32)
    with caplog.at_level(logging.WARNING):
        assert store.load(0).batch["a"].to_pylist() == list(range(ROWS))
    assert "checksum" in caplog.text
    assert (store.stats()["corrupt"], store.stats()["converted"]) == (1, 1)
    store.close()


def test_a_small_cache_keeps_within_its_budget_and_the_rest_stays_in_memory(
    tmp_path: Path, data: ParquetDataset
) -> None:
    budget = 200_000
    store = open_units(data, cache(tmp_path, budget), as_it_is, identity="x" * 32)
    order = EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=0, epoch=0, shuffle=False)
    store.follow(order, 0)
    for epoch in range(2):
        for unit in range(12):
            store.advance(unit * ROWS)
            assert store.load(unit).batch["a"][0].as_py() == unit * ROWS
            files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in files if path.parent.name == data.fingerprint) <= budget
        store.follow(order := order.following(), 0)
        assert epoch or store.stats()["hits"] == 0
    assert store.stats()["hits"] > 0
    store.close()


def test_a_unit_larger_than_it_was_estimated_is_kept(tmp_path: Path, data: ParquetDataset) -> None:
    def larger(_: int, table: pa.Table) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": table["a"].to_pylist(), "text": ["x" * 200] * len(table)})

    store = open_units(data, cache(tmp_path), larger, identity="x" * 32)
    read_all(store, data)
    assert store.stats()["fetched"] == 12
    assert store.load(5).memory_nbytes == 0
    store.close()


def test_several_threads_and_stores_make_each_unit_once(tmp_path: Path, data: ParquetDataset) -> None:
    stores = [open_units(data, cache(tmp_path), as_it_is, identity="x" * 32) for _ in range(2)]
    read: list[list[int]] = []
    threads = [threading.Thread(target=lambda s=store: read.append(read_all(s, data))) for store in stores * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [list(range(12 * ROWS))] * 4
    assert sum(store.stats()["converted"] for store in stores) == 12
    for store in stores:
        store.close()


def test_decoding_a_large_row_group_keeps_all_units_of_it(
    tmp_path: Path, data: ParquetDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.sharding.parquet_units.LARGEST_NBYTES", 10_000)
    parts = ParquetDataset(data.table, columns=["a", "b"])
    count = len(parts.units.siblings(0))
    assert count > 3
    store = open_units(parts, cache(tmp_path), as_it_is, identity="x" * 32)
    store.load(1)
    read = store.stats()["source_nbytes"]
    for unit in range(count):
        store.load(unit)
    assert store.stats()["source_nbytes"] == read
    assert store.stats()["converted"] == count
    store.close()


@pytest.mark.parametrize("budget", [None, 1 << 26])
def test_an_error_gives_the_room_back(tmp_path: Path, data: ParquetDataset, budget: int | None) -> None:
    def refuse(_: int, table: pa.Table) -> pa.RecordBatch:
        raise SchemaError("no")

    config = None if budget is None else cache(tmp_path, budget)
    store = open_units(data, config, refuse, identity="x" * 32)
    for _ in range(2):
        with pytest.raises(SchemaError):
            store.load(0)
    store.close()
    assert not list(tmp_path.rglob("*.part"))


def test_after_closing_nothing_is_loaded_and_what_is_held_stays(tmp_path: Path, data: ParquetDataset) -> None:
    store = open_units(data, cache(tmp_path), as_it_is, identity="x" * 32)
    held = store.load(0)
    store.close()
    store.close()
    with pytest.raises(ClosedError):
        store.load(1)
    assert held.batch["a"].to_pylist() == list(range(ROWS))


def test_a_table_within_the_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "cache" / "f.parquet")
    inside = ParquetDataset(open_table(tmp_path / "cache", None), columns=["a"])
    with pytest.raises(ConfigError, match="lies within the cache"):
        open_units(inside, cache(tmp_path), as_it_is, identity="x" * 32)
