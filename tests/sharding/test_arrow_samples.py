"""Columns of Arrow as columns of samples: every type is kept as it is, or refused by name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.errors import SchemaError
from forebay.sharding import Schema, declare_columns, samples_of

KEPT: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([True, False, True]), "bool", [True, False, True]),
    (pa.array([1, 2, 255], pa.uint8()), "uint8", [1, 2, 255]),
    (pa.array([-(1 << 63), 0, 1]), "int64", [-(1 << 63), 0, 1]),
    (pa.array(np.array([0.5, 1, 2], np.float16)), "float16", [0.5, 1, 2]),
    (pa.array([0.1, 2, 3], pa.float32()), "float32", [np.float32(0.1).item(), 2, 3]),
    (pa.array(["a", "", "ü"]), "str", ["a", "", "ü"]),
    (pa.array(["a", "b", "c"], pa.string_view()), "str", ["a", "b", "c"]),
    (pa.array(["b", "a", "b"]).dictionary_encode(), "str", ["b", "a", "b"]),
    (pa.array([b"\xff", b"", b"x"], pa.large_binary()), "bytes", [b"\xff", b"", b"x"]),
    (pa.array([b"ab", b"cd", b"ef"], pa.binary(2)), "bytes", [b"ab", b"cd", b"ef"]),
    (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)), "int16[2]", [[1, 2], [3, 4], [5, 6]]),
    (
        pa.array([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]], pa.list_(pa.list_(pa.float32(), 2), 1)),
        "float32[1,2]",
        [[[1, 2]], [[3, 4]], [[5, 6]]],
    ),
    (pa.array([[1], [], [2, 3]], pa.large_list(pa.int64())), "int64[*]", [[1], [], [2, 3]]),
    (
        pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int32(), 2))),
        "int32[*,2]",
        [[[1, 2]], [], [[3, 4], [5, 6]]],
    ),
    (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int64).reshape(3, 2, 2)),
        "int64[2,2]",
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]],
    ),
]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("array", "spec", "values"), KEPT, ids=[str(array.type)[:30] for array, _, _ in KEPT])
def test_a_column_of_each_kind_is_kept_as_it_is(array: pa.Array, spec: str, values: list[Any]) -> None:
    table = pa.table({"c": pa.chunked_array([array[:1], array[1:]], array.type)})
    specs = declare_columns(table.schema, "here")
    assert specs == {"c": spec}
    assert Schema.from_spec(specs)["c"].spec == spec
    for skipped in range(4):
        samples = list(samples_of(table.slice(skipped), specs, "here"))
        assert [plain(sample["c"]) for sample in samples] == values[skipped:]


REFUSED = [
    pa.array([Decimal("1.5")]),
    pa.array([0], pa.timestamp("us", "UTC")),
    pa.array([0], pa.date32()),
    pa.array([{"a": 1}]),
    pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    pa.array([["a"]]),
    pa.array([[True]]),
    pa.array([[[1]]]),
    pa.nulls(1),
]


@pytest.mark.parametrize("array", REFUSED, ids=[str(array.type)[:30] for array in REFUSED])
def test_a_column_that_shards_have_no_kind_for_is_refused_by_name_and_type(array: pa.Array) -> None:
    with pytest.raises(SchemaError, match="here: shards have no kind for 'odd'") as raised:
        declare_columns(pa.table({"number": [1], "odd": array}).schema, "here")
    assert str(array.type) in str(raised.value)
    assert "number" not in str(raised.value).partition("for 'odd'")[0]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None]),
        pa.array(["a", None]).dictionary_encode(),
        pa.array([[1, None], [2, 3]], pa.list_(pa.int64(), 2)),
        pa.array([[1], [None]]),
        pa.array([[1], None]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
    ],
)
def test_a_null_is_refused_with_its_column(array: pa.Array) -> None:
    table = pa.table({"c": array})
    with pytest.raises(SchemaError, match="here: column 'c' has 1 nulls"):
        list(samples_of(table, declare_columns(table.schema, "here"), "here"))


def test_a_text_that_is_not_unicode_is_refused() -> None:
    wrong = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    table = pa.table({"c": wrong})
    with pytest.raises(SchemaError, match="column 'c' has a text"):
        list(samples_of(table, declare_columns(table.schema, "here"), "here"))


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SchemaError, match="two columns called 'a'"):
        declare_columns(table.schema, "here")
