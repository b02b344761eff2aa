from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import SchemaError
from forebay.sharding import Column, Kind, Schema

SCALARS = ["bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)), "float16", "float32", "float64"]
SPECS = st.one_of(
    st.sampled_from(["image", "mask", "bytes", "str", "json", *SCALARS]),
    st.builds(
        lambda dtype, shape: f"{dtype}[{','.join(shape)}]",
        st.sampled_from(SCALARS[1:]),
        st.lists(st.one_of(st.just("*"), st.integers(1, 1000).map(str)), min_size=1, max_size=3),
    ),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda n: not n.startswith("__")
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(NAMES, SPECS, min_size=1, max_size=6))
def test_a_schema_comes_back_from_its_json_and_from_arrow(columns: dict[str, str]) -> None:
    schema = Schema.from_spec(columns)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert again.canonical() == schema.canonical()
    assert {column.name: column.spec for column in schema} == columns
    assert Schema.from_json(json.loads(schema.arrow_schema.metadata[b"forebay"])) == schema


def test_a_tensor_column_knows_its_dtype_and_shape() -> None:
    column = Column.from_spec("sound", "uint8[*, 80]")
    assert (column.kind, column.dtype, column.shape, column.is_variable) == (Kind.TENSOR, "uint8", (None, 80), True)
    assert column.spec == "uint8[*,80]"
    assert Column.from_spec("box", "float32[3,4]").arrow_type == pa.fixed_shape_tensor(pa.float32(), (3, 4))


def test_classes_stand_in_the_schema_in_their_order() -> None:
    schema = Schema.from_spec({"label": "int64"}, {"label": ["zebra", "ant"]})
    assert schema["label"].classes == ("zebra", "ant")
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.canonical() != Schema.from_spec({"label": "int64"}, {"label": ["ant", "zebra"]}).canonical()


@pytest.mark.parametrize(
    ("columns", "classes", "says"),
    [
        ({}, {}, "at least one column"),
        ({"__row": "int64"}, {}, "begin with '__'"),
        ({"": "int64"}, {}, "not empty"),
        ({"a\udcff": "int64"}, {}, "valid Unicode"),
        ({"x": "int"}, {}, "did you mean 'int64'"),
        ({"x": "jpeg"}, {}, "did you mean 'image'"),
        ({"x": "complex64"}, {}, "no column type"),
        ({"x": "scalar"}, {}, "no column type"),
        ({"x": "float32[]"}, {}, "declared without brackets"),
        ({"x": "float32[0]"}, {}, "1 to 2147483647"),
        ({"x": "float32[3,-1]"}, {}, "no column type"),
        ({"x": "float32[4294967296]"}, {}, "1 to 2147483647"),
        ({"x": "float32[" + ",".join("1" * 40) + "]"}, {}, "1 to 32 dimensions"),
        ({"x": "uint8[65536,65536]"}, {}, "2147483647 elements"),
        ({"x": "bool[3]"}, {}, "no column type"),
        ({"x": "float32"}, {"x": ["a"]}, "only an integer column"),
        ({"x": "int64"}, {"y": ["a"]}, "no columns"),
        ({"x": "int64"}, {"x": []}, "one or more"),
        ({"x": "int64"}, {"x": ["a", "a"]}, "different"),
        ({"x": "int8"}, {"x": [str(n) for n in range(129)]}, "use int64"),
    ],
)
def test_a_declaration_that_does_not_hold_is_refused_with_the_reason(
    columns: dict[str, str], classes: dict[str, list[str]], says: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.from_spec(columns, classes)
    assert says in str(caught.value)


def test_a_column_that_is_not_there_names_those_that_are() -> None:
    schema = Schema.from_spec({"image": "image", "label": "int64"})
    assert "image" in schema
    assert [column.name for column in schema.select(["label"])] == ["label"]
    with pytest.raises(SchemaError, match=r"no column 'mask'; there are 'image', 'label'"):
        schema.select(["mask"])


@pytest.mark.parametrize(
    "value", [None, [], {}, {"columns": 3}, {"columns": [{}]}, {"columns": [{"name": 3, "type": 4}]}]
)
def test_json_that_is_no_schema_is_refused(value: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(value)
