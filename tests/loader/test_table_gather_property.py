"""Whatever the table: prepared and gathered rows are the rows that pyarrow takes, natively and by numpy."""

from __future__ import annotations

import datetime
import itertools
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.loader import row_kernel
from forebay.loader import transforms as T
from forebay.loader.table_plan import TablePlan

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TIMES = [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.date32(), pa.time32("ms"), pa.time64("us"), pa.duration("s")]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view(), pa.binary(3)]
SIZES = {"rows": st.integers(0, 12), "width": st.integers(1, 3)}


@st.composite
def values(draw: st.DrawFn, kind: pa.DataType, count: int, nulls: bool) -> pa.Array:
    """An array of `count` values of a type that is no list."""
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        one: st.SearchStrategy[Any] = st.integers(int(info.min), int(info.max))
    elif pa.types.is_float16(kind):
        one = st.floats(width=16, allow_nan=False).map(np.float16)
    elif pa.types.is_floating(kind):
        one = st.floats(width=kind.bit_width, allow_nan=False)
    elif pa.types.is_boolean(kind):
        one = st.booleans()
    elif pa.types.is_fixed_size_binary(kind):
        one = st.binary(min_size=3, max_size=3)
    elif pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        one = st.binary(max_size=5)
    elif pa.types.is_temporal(kind):
        whole = pa.array(draw(listed(st.integers(0, 80_000), count, nulls)), pa.int64())
        short = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        return whole.cast(pa.int32()).cast(kind) if short else whole.cast(kind)
    else:
        one = st.text(max_size=5)
    return pa.array(draw(listed(one, count, nulls)), kind)


def listed(one: st.SearchStrategy[Any], count: int, nulls: bool) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | one if nulls else one, min_size=count, max_size=count)


@st.composite
def columns(draw: st.DrawFn, rows: int, nulls: bool) -> pa.Array:
    """An array of `rows` rows of any type that a plan takes."""
    shape = draw(
        st.sampled_from(["plain", "plain", "fixed", "list", "large list", "list of fixed", "struct", "dictionary"])
    )
    numbers = [*WHOLE, *FLOATS, *TIMES, pa.bool_()]
    if shape in ("plain", "dictionary"):
        kind = draw(st.sampled_from([*numbers, *TEXTS]))
        array = draw(values(kind, rows, nulls))
        encodable = not (pa.types.is_float16(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
        return array.dictionary_encode() if shape == "dictionary" and encodable else array
    if shape == "struct":
        fields = [draw(values(draw(st.sampled_from(numbers)), rows, nulls)) for _ in range(2)]
        gone = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_()) if nulls else None
        return pa.StructArray.from_arrays(fields, names=["a", "b"], mask=gone)
    kind = draw(st.sampled_from(numbers))
    width = draw(SIZES["width"])
    if shape == "fixed":
        gone = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_()) if nulls else None
        return pa.FixedSizeListArray.from_arrays(draw(values(kind, rows * width, nulls)), width, mask=gone)
    lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(bounds[-1])
    inner = draw(values(kind, total * (width if shape == "list of fixed" else 1), nulls))
    if shape == "list of fixed":
        inner = pa.FixedSizeListArray.from_arrays(inner, width)
    gone = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_()) if nulls else None
    if shape == "large list":
        return pa.LargeListArray.from_arrays(pa.array(bounds), inner, mask=gone)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), inner, mask=gone)


@st.composite
def tables(draw: st.DrawFn, nulls: bool = False) -> pa.Table:
    rows = draw(SIZES["rows"])
    count = draw(st.integers(1, 4))
    table = pa.table({f"c{i}": draw(columns(rows, nulls)) for i in range(count)})
    begin = draw(st.integers(0, rows))
    table = table.slice(begin)  # so that arrays have offsets
    cut = draw(st.integers(0, len(table)))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])  # and chunks


def flattened(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def numbered(value: Any, kind: pa.DataType) -> Any:
    """A value or a list of values, with dates and times as numbers of their unit."""
    if isinstance(value, list):
        return [numbered(one, kind.value_type) for one in value]
    if value is None or not pa.types.is_temporal(kind):
        return value
    short = pa.types.is_date32(kind) or pa.types.is_time32(kind)
    array = pa.array([value], kind)
    return (array.cast(pa.int32()) if short else array).cast(pa.int64())[0].as_py()


def expected(column: pa.ChunkedArray, places: list[int]) -> list[Any]:
    """What `to_pylist` gives, with dates and times as numbers of their unit."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    rows = [numbered(row, kind) for row in column.to_pylist()]
    return [rows[place] for place in places]


def given_rows(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor) and output.is_nested:
        jagged: Any = output
        bounds, kept = jagged.offsets().tolist(), jagged.values().tolist()
        return [kept[begin:end] for begin, end in itertools.pairwise(bounds)]
    return list(output.tolist()) if isinstance(output, torch.Tensor) else list(output)


def gathered(plan: TablePlan, parts: list[pa.Table], order: list[int]) -> dict[str, Any]:
    """Rows of the parts by their place in all of them."""
    units = [plan.open(plan.prepare(part, "part")) for part in parts]
    ends = np.cumsum([unit.rows for unit in units])
    places = np.array(order, np.int64)
    which = np.searchsorted(ends, places, side="right").astype(np.int64)
    begins = np.concatenate([[0], ends])[:-1]
    return plan.gather(units, which, places - begins[which])


@pytest.fixture(params=["native", "numpy"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(row_kernel, "_native", None)
    elif row_kernel._native is None:
        pytest.skip("the native part was not built")
    return str(request.param)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_gathered_rows_are_those_that_pyarrow_takes(kernel: str, data: st.DataObject) -> None:
    table = data.draw(tables())
    cut = data.draw(st.integers(0, len(table)))
    order = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20) if len(table) else st.just([]))
    plan = pickle.loads(pickle.dumps(TablePlan(table.schema)))  # noqa: S301
    batch = gathered(plan, [table.slice(0, cut), table.slice(cut)], order)
    flat = flattened(table)
    assert list(batch) == flat.column_names == list(plan.names)
    for name in flat.column_names:
        assert given_rows(batch[name]) == expected(flat[name], order), name


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_masked_nulls_are_zeros_whose_mask_is_false(kernel: str, data: st.DataObject) -> None:
    table = data.draw(tables(nulls=True))
    order = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20) if len(table) else st.just([]))
    flat = flattened(table)
    plan = TablePlan(table.schema, nulls={name: T.Mask() for name in flat.column_names})
    batch = gathered(plan, [table], order)
    for name in flat.column_names:
        shown, masks = given_rows(batch[name]), given_rows(batch[f"{name}__mask"])
        for row, wanted, mask in zip(shown, expected(flat[name], order), masks, strict=True):
            check_masked(row, wanted, mask)


def check_masked(row: Any, wanted: Any, mask: Any) -> None:
    if isinstance(mask, list):
        if wanted is None:
            assert not any(map(any, mask)) if mask and isinstance(mask[0], list) else not any(mask)
            return
        for one, each, there in zip(row, wanted, mask, strict=True):
            check_masked(one, each, there)
    elif mask:
        assert row == wanted
    else:
        assert wanted is None
        assert not row  # 0, False, ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_written_to_a_file_and_mapped_gathers_the_same(data: st.DataObject, tmp_path_factory: Any) -> None:
    table = data.draw(tables())
    plan = TablePlan(table.schema)
    prepared = plan.prepare(table, "here")
    prepared.validate(full=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, prepared.schema) as writer:
        writer.write_batch(prepared)
    read = pa.ipc.open_file(sink.getvalue()).get_batch(0)
    places = np.arange(len(table), dtype=np.int64)
    here = plan.gather([plan.open(prepared)], np.zeros_like(places), places)
    there = plan.gather([plan.open(read)], np.zeros_like(places), places)
    assert [given_rows(one) for one in here.values()] == [given_rows(one) for one in there.values()]


def test_dates_are_days_and_times_are_whole_numbers_of_their_unit() -> None:
    when = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
    table = pa.table({"d": pa.array([when.date()]), "t": pa.array([when], pa.timestamp("ms", "Europe/Berlin"))})
    plan = TablePlan(table.schema)
    batch = gathered(plan, [table], [0])
    assert batch["d"].tolist() == [18263]
    assert batch["t"].tolist() == [18263 * 86_400_000]
    assert plan.outputs[1].source == ("t timestamp[ms, tz=Europe/Berlin]",)
