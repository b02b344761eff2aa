"""What a plan refuses and why, what its outputs are, and what changes its identity."""

from __future__ import annotations

import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from forebay.errors import ConfigError, SchemaError, ShapeError, ShardCorruptError
from forebay.loader import transforms as T
from forebay.loader.table_plan import TablePlan


def gather_all(plan: TablePlan, table: pa.Table, out: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
    unit = plan.open(plan.prepare(table, "part.parquet, row group 3"))
    rows = np.arange(unit.rows, dtype=np.int64)
    return plan.gather([unit], np.zeros_like(rows), rows, out)


def test_a_stack_is_one_tensor_of_its_columns_and_they_are_outputs_no_more() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.float32()), "b": pa.array([3, 4], pa.int16()), "y": [5, 6]})
    plan = TablePlan(table.schema, stack={"x": ["b", "a"]})
    batch = gather_all(plan, table)
    assert plan.names == ("y", "x")
    assert batch["x"].dtype is torch.float32
    assert batch["x"].tolist() == [[3, 1], [4, 2]]


def test_a_fixed_size_list_takes_as_many_places_of_a_stack_as_it_has_values() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.float32()), "b": pa.array([[3, 4], [5, 6]], pa.list_(pa.float32(), 2))})
    assert gather_all(TablePlan(table.schema, stack={"x": ["a", "b"]}), table)["x"].tolist() == [[1, 3, 4], [2, 5, 6]]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int32(), pa.float64(), pa.timestamp("us")])
def test_a_stack_that_would_change_values_is_refused_with_what_to_declare(kind: pa.DataType) -> None:
    schema = pa.schema([("a", pa.float32()), ("n", kind)])
    with pytest.raises(ConfigError, match=r"does not hold every value of column 'n'.*T\.Cast\(torch\.float32\)"):
        TablePlan(schema, stack={"x": T.Stack(["a", "n"], dtype=torch.float32)})


def test_whole_numbers_of_64_bits_do_not_become_floats_without_a_word() -> None:
    schema = pa.schema([("a", pa.float64()), ("n", pa.int64())])
    with pytest.raises(ConfigError, match=r"is float64, which does not hold every value of column 'n'"):
        TablePlan(schema, stack={"x": ["a", "n"]})


def test_a_cast_keeps_whole_numbers_exactly_or_names_the_one_it_cannot() -> None:
    schema = pa.schema([("n", pa.int64())])
    plan = TablePlan(schema, stack={"x": ["n"]}, transforms={"n": [T.Cast(torch.float32)]})
    assert gather_all(plan, pa.table({"n": [1 << 24, -(1 << 40)]}))["x"].tolist() == [[1 << 24], [-(1 << 40)]]
    with pytest.raises(SchemaError, match=r"column 'n' in part\.parquet, row group 3: 16777217 .* no value of float32"):
        gather_all(plan, pa.table({"n": [1, (1 << 24) + 1]}))


def test_decimals_need_a_cast() -> None:
    table = pa.table({"d": [decimal.Decimal("1.25"), decimal.Decimal("-3.50")]})
    with pytest.raises(ConfigError, match=r"column 'd' is decimal128\(3, 2\).*T\.Cast\(torch\.float64\)"):
        TablePlan(table.schema)
    plan = TablePlan(table.schema, transforms={"d": [T.Cast(torch.float64)]})
    assert gather_all(plan, table)["d"].tolist() == [1.25, -3.5]
    whole = TablePlan(table.schema, transforms={"d": [T.Cast(torch.int64)]})
    with pytest.raises(SchemaError, match="does not fit into int64"):
        gather_all(whole, table)


def test_uint64_is_uint64() -> None:
    table = pa.table({"n": pa.array([(1 << 64) - 1], pa.uint64())})
    batch = gather_all(TablePlan(table.schema), table)
    assert batch["n"].dtype is torch.uint64
    assert batch["n"].tolist() == [(1 << 64) - 1]


def test_a_null_without_a_rule_names_column_and_row_group() -> None:
    table = pa.table({"a": [1, None, None]})
    with pytest.raises(
        SchemaError, match=r"column 'a' has 2 nulls in part\.parquet, row group 3, the first at place 1"
    ):
        gather_all(TablePlan(table.schema), table)


def test_a_null_list_without_a_rule_is_an_error_too() -> None:
    table = pa.table({"a": [[1], None]})
    with pytest.raises(SchemaError, match="column 'a' has 1 null in"):
        gather_all(TablePlan(table.schema), table)


def test_nulls_are_filled_before_transforms() -> None:
    table = pa.table({"a": [1.0, None], "t": ["x", None], "l": [[1, None], None], "s": ["p", None]})
    plan = TablePlan(
        table.schema,
        nulls={"a": T.Fill(3), "t": T.Fill("-"), "l": T.Fill(9), "s": T.Fill(None)},
        transforms={"a": [T.Standardize(1, 2)]},
        ragged={"l": T.Padded()},
    )
    batch = gather_all(plan, table)
    assert batch["a"].tolist() == [0, 1]
    assert batch["t"] == ["x", "-"]
    assert batch["l"].tolist() == [[1, 9], [0, 0]]
    assert batch["s"] == ["p", None]


def test_a_mask_is_true_where_there_was_a_value_and_zero_elsewhere_whatever_the_transforms() -> None:
    table = pa.table({"a": [1, None, 3], "b": pa.array([1, 2, 3], pa.float32())})
    plan = TablePlan(
        table.schema, nulls={"a": T.Mask()}, stack={"x": ["a", "b"]}, transforms={"a": [T.Standardize(1, 2)]}
    )
    batch = gather_all(plan, table)
    assert batch["x"].tolist() == [[0, 1], [0, 2], [1, 3]]
    assert batch["x__mask"].tolist() == [[True, True], [False, True], [True, True]]


def test_nulls_become_nan_where_the_result_is_floating() -> None:
    table = pa.table({"a": [1, None]})
    with pytest.raises(ConfigError, match="becomes int64, which has no NaN"):
        TablePlan(table.schema, nulls={"a": T.AsNaN()})
    plan = TablePlan(table.schema, nulls={"a": T.AsNaN()}, transforms={"a": [T.Cast(torch.float32)]})
    torch.testing.assert_close(gather_all(plan, table)["a"], torch.tensor([1.0, torch.nan]), equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.uint8(), -1), (pa.int64(), 0.5), (pa.string(), 1), (pa.bool_(), 2), (pa.int8(), None), (pa.binary(), "x")],
)
def test_a_fill_that_the_column_cannot_hold_is_refused(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(ConfigError, match="column 'a'"):
        TablePlan(pa.schema([("a", kind)]), nulls={"a": T.Fill(value)})


def test_texts_become_codes_by_a_vocabulary_and_so_do_lists_of_them() -> None:
    words = T.Vocabulary(["b", "a"])
    table = pa.table(
        {
            "s": ["a", "b", "z", None],
            "d": pa.array(["b", "a", "a", None]).dictionary_encode(),
            "l": [["a"], [], ["b", "?"], None],
        }
    )
    nulls = dict.fromkeys("sdl", T.Mask())
    plan = TablePlan(table.schema, vocabularies=dict.fromkeys("sdl", words), nulls=nulls, ragged={"l": T.Padded(2)})
    batch = gather_all(plan, table)
    assert batch["s"].tolist() == [2, 1, 0, 0]
    assert batch["d"].tolist() == [1, 2, 2, 0]
    assert batch["l"].tolist() == [[2, 0], [0, 0], [1, 0], [0, 0]]
    assert batch["s__mask"].tolist() == [True, True, True, False]


def test_a_masked_null_is_no_unknown_value() -> None:
    table = pa.table({"s": ["a", None]})
    strict = T.Vocabulary(["a"], unknown="error")
    plan = TablePlan(table.schema, vocabularies={"s": strict}, nulls={"s": T.Mask()})
    assert gather_all(plan, table)["s"].tolist() == [1, 0]
    with pytest.raises(SchemaError, match=r"column 's' in part.*'z' is not in the vocabulary of 1 values"):
        gather_all(plan, pa.table({"s": ["z"]}))


@pytest.mark.parametrize(
    ("cut", "rows", "lengths"), [("start", [[1, 2], [4, 0]], [2, 1]), ("end", [[2, 3], [4, 0]], [2, 1])]
)
def test_a_longer_list_is_cut_where_that_is_declared(cut: str, rows: list[list[int]], lengths: list[int]) -> None:
    table = pa.table({"l": [[1, 2, 3], [4]]})
    batch = gather_all(TablePlan(table.schema, ragged={"l": T.Padded(2, cut=cut, lengths=True)}), table)
    assert batch["l"].tolist() == rows
    assert batch["l__length"].tolist() == lengths


def test_a_longer_list_is_an_error_otherwise() -> None:
    table = pa.table({"l": [[1], [1, 2, 3]]})
    with pytest.raises(
        ShapeError, match=r"column 'l': the list of row 1 has 3 values, and Padded 2; declare T\.Padded\(3\)"
    ):
        gather_all(TablePlan(table.schema, ragged={"l": T.Padded(2)}), table)


@pytest.mark.parametrize(
    "kind",
    [pa.map_(pa.string(), pa.int8()), pa.list_(pa.struct([("a", pa.int8())])), pa.null(), pa.month_day_nano_interval()],
)
def test_a_type_that_no_tensor_holds_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'm' is .*leave it out with columns="):
        TablePlan(pa.schema([("a", pa.int8()), ("m", kind)]))
    assert TablePlan(pa.schema([("a", pa.int8()), ("m", kind)]), columns=["a"]).columns == ("a",)


def test_structs_are_flattened_by_name_and_chosen_by_it() -> None:
    kind = pa.struct([("age", pa.int8()), ("at", pa.struct([("x", pa.float32()), ("y", pa.float32())]))])
    schema = pa.schema([("user", kind), ("b", pa.int8())])
    assert TablePlan(schema).names == ("user.age", "user.at.x", "user.at.y", "b")
    assert TablePlan(schema, columns=["user.at"]).names == ("user.at.x", "user.at.y")
    assert TablePlan(schema, columns=["user.at.y", "b"]).columns == ("user", "b")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SchemaError, match="two columns are called 'a'"):
        TablePlan(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(SchemaError, match=r"two columns are called 'a\.b'"):
        TablePlan(pa.schema([("a", pa.struct([("b", pa.int8())])), ("a.b", pa.int8())]))


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"columns": ["zz"]}, "column 'zz' is not in the table; it has a, l, s"),
        ({"columns": "a"}, r"give a list: columns=\['a'\]"),
        ({"columns": ["a", "a"]}, "'a' is there twice"),
        ({"stack": {"x": ["zz"]}}, "stack 'x': there is no column 'zz'"),
        ({"stack": {"x": ["s"]}}, "column 's' holds texts.*vocabulary"),
        ({"stack": {"x": ["l"]}}, "lists of different lengths"),
        ({"stack": {"s": ["a"]}}, "two outputs are called 's'"),
        ({"nulls": {"zz": T.Mask()}}, "nulls: there is no column 'zz'"),
        ({"nulls": {"a": 0}}, r"give T\.Fill\(value\)"),
        ({"ragged": {"a": T.Padded()}}, "no lists of numbers"),
        ({"ragged": {"l": 5}}, r"give 'l' T\.Padded"),
        ({"transforms": {"a": [abs]}}, "no declared transform.*table_transform="),
        ({"transforms": {"a": T.Log1p()}}, "a list of transforms"),
        ({"transforms": {"s": [T.Log1p()]}}, "Log1p takes numbers"),
        ({"vocabularies": {"a": T.Vocabulary(["x"])}}, "this vocabulary holds large_string"),
    ],
)
def test_declarations_that_do_not_fit_are_refused_at_once(declared: dict[str, Any], reason: str) -> None:
    schema = pa.schema([("a", pa.int8()), ("l", pa.list_(pa.int8())), ("s", pa.string())])
    with pytest.raises(ConfigError, match=reason):
        TablePlan(schema, **declared)


def test_a_table_of_other_columns_is_refused_with_its_place() -> None:
    plan = TablePlan(pa.schema([("a", pa.int8())]))
    with pytest.raises(SchemaError, match="column 'a' is int64, not int8 in here"):
        plan.prepare(pa.table({"a": [1]}), "here")
    with pytest.raises(SchemaError, match="column 'a' is missing in here"):
        plan.prepare(pa.table({"b": [1]}), "here")


def test_what_another_plan_prepared_is_refused() -> None:
    prepared = TablePlan(pa.schema([("a", pa.int8())])).prepare(pa.table({"a": pa.array([1], pa.int8())}), "here")
    with pytest.raises(SchemaError, match="prepared by another plan"):
        TablePlan(pa.schema([("b", pa.int8())])).open(prepared)


def test_lists_that_lead_outside_of_their_values_are_found_when_a_unit_is_opened() -> None:
    plan = TablePlan(pa.schema([("l", pa.list_(pa.int8()))]))
    kind = plan.prepared_schema.field(0).type
    inner = pa.array([1, 2], pa.int8())
    bounds = pa.py_buffer(np.array([0, 5, 2], np.int64))
    broken = pa.Array.from_buffers(kind, 2, [None, bounds], children=[inner])
    with pytest.raises(ShardCorruptError, match="lead outside"):
        plan.open(pa.RecordBatch.from_arrays([broken], schema=plan.prepared_schema))


def test_given_tensors_are_filled_and_must_fit() -> None:
    table = pa.table({"a": [1, 2], "l": [[1], [2, 3]]})
    plan = TablePlan(table.schema, ragged={"l": T.Padded(2, lengths=True)})
    out = plan.new_batch(2)
    assert set(out) == {"a", "l", "l__length"}
    batch = gather_all(plan, table, out)
    assert all(batch[name] is out[name] for name in out)
    with pytest.raises(ShapeError, match=r"out\['a'\] is torch.int64 \(3,\)"):
        gather_all(plan, table, plan.new_batch(3))


@pytest.mark.parametrize(("which", "row"), [(0, 2), (0, -1), (1, 0), (-1, 0)])
def test_a_row_that_its_unit_does_not_have_is_an_error(which: int, row: int) -> None:
    plan = TablePlan(pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64()))]))
    unit = plan.open(plan.prepare(pa.table({"a": [1, 2], "l": [[1], [2]]}), "here"))
    with pytest.raises(IndexError, match="a row that its unit does not have"):
        plan.gather([unit], np.array([which]), np.array([row]))


def test_the_identity_changes_with_what_is_prepared_and_with_nothing_else() -> None:
    schema = pa.schema([("a", pa.int8()), ("l", pa.list_(pa.int8())), ("s", pa.string())])
    plain = TablePlan(schema)
    assert plain.identity == pickle.loads(pickle.dumps(plain)).identity  # noqa: S301
    assert plain.identity == TablePlan(schema, ragged={"l": T.Padded(7)}, nulls={}, transforms={"a": []}).identity
    others = [
        TablePlan(schema, columns=["l", "a", "s"]),
        TablePlan(schema, nulls={"a": T.Fill(0)}),
        TablePlan(schema, nulls={"a": T.Fill(1)}),
        TablePlan(schema, nulls={"a": T.Mask()}),
        TablePlan(schema, stack={"x": ["a"]}),
        TablePlan(schema, stack={"x": T.Stack(["a"], dtype=torch.float32)}),
        TablePlan(schema, transforms={"a": [T.Standardize(0, 1)]}),
        TablePlan(schema, transforms={"a": [T.Standardize(0, 2)]}),
        TablePlan(schema, vocabularies={"s": T.Vocabulary(["x"])}),
        TablePlan(schema, vocabularies={"s": T.Vocabulary(["y"])}),
        TablePlan(pa.schema([("a", pa.int16()), ("l", pa.list_(pa.int8())), ("s", pa.string())])),
    ]
    assert len({plain.identity, *(other.identity for other in others)}) == len(others) + 1


def test_the_identity_is_the_same_in_every_version_and_on_every_machine() -> None:
    schema = pa.schema([("a", pa.float32()), ("s", pa.string())])
    plan = TablePlan(
        schema,
        stack={"x": ["a"]},
        nulls={"a": T.Fill(0.5)},
        vocabularies={"s": T.Vocabulary(["x"])},
        transforms={"a": [T.Log1p()]},
    )
    assert plan.identity == "869be34f2469b5bfa1380fc660fc9176"


def test_a_tensor_of_fixed_shape_keeps_its_shape() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array([list(range(6)), list(range(6, 12))], pa.list_(pa.float32(), 6))
    table = pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)})
    assert gather_all(TablePlan(table.schema), table)["t"].tolist() == torch.arange(12).reshape(2, 2, 3).tolist()
