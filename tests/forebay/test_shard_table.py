"""`forebay shard` of tables: rows become samples in order, a function drops and adds some, a stop is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay import DataLoader, ShardDataset
from forebay.cli.app import app
from forebay.cli.shard_table import write_table
from forebay.errors import ConfigError, SampleError, SchemaError
from forebay.sharding import ShardWriter

ROWS = 900
FUNCTIONS = '''
import pyarrow as pa
import pyarrow.compute as pc

def sessions(batch):
    """Drops rows of odd numbers, and stores the others twice."""
    even = pa.table(batch).filter(pc.equal(pc.bit_wise_and(batch["number"], 1), 0))
    twice = even.take(pa.array([row // 2 for row in range(2 * len(even))], pa.int64()))
    return {"number": twice["number"], "half": pc.divide(twice["number"], 2)}

def nothing(batch):
    return batch.slice(0, 0)

def failing(batch):
    return batch.slice(0, 0) if not batch.num_rows else batch["missing"]
'''


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """3 files, 900 rows, some megabytes: a unit of each row group but one, which is divided into two units."""
    (tmp_path / "table").mkdir()
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forebay.sharding.parquet_units.LARGEST_NBYTES", 1_500_000)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for part in range(3):
        rows = np.arange(300 * part, 300 * part + 300)
        wide = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(rows, 1000).astype(np.float64)), 1000)
        columns = {"number": rows, "name": [f"n{row}" for row in rows], "wide": wide}
        pq.write_table(pa.table(columns), tmp_path / "table" / f"{part}.parquet", row_group_size=200)
    yield tmp_path / "table"
    sys.modules.pop("my_functions", None)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    app([*map(str, arguments), "--json"], standalone_mode=False)
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def numbers(path: Path) -> list[int]:
    with DataLoader(ShardDataset(path, columns=["number"]), batch_size=50) as loader:
        return [number for batch in loader for number in batch["number"].tolist()]


def test_every_row_is_a_sample_in_the_order_of_the_files(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(capsys, "shard", table, tmp_path / "out", "--shard-size", "1MB")
    assert report["columns"] == {"number": "int64", "name": "str", "wide": "float64[1000]"}
    assert (report["rows"], report["table"]["rows"]) == (ROWS, ROWS)
    assert report["shards"] > 5
    dataset = ShardDataset(tmp_path / "out")
    for row, sample in enumerate(dataset[range(ROWS)]):
        assert (sample["number"].item(), sample["name"]) == (row, f"n{row}")
        assert (sample["wide"] == row).all()
    dataset.close()
    single = run(capsys, "shard", table, tmp_path / "again", "--shard-size", "1MB", "--workers", "1")
    assert single["fingerprint"] == report["fingerprint"]


def test_a_function_may_drop_and_add_rows_and_columns(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--column", "number", "--table-transform", "my_functions:sessions"]
    report = run(capsys, "shard", table, tmp_path / "out", *arguments)
    assert report["columns"] == {"number": "int64", "half": "int64"}
    assert numbers(tmp_path / "out") == [number for number in range(0, ROWS, 2) for _ in range(2)]


@pytest.mark.parametrize("transform", [None, "my_functions:sessions"])
def test_a_write_that_was_stopped_goes_on_to_the_same_shards(
    transform: str | None, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"transform": transform, "shard_nbytes": 3000 if transform else 1_000_000, "workers": 2}
    whole = write_table(str(table), tmp_path / "whole", **options)
    stop_after(monkeypatch, whole["rows"] // 2)
    with pytest.raises(KeyboardInterrupt):
        write_table(str(table), tmp_path / "stopped", **options)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forebay.sharding.parquet_units.LARGEST_NBYTES", 1_500_000)
    again = write_table(str(table), tmp_path / "stopped", resume=True, **options)
    assert again["fingerprint"] == whole["fingerprint"]
    assert 0 < again["resumed_rows"] < whole["rows"]


def stop_after(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Ctrl-C, when so many samples were given to the writer."""
    left, write = [samples], ShardWriter.write

    def stopping(writer: ShardWriter, sample: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(writer, sample)

    monkeypatch.setattr(ShardWriter, "write", stopping)


def test_a_write_is_not_resumed_with_another_table(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 500)
        with pytest.raises(KeyboardInterrupt):
            write_table(str(table), tmp_path / "out", shard_nbytes=1_000_000)
    (table / "2.parquet").unlink()
    with pytest.raises(ConfigError, match="other columns or settings"):
        write_table(str(table), tmp_path / "out", shard_nbytes=1_000_000, resume=True)


def test_what_cannot_be_stored_is_told_before_anything_is_written(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, error, said in (
        ({"columns": ["colour"]}, SchemaError, "no column 'colour'.*number, name, wide"),
        ({"transform": "my_functions:absent"}, ConfigError, "cannot be imported"),
        ({"transform": "absent_module:f"}, ConfigError, "cannot be imported"),
        ({"transform": "my_functions"}, ConfigError, "package.module:function"),
    ):
        with pytest.raises(error, match=said):
            write_table(str(table), out, **options)
    with pytest.raises(ConfigError, match="within"):
        write_table(str(table), table / "out")
    assert not out.exists()


def test_a_function_that_fails_is_named_with_its_place_and_nothing_is_finished(table: Path, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"failing on 0\.parquet of .*row groups?.*missing"):
        write_table(str(table), tmp_path / "out", transform="my_functions:failing")
    with pytest.raises(ConfigError, match=r"of 900 rows .* none is left"):
        write_table(str(table), tmp_path / "out", transform="my_functions:nothing")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_null_names_column_file_and_row_group(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": [None, 0.5]}), tmp_path / "f.parquet")
    with pytest.raises(SchemaError, match=r"f\.parquet of .*, row group 0: column 'b' has 1 nulls"):
        write_table(str(tmp_path / "f.parquet"), tmp_path / "out")


def test_options_of_the_other_kind_are_refused(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for arguments in (
        [table, "--check", "none"],
        [table, "--jpeg", "original"],
        [tmp_path / "photos", "--column", "a"],
        [tmp_path / "photos", "--schema-change", "promote"],
    ):
        with pytest.raises(ConfigError, match=f"{arguments[1]} is for (images|tables)"):
            run(capsys, "shard", arguments[0], tmp_path / "out", *arguments[1:])


def test_the_report_tells_columns_and_how_many_rows_stayed(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["shard", table, tmp_path / "out", "--table-transform", "my_functions:sessions"]
    app([*map(str, arguments)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "900 rows" in said
    assert "number int64, half int64" in said
