from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from forebay.cache import count_rows, open_table
from forebay.errors import ForebayError, SchemaError, ShardCorruptError, SourceError
from forebay.sharding import ParquetDataset, UnitReader


def read(place: Path, *columns: str, expression: pc.Expression | None = None, rule: str = "error") -> pa.Table:
    table = open_table(place, None, schema_change=rule)  # type: ignore[arg-type]
    chosen = list(columns) or table.schema.names
    counts = None if expression is None else count_rows(table, chosen, expression, None)
    data = ParquetDataset(table, columns=chosen, expression=expression, counts=counts)
    reader = UnitReader(data)
    units = [reader.read(unit) for unit in range(data.num_shards)]
    assert [unit.num_rows for unit in units] == data.shard_rows.tolist()
    return pa.concat_tables(units) if units else table.schema.empty_table()


def numbers(rows: int, first: int = 0) -> pa.Table:
    return pa.table(
        {"a": np.arange(first, first + rows), "t": pa.array([f"t{i}" for i in range(first, first + rows)], pa.string())}
    )


def test_a_file_is_read_as_pyarrow_reads_it(tmp_path: Path) -> None:
    nested = pa.array([{"x": [1, None], "y": None}, None] * 50)
    table = numbers(100).append_column("s.x", nested).append_column("a.b", pa.array([None, 1.5] * 50))
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=30)
    assert read(tmp_path / "f.parquet").equals(pq.read_table(tmp_path / "f.parquet"))
    assert read(tmp_path / "f.parquet", "a.b", "t").equals(table.select(["a.b", "t"]))


def test_a_tree_has_its_folders_names_as_columns(tmp_path: Path) -> None:
    for year, first in ((2024, 10), (2023, 0)):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(numbers(10, first), tmp_path / f"year={year}" / "f.parquet")
    (tmp_path / "_SUCCESS").touch()
    table = read(tmp_path)
    assert table["a"].to_pylist() == list(range(20))
    assert table["year"].to_pylist() == [2023] * 10 + [2024] * 10
    assert read(tmp_path, "year")["year"].to_pylist() == [2023] * 10 + [2024] * 10


def test_a_filter_leaves_its_rows_and_spares_row_groups(tmp_path: Path) -> None:
    pq.write_table(numbers(100), tmp_path / "f.parquet", row_group_size=10)
    expression = (pc.field("a") >= 42) & (pc.field("t") != "t50")
    left = read(tmp_path, "t", expression=expression)
    assert left["t"].to_pylist() == [f"t{i}" for i in range(42, 100) if i != 50]
    assert read(tmp_path, "t", expression=pc.field("a") > 1000).num_rows == 0


def test_a_row_group_larger_than_a_unit_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.sharding.parquet_units.LARGEST_NBYTES", 100_000)
    monkeypatch.setattr("forebay.sharding.parquet_read.PIECE_ROWS", 999)
    pq.write_table(numbers(50_000), tmp_path / "f.parquet")
    data = ParquetDataset(open_table(tmp_path, None), columns=["t", "a"])
    assert data.num_shards > 5
    assert read(tmp_path, "t", "a").equals(numbers(50_000).select(["t", "a"]))
    last = UnitReader(data).read(data.num_shards - 1)
    assert last["a"][-1].as_py() == 49_999


def test_empty_files_and_row_groups_add_nothing(tmp_path: Path) -> None:
    pq.write_table(numbers(0), tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", numbers(0).schema) as writer:
        for rows in (0, 3, 0):
            writer.write_table(numbers(rows))
    with pq.ParquetWriter(tmp_path / "c.parquet", numbers(0).schema):
        pass
    assert read(tmp_path).equals(numbers(3))
    assert read(tmp_path / "c.parquet").num_rows == 0


def test_three_thousand_columns_are_read(tmp_path: Path) -> None:
    wide = pa.table({f"c{i}": [i, i + 1] for i in range(3000)})
    pq.write_table(wide, tmp_path / "f.parquet")
    assert read(tmp_path).equals(wide)
    assert read(tmp_path, "c2999", "c0").equals(wide.select(["c2999", "c0"]))


def test_missing_columns_and_wider_numbers_are_promoted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([1 << 40])}), tmp_path / "1.parquet")
    with pytest.raises(SchemaError, match=r"0\.parquet.*1\.parquet"):
        read(tmp_path)
    table = read(tmp_path, rule="promote")
    assert table.to_pydict() == {"a": [1, 1 << 40], "b": ["x", None]}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "f.parquet")
    with pytest.raises(SchemaError, match=r"f\.parquet.*two columns called 'a'"):
        read(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "short", "no footer", "long footer", "text", "bad footer"])
def test_what_is_no_parquet_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    pq.write_table(numbers(100), tmp_path / "g.parquet")
    content = (tmp_path / "g.parquet").read_bytes()
    damaged = {
        "empty": b"",
        "short": b"PAR1",
        "no footer": content[:-20],
        "long footer": content[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1",
        "text": b"these are not the bytes of a table",
        "bad footer": content[:-60] + b"\xff" * 52 + content[-8:],
    }[damage]
    (tmp_path / "f.parquet").write_bytes(damaged)
    with pytest.raises(ShardCorruptError, match=r"f\.parquet of .* cannot be read as Parquet"):
        read(tmp_path)


def test_damaged_pages_are_refused_with_file_row_group_and_column(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(numbers(1000), path, row_group_size=500, compression="zstd", use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(ShardCorruptError, match=r"f\.parquet of .*, row groups? .*, column 't'"):
        read(tmp_path)


def test_a_flipped_bit_of_a_page_with_a_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(numbers(1000), path, compression="none", use_dictionary=False, write_page_checksum=True)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 100] ^= 1  # a value: without checksums a sound one
    path.write_bytes(content)
    with pytest.raises(ShardCorruptError, match=r"f\.parquet of .*, row groups? .*, column"):
        read(tmp_path)


@pytest.mark.parametrize("change", ["deleted", "replaced", "touched", "cut short"])
def test_a_file_that_changes_after_opening_is_refused_by_name(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(numbers(100), path)
    data = ParquetDataset(open_table(tmp_path, None), columns=["a"])
    reader = UnitReader(data)
    assert reader.read(0).num_rows == 100
    if change == "deleted":
        path.unlink()
    elif change == "touched":
        os.utime(path, ns=(0, 0))
    elif change == "cut short":
        os.truncate(path, 200)
    else:
        pq.write_table(numbers(100, 7), path)
        os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"f\.parquet"):
        reader.read(0)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    pq.write_table(numbers(10), tmp_path / "out" / "f.parquet")
    (tmp_path / "in" / "f.parquet").symlink_to(tmp_path / "out" / "f.parquet")
    with pytest.raises(SourceError, match="outside"):
        read(tmp_path / "in")
    (tmp_path / "in" / "f.parquet").unlink()
    (tmp_path / "in" / "more").symlink_to(tmp_path / "out")
    with pytest.raises(ForebayError, match="link to a folder"):
        read(tmp_path / "in")


def test_the_fingerprint_is_of_the_content_and_of_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    pq.write_table(numbers(100), tmp_path / "one" / "f.parquet")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two" / "f.parquet", ns=(5, 5))

    def fingerprint(folder: str, *columns: str, expression: pc.Expression | None = None, more: bytes = b"") -> str:
        table = open_table(tmp_path / folder, None)
        counts = None if expression is None else count_rows(table, columns, expression, None)
        data = ParquetDataset(table, columns=columns, expression=expression, identity=more, counts=counts)
        again: ParquetDataset = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own bytes
        assert again.fingerprint == data.fingerprint
        return data.fingerprint

    same = fingerprint("one", "a", "t")
    assert fingerprint("two", "a", "t") == same
    others = {
        fingerprint("one", "a"),
        fingerprint("one", "t", "a"),
        fingerprint("one", "a", "t", more=b"f"),
        fingerprint("one", "a", "t", expression=pc.field("a") >= 0),
        fingerprint("one", "a", "t", expression=pc.field("a").isin(range(1000))),
        fingerprint("one", "a", "t", expression=pc.field("a").isin([*range(500), 5000, *range(501, 1000)])),
    }
    (tmp_path / "two" / "f.parquet").rename(tmp_path / "two" / "g.parquet")
    others.add(fingerprint("two", "a", "t"))
    assert same not in others
    assert len(others) == 7
