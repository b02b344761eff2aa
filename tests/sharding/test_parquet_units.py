from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SchemaError
from forebay.sharding import is_hidden
from forebay.sharding.parquet_paths import parse_partitions
from forebay.sharding.parquet_schema import fixed_width, leaves_of, unify_schemas
from forebay.sharding.parquet_units import LARGEST_NBYTES, SMALLEST_NBYTES, plan_units

groups = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3 * LARGEST_NBYTES)), max_size=12)


@given(files=st.lists(groups, max_size=4))
def test_units_hold_every_row_once_in_the_order_of_the_files(files: list[list[tuple[int, int]]]) -> None:
    starts = np.cumsum([0, *(len(file) for file in files)])
    rows = np.array([count for file in files for count, _ in file], np.int64)
    nbytes = np.array([size for file in files for _, size in file], np.int64)
    units = plan_units(starts, rows, nbytes)
    held = [
        (file, sum(count for count, _ in files[file][:first]) + row)
        for file, first, begin, end in zip(units.files, units.first_groups, units.begins, units.ends, strict=True)
        for row in range(begin, end)
    ]
    assert held == [(k, row) for k, file in enumerate(files) for row in range(sum(count for count, _ in file))]


@given(file=groups)
def test_a_unit_is_a_part_of_one_large_row_group_or_a_whole_number_of_row_groups(file: list[tuple[int, int]]) -> None:
    rows = np.array([count for count, _ in file], np.int64)
    nbytes = np.array([size for _, size in file], np.int64)
    units = plan_units(np.array([0, len(file)]), rows, nbytes)
    for unit in range(len(units)):
        first, end = int(units.first_groups[unit]), int(units.end_groups[unit])
        whole = int(rows[first:end].sum())
        if units.rows[unit] < whole:
            assert end == first + 1
            assert len(units.siblings(unit)) > 1
            assert units.rows[unit] == 1 or units.nbytes[unit] <= 1.5 * LARGEST_NBYTES
        else:
            assert units.siblings(unit) == range(unit, unit + 1)
            assert end == first + 1 or int(nbytes[first : end - 1].sum()) < SMALLEST_NBYTES


def test_small_row_groups_are_joined_and_large_ones_divided() -> None:
    rows = np.array([10, 10, 10, 1000, 10], np.int64)
    nbytes = np.array([SMALLEST_NBYTES // 2, SMALLEST_NBYTES // 2, 100, 2 * LARGEST_NBYTES, 100], np.int64)
    units = plan_units(np.array([0, 5]), rows, nbytes)
    told = list(zip(units.first_groups, units.end_groups, units.begins, units.ends, strict=True))
    assert told == [(0, 2, 0, 20), (2, 3, 0, 10), (3, 4, 0, 500), (3, 4, 500, 1000), (4, 5, 0, 10)]
    assert units.siblings(2) == units.siblings(3) == range(2, 4)


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("a.parquet", False),
        ("y=1/a.parquet", False),
        ("_y=1/a.parquet", False),
        ("_SUCCESS", True),
        (".a.parquet.crc", True),
        ("_temporary/0/a.parquet", True),
        (".git/y=1/a.parquet", True),
        ("y=1/_metadata", True),
    ],
)
def test_files_that_pyarrow_passes_over_are_hidden(path: str, hidden: bool) -> None:
    assert is_hidden(path) is hidden


def test_folder_names_are_columns_of_numbers_or_text() -> None:
    found = parse_partitions(["y=1/k=a%20b/f", "y=-20/k=__HIVE_DEFAULT_PARTITION__/f"], "d")
    assert [(field.name, field.type) for field in found.fields] == [("y", pa.int32()), ("k", pa.string())]
    assert found.values == ((1, "a b"), (-20, None))
    assert parse_partitions(["y=01/f", "y=2/f"], "d").values == (("01",), ("2",))
    assert parse_partitions(["y=3000000000/f"], "d").fields[0].type == pa.int64()


def test_files_under_other_keys_are_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="z=1/f"):
        parse_partitions(["y=1/f", "z=1/f"], "d")


def test_a_missing_column_and_another_type_are_errors_or_promoted() -> None:
    one = pa.schema([("a", pa.int32()), ("b", pa.string())])
    other = pa.schema([("a", pa.int64())])
    with pytest.raises(SchemaError, match=r"column 'a' is int32 in f0 and int64 in f1.*promote"):
        unify_schemas([("f0", one), ("f1", other)], "error", "d")
    promoted = unify_schemas([("f0", one), ("f1", other)], "promote", "d")
    assert promoted.types == [pa.int64(), pa.string()]
    with pytest.raises(SchemaError, match="f1"):
        unify_schemas([("f0", one), ("f1", pa.schema([("a", pa.string())]))], "promote", "d")


def test_leaves_are_those_that_parquet_has(tmp_path: Path) -> None:
    deep = pa.struct([("x", pa.list_(pa.struct([("u", pa.int8()), ("v", pa.map_(pa.string(), pa.int32()))])))])
    schema = pa.schema(
        [("a.b", pa.int32()), ("s", deep), ("d", pa.dictionary(pa.int8(), pa.string())), ("n", pa.list_(pa.int8(), 3))]
    )
    pq.write_table(schema.empty_table(), tmp_path / "f.parquet")
    leaves = leaves_of(schema)
    assert [len(each) for each in leaves] == [1, 3, 1, 1]
    assert leaves[-1].stop == pq.read_metadata(tmp_path / "f.parquet").num_columns


def test_widths_are_those_of_arrow() -> None:
    assert [fixed_width(t) for t in (pa.bool_(), pa.int16(), pa.list_(pa.float32(), 4), pa.decimal128(5, 2))] == [
        1,
        2,
        16,
        16,
    ]
    assert fixed_width(pa.string()) is None
    assert fixed_width(pa.struct([("a", pa.int8()), ("b", pa.string())])) is None
