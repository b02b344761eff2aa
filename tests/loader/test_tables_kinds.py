"""Situation 21: nulls, large lists, dictionaries, timestamps, decimals, files without rows: all as pyarrow has them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ConfigError, SchemaError

ROWS = 500
ZONE = datetime.timezone(datetime.timedelta(hours=2))
DECLARED: dict[str, Any] = {
    "nulls": {"age": T.Fill(-1), "score": T.AsNaN(), "seen": T.Mask()},
    "ragged": {"history": T.Padded(7, lengths=True)},
    "vocabularies": {"city": T.Vocabulary([f"city{i}" for i in range(7)])},
    "transforms": {"price": [T.Cast(torch.float64)]},
}


def columns(begin: int, end: int) -> dict[str, pa.Array]:
    """Rows of every kind."""
    rows = range(begin, end)
    start = datetime.datetime(2024, 1, 1, tzinfo=ZONE)
    return {
        "number": pa.array(rows, pa.int64()),
        "age": pa.array([None if i % 5 == 0 else i for i in rows], pa.int32()),
        "score": pa.array([None if i % 3 == 0 else i / 4 for i in rows], pa.float32()),
        "seen": pa.array([None if i % 2 == 0 else i > 50 for i in rows], pa.bool_()),
        "history": pa.array([list(range(i % 7)) for i in rows], pa.large_list(pa.int16())),
        "city": pa.array([f"city{i % 7}" for i in rows], pa.string()).dictionary_encode(),
        "time": pa.array([start + datetime.timedelta(minutes=i) for i in rows], pa.timestamp("us", "Europe/Oslo")),
        "day": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in rows], pa.date32()),
        "price": pa.array([Decimal(i) / 8 for i in rows], pa.decimal128(12, 3)),
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with rows, and between them some without: of no row group, and of an empty one."""
    root = tmp_path_factory.mktemp("table")
    schema = pa.schema([pa.field(name, array.type) for name, array in columns(0, 1).items()])
    for number, (begin, end) in enumerate([(0, 0), (0, 200), (200, 200), (200, ROWS), (ROWS, ROWS)]):
        path = root / f"{number}.parquet"
        if begin == end == 200:
            with pq.ParquetWriter(path, schema):
                pass
        else:
            pq.write_table(pa.table(columns(begin, end), schema), path, row_group_size=90)
    return root


def epoch(table: Path, **options: Any) -> dict[str, list[Any]]:
    """All outputs, in the order of the numbers."""
    settings = {name: options.pop(name) for name in ("rank", "world_size") if name in options}
    dataset = ShardDataset(table, **(DECLARED | options))
    rows: list[tuple[Any, ...]] = []
    with DataLoader(dataset, batch_size=64, shuffle=True, seed=1, **settings) as loader:
        for batch in loader:
            values = [value.tolist() if isinstance(value, torch.Tensor) else value for value in batch.values()]
            rows += zip(*values, strict=True)
    order = dataset.outputs.index("number")
    rows.sort(key=lambda row: row[order])
    return dict(zip(dataset.outputs, map(list, zip(*rows, strict=True)), strict=True))


def test_every_kind_is_what_pyarrow_reads(table: Path, tmp_path: Path) -> None:
    whole = pq.read_table(table)
    for cache in ("", f"{tmp_path / 'cache'}:1GB", f"{tmp_path / 'cache'}:1GB"):
        got = epoch(table, cache=cache)
        assert got["number"] == whole["number"].to_pylist() == list(range(ROWS))
        assert got["age"] == whole["age"].fill_null(-1).to_pylist()
        expected = whole["score"].fill_null(float("nan")).to_numpy()
        assert np.array_equal(np.array(got["score"], np.float32), expected, equal_nan=True)
        assert got["seen__mask"] == whole["seen"].is_valid().to_pylist()
        assert [bool(seen) for seen in got["seen"]] == [bool(seen) for seen in whole["seen"].to_pylist()]
        assert got["history__length"] == pc.list_value_length(whole["history"]).to_pylist()
        assert [row[:row_length] for row, row_length in zip(got["history"], got["history__length"], strict=True)] == (
            whole["history"].to_pylist()
        )
        assert got["city"] == [1 + i % 7 for i in range(ROWS)]
        assert got["time"] == whole["time"].cast(pa.int64()).to_pylist()
        assert got["day"] == whole["day"].cast(pa.int32()).to_pylist()
        assert got["price"] == [float(price) for price in whole["price"].to_pylist()]


def test_two_ranks_get_the_same_kinds_and_every_row_once(table: Path) -> None:
    whole = epoch(table)
    parts = [epoch(table, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(parts[0]["number"] + parts[1]["number"]) == whole["number"]
    for part in parts:
        for name in ("age", "history", "city", "time", "price"):
            assert part[name] == [whole[name][number] for number in part["number"]]


@pytest.mark.parametrize(
    ("left_out", "column", "error", "said"),
    [
        ("nulls", "age", SchemaError, r"'age' .*\d\.parquet of .*row group"),
        ("transforms", "price", ConfigError, r"'price' is decimal128\(12, 3\).*T\.Cast"),
    ],
)
def test_what_no_rule_says_is_an_error_that_names_the_column(
    left_out: str, column: str, error: type[Exception], said: str, table: Path
) -> None:
    with pytest.raises(error, match=said):
        next(iter(DataLoader(ShardDataset(table, columns=["number", column]), batch_size=100)))
    kept: dict[str, Any] = {left_out: {column: DECLARED[left_out][column]}}
    assert next(iter(DataLoader(ShardDataset(table, columns=["number", column], **kept), batch_size=100)))


def test_lists_and_dictionaries_without_a_rule_are_jagged_and_as_they_are(table: Path) -> None:
    dataset = ShardDataset(table, columns=["history", "city", "time"])
    batch = next(iter(DataLoader(dataset, batch_size=10)))
    assert batch["history"].is_nested
    assert [part.tolist() for part in batch["history"].unbind()] == [list(range(i % 7)) for i in range(10)]
    assert batch["city"] == [f"city{i % 7}" for i in range(10)]
    assert dataset.view is not None
    (time,) = [output for output in dataset.view.plan.outputs if output.name == "time"]
    assert time.source == ("time timestamp[us, tz=Europe/Oslo]",)
