from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from torch.utils.data import RandomSampler

from forebay import DataLoader, ShardDataset
from forebay.benchmarks.range_server import RangeServer
from forebay.errors import ConfigError, SampleError, SchemaError, ShardCorruptError, SourceError, StateError

ROWS = 5000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 files in 2 folders, 5,000 rows, 10 units: row groups of 500."""
    root = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    for number in range(4):
        (root / f"half={number // 2}").mkdir(exist_ok=True)
        first = number * ROWS // 4
        columns = {
            "number": np.arange(first, first + ROWS // 4),
            "name": [f"n{i}" for i in range(first, first + ROWS // 4)],
            **{f"f{i}": rng.random(ROWS // 4, np.float32) for i in range(3)},
            "wide": pa.FixedSizeListArray.from_arrays(rng.random(150 * ROWS), 600),
        }
        path = root / f"half={number // 2}" / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=500)
    return root


def digest(batches: Iterable[dict[str, Any]]) -> str:
    state = xxhash.xxh3_128()
    for batch in batches:
        for name, value in batch.items():
            content = value.contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
            state.update(name.encode() + content)
    return state.hexdigest()


def loader(place: Any, *, of: dict[str, Any] | None = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(ShardDataset(place, **(of or {})), **{"batch_size": 64, "shuffle": True, "seed": 5} | options)


def test_an_epoch_has_every_row_once_with_its_own_columns(table: Path) -> None:
    of = {"columns": ["number", "name", "half", "__index__"]}
    for window in (1, 3, None):
        batches = list(loader(table, of=of, window=window))
        numbers = torch.cat([batch["number"] for batch in batches])
        assert sorted(numbers.tolist()) == list(range(ROWS))
        assert numbers.tolist() != list(range(ROWS))
        for batch in batches:
            assert batch["name"] == [f"n{i}" for i in batch["number"].tolist()]
            assert batch["half"].tolist() == (batch["number"] * 2 // ROWS).tolist()
            assert batch["__index__"].equal(batch["number"])


def test_stacked_columns_are_one_tensor(table: Path) -> None:
    of = {"columns": ["number", "f0", "f1", "f2"], "stack": {"x": ["f0", "f1", "f2"]}}
    everything = pq.read_table(table, columns=["f0", "f1", "f2"])
    expected = np.stack([column.to_numpy() for column in everything.columns], axis=1)
    for batch in loader(table, of=of):
        assert batch["x"].shape == (len(batch["number"]), 3)
        assert np.array_equal(batch["x"].numpy(), expected[batch["number"].numpy()])


def test_the_batches_depend_on_neither_threads_nor_the_cache(table: Path, tmp_path: Path) -> None:
    told = set()
    for threads in (1, 2, 4):
        for cache in ("", f"{tmp_path / 'large'}:1GB", f"{tmp_path / 'small'}:8MB"):
            reading = loader(table, of={"cache": cache}, num_workers=threads, window=3)
            told.add(tuple(digest(reading) for _ in range(3)))
    (epochs,) = told
    assert len(set(epochs)) == 3


def test_the_second_epoch_reads_and_converts_nothing(table: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    counted.version = "1"  # type: ignore[attr-defined]
    of = {"cache": f"{tmp_path / 'cache'}:1GB", "table_transform": counted}
    reading = loader(table, of=of)
    list(reading)
    assert sum(calls) == ROWS
    calls.clear()
    reading.reset_stats()
    list(reading)
    stats = reading.stats()
    assert (stats.read_nbytes, stats.cache["converted"], stats.cache["source_nbytes"], calls) == (0, 0, 0, [])
    assert stats.cache["hits"] > 0


def test_a_state_goes_on_with_the_next_batch_on_any_number_of_threads(table: Path) -> None:
    reading = loader(table, num_workers=2, window=2)
    list(reading)
    batches = iter(reading)
    for _ in range(20):
        next(batches)
    state = reading.state_dict()
    rest = digest(batches)
    again = loader(table, num_workers=4, seed=None, shuffle=None)
    again.load_state_dict(state)
    assert digest(again) == rest
    other = loader(table, of={"columns": ["number"]}, seed=None)
    with pytest.raises(StateError, match="another data set"):
        other.load_state_dict(state)


def test_ranks_share_out_every_global_batch(table: Path) -> None:
    of = {"columns": ["number"]}
    whole = [batch["number"] for batch in loader(table, of=of, batch_size=100)]
    ranks = [
        [
            batch["number"]
            for batch in loader(table, of=of, batch_size=None, global_batch_size=100, rank=rank, world_size=3)
        ]
        for rank in range(3)
    ]
    assert [len(each) for each in ranks] == [len(whole)] * 3
    for number, batch in enumerate(whole):
        assert torch.cat([each[number] for each in ranks]).equal(batch)


def test_a_filter_makes_length_and_batches_exact(table: Path, tmp_path: Path) -> None:
    expression = (pc.field("number") < 4321) & (pc.field("half") == 1)
    of = {"filter": expression, "columns": ["name"], "cache": f"{tmp_path / 'cache'}:1GB"}
    for _ in range(2):
        assert len(ShardDataset(table, **of)) == 4321 - ROWS // 2
        reading = loader(table, of=of)
        assert len(reading) == -(-(4321 - ROWS // 2) // 64)
        names = [name for batch in reading for name in batch["name"]]
        assert sorted(names) == sorted(f"n{i}" for i in range(ROWS // 2, 4321))


def test_samples_by_index_are_those_of_the_file(table: Path) -> None:
    dataset = ShardDataset(table, columns=["number", "name", "f1", "__index__"])
    first, last = dataset[[3, -1]]
    assert (first["number"].item(), first["name"], last["__index__"].item()) == (3, "n3", ROWS - 1)
    with pytest.raises(IndexError):
        dataset[ROWS]
    batches = torch.utils.data.DataLoader(dataset, batch_size=4)
    assert next(iter(batches))["number"].tolist() == [0, 1, 2, 3]
    dataset.close()


def test_a_sampler_says_which_rows_come(table: Path, tmp_path: Path) -> None:
    for cache in ("", f"{tmp_path / 'cache'}:1GB"):
        dataset = ShardDataset(table, columns=["number"], cache=cache)
        chosen = list(RandomSampler(dataset, num_samples=500, generator=torch.Generator().manual_seed(1)))
        reading = DataLoader(dataset, batch_size=50, sampler=chosen)
        assert torch.cat([batch["number"] for batch in reading]).tolist() == chosen


def test_batches_that_are_kept_stay_as_they_are(table: Path) -> None:
    reading = loader(table, of={"columns": ["number", "f0"]}, num_workers=2)
    batches, copies = [], []
    for batch in reading:
        batches.append(batch)
        copies.append({name: value.clone() for name, value in batch.items()})
    assert all(a[name].equal(b[name]) for a, b in zip(batches, copies, strict=True) for name in a)


def test_leaving_early_ends_every_thread(table: Path) -> None:
    before = threading.active_count()
    reading = loader(table, num_workers=4)
    batches = iter(reading)
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


def test_an_error_comes_in_the_place_of_its_batch_and_names_file_and_row_group(tmp_path: Path) -> None:
    columns = {"a": np.arange(4000), "b": np.random.default_rng(0).random(4000)}
    wide = pa.FixedSizeListArray.from_arrays(np.random.default_rng(0).random(4000 * 300), 300)
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table(columns | {"w": wide}), path, row_group_size=1000, compression="zstd")
    chunk = pq.read_metadata(path).row_group(2).column(2)
    content = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    content[middle : middle + 100] = bytes(100)
    path.write_bytes(content)
    for threads in (1, 3):
        batches = iter(loader(path, shuffle=False, batch_size=100, num_workers=threads))
        received: list[torch.Tensor] = []
        with pytest.raises(ShardCorruptError, match=r"f\.parquet of .*, row group 2, column 'w'"):
            received.extend(batch["a"] for batch in batches)
        assert torch.cat(received).tolist() == list(range(100 * len(received)))


def test_a_file_that_is_deleted_during_the_run_is_named(table: Path, tmp_path: Path) -> None:
    for number in range(40):
        wide = pa.FixedSizeListArray.from_arrays(np.zeros(200 * 1000), 1000)
        pq.write_table(pa.table({"a": np.full(200, number), "w": wide}), tmp_path / f"{number:02}.parquet")
    batches = iter(loader(tmp_path, shuffle=False, batch_size=200, num_workers=1))
    next(batches)
    (tmp_path / "39.parquet").unlink()
    with pytest.raises(SourceError, match=r"39\.parquet"):
        for _ in batches:
            pass


def test_a_window_that_no_memory_holds_is_refused_with_one_that_fits(table: Path, tmp_path: Path) -> None:
    of: dict[str, Any] = {"memory_nbytes": 8_000_000}
    with pytest.raises(ConfigError, match=r"window=\d.*larger memory_nbytes") as raised:
        loader(table, of=of)
    assert len(list(loader(table, of=of, window=raised.value.fitting))) == -(-ROWS // 64)
    loader(table, of=of | {"cache": f"{tmp_path / 'cache'}:1GB"})
    loader(table, of=of, shuffle=False)
    with pytest.raises(ConfigError, match="memory_nbytes=0"):
        loader(table, of={"memory_nbytes": 0})


@pytest.mark.parametrize("option", [{"on_error": "skip"}, {"decode": "library"}, {"max_bad": 3}])
def test_settings_that_a_table_does_not_have_are_refused(table: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used with a table"):
        loader(table, **option)


def test_a_table_without_rows_has_no_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "f.parquet")
    assert list(loader(tmp_path)) == []


def test_what_is_for_tables_is_refused_for_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='format="parquet"'):
        ShardDataset(tmp_path, filter=pc.field("a") > 1)
    with pytest.raises(ConfigError, match="format="):
        ShardDataset(tmp_path, format="orc")  # type: ignore[arg-type]


def test_a_transform_acts_on_whole_units_and_keeps_their_rows(table: Path) -> None:
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("twice", pc.multiply(batch["number"], 2))

    for batch in loader(table, of={"table_transform": doubled, "columns": ["number"]}):
        assert batch["twice"].equal(2 * batch["number"])

    def fewer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(1)

    dataset = ShardDataset(table, table_transform=fewer, columns=["number"])
    with pytest.raises(SampleError, match=r"0\.parquet of .*row groups? .*gave \d+ rows for \d+.*filter="):
        next(iter(DataLoader(dataset, batch_size=10)))


def test_a_transform_that_gives_other_columns_than_it_said_is_refused(table: Path) -> None:
    def moody(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if batch.num_rows else batch.append_column("more", pa.array([], pa.int8()))

    with pytest.raises(SchemaError, match="'more' no column instead of int8"):
        next(iter(loader(table, of={"table_transform": moody, "columns": ["number"]})))


def _count_rows(dataset: ShardDataset, out: Any) -> None:
    out.put(sum(len(batch["number"]) for batch in DataLoader(dataset, batch_size=100)))


def test_a_data_set_of_a_table_goes_to_another_process(table: Path) -> None:
    dataset = ShardDataset(table, columns=["number"], filter=pc.field("number") < 700)
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=_count_rows, args=(dataset, out))
    process.start()
    assert out.get(timeout=60) == 700
    process.join()
    out.close()
    out.join_thread()


@pytest.mark.parametrize("cached", [False, True])
def test_urls_of_files_give_the_batches_of_the_folder(cached: bool, table: Path, tmp_path: Path) -> None:
    of = {"columns": ["number", "name", "half"], "filter": pc.field("number") != 77}
    with RangeServer(table.parent) as server:
        urls = [f"{server.url}/{path.relative_to(table.parent)}" for path in sorted(table.rglob("*.parquet"))]
        far = ShardDataset(urls, cache=f"{tmp_path / 'cache'}:1GB" if cached else "", **of)
        assert far.fingerprint == ShardDataset(table, **of).fingerprint
        reading = DataLoader(far, batch_size=64, shuffle=True, seed=5)
        assert [digest(reading) for _ in range(2)] == [digest(epoch) for epoch in _two_epochs(table, of)]
        if cached:
            reading.reset_stats()
            list(reading)
            assert reading.stats().cache["requests"] == 0


def _two_epochs(table: Path, of: dict[str, Any]) -> list[list[dict[str, Any]]]:
    reading = loader(table, of=of)
    return [list(reading), list(reading)]


def test_a_file_behind_a_url_that_was_replaced_is_refused(tmp_path: Path) -> None:
    columns = {"a": np.arange(1000), "b": np.zeros(1000)}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet", compression="none", use_dictionary=False)
    with RangeServer(tmp_path) as server:
        dataset = ShardDataset(f"{server.url}/f.parquet")
        columns["a"] = columns["a"][::-1].copy() + 1
        pq.write_table(pa.table(columns), tmp_path / "f.parquet", compression="none", use_dictionary=False)
        server._files.clear()
        with pytest.raises(ShardCorruptError, match=r"f\.parquet of .* was replaced"):
            next(iter(DataLoader(dataset, batch_size=10)))


def test_fewer_outputs_leave_the_rest_and_the_order_as_they_are(table: Path) -> None:
    whole = loader(table, of={"stack": {"features": ["f0", "f1"]}})
    fewer = loader(table, of={"stack": {"features": ["f0", "f1"]}})
    fewer.only(["name", "features", "__index__", "__weight__", "__valid__"])
    for number, (left, right) in enumerate(zip(whole, fewer, strict=True)):
        assert set(right) == {"name", "features", "__index__", "__weight__", "__valid__"}
        assert right["name"] == left["name"]
        assert torch.equal(right["features"], left["features"])
        assert right["__weight__"].item() == 1.0
        assert right["__valid__"].all()
        assert right["__index__"].tolist() == fewer.ids_of(batch=number).tolist()
    few = ShardDataset(table).only(["number", "__weight__"])
    assert few[3] == {"number": 3, "__weight__": 1.0}
    with pytest.raises(ConfigError, match="no output 'colour'"):
        few.only(["colour"])


def test_a_stage_between_reads_no_unit(table: Path, tmp_path: Path) -> None:
    middle = loader(table, of={"cache": f"{tmp_path / 'cache'}:1GB"})
    middle.only(["__valid__"])
    assert sum(len(batch["__valid__"]) for batch in middle) == ROWS
    counts = middle.stats().cache
    assert counts["source_nbytes"] == counts["fetched"] == 0


def test_a_short_batch_of_many_ranks_is_weighted(table: Path) -> None:
    of = {"columns": ["number", "__weight__", "__valid__"]}
    last = [
        list(loader(table, of=of, rank=rank, world_size=3, batch_size=64, tail=tail))[-1]
        for tail in ("short", "pad")
        for rank in range(3)
    ]
    for three in (last[:3], last[3:]):
        valid = sum(int(batch["__valid__"].sum()) for batch in three)
        assert valid == ROWS % 192
        for batch in three:
            assert batch["__weight__"].item() == pytest.approx(int(batch["__valid__"].sum()) * 3 / valid)


def test_on_two_nodes_the_global_batches_are_those_of_one(table: Path) -> None:
    of = {"columns": ["number", "__index__"]}
    whole = [sorted(batch["__index__"].tolist()) for batch in loader(table, of=of, batch_size=256)]
    ranks = [loader(table, of=of, batch_size=64, rank=rank, world_size=4, nodes=2) for rank in range(4)]
    parts = [list(each) for each in ranks]
    assert [
        sorted(i for part in four for i in part["__index__"].tolist()) for four in zip(*parts, strict=True)
    ] == whole
    assert all(part["number"].tolist() == part["__index__"].tolist() for batches in parts for part in batches)
    assert sum(each.stats().excess for each in ranks) > 0
