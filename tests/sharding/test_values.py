from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forebay.errors import SchemaError
from forebay.sharding.schema import Schema
from forebay.sharding.values import EncodedTensor, encode_sample


def encode(spec: str, value: Any) -> Any:
    return encode_sample(Schema.from_spec({"x": spec}), {"x": value}, row=7)[0]


@pytest.mark.parametrize(
    ("spec", "value", "stored"),
    [
        ("image", b"jpeg", b"jpeg"),
        ("image", bytearray(b"jpeg"), b"jpeg"),
        ("mask", memoryview(b"abcd")[::2], b"ac"),
        ("bytes", b"", b""),
        ("str", "é\n", "é\n".encode()),
        ("json", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        ("bool", np.bool_(True), True),
        ("int8", np.int64(-128), -128),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int64", torch.tensor(3), 3),
        ("float32", 3, 3),
        ("float16", np.float32(0.5), 0.5),
        ("float64", float("inf"), float("inf")),
        ("uint8[*,2]", np.zeros((0, 2), np.uint8), EncodedTensor(b"", (0, 2))),
        ("int16[2]", np.array([1, 2], ">i2"), EncodedTensor(b"\1\0\2\0", (2,))),
        ("uint8[2,2]", np.array([[1, 2], [3, 4]], np.uint8).T, EncodedTensor(b"\1\3\2\4", (2, 2))),
        ("float32[1]", torch.tensor([1.0]), EncodedTensor(b"\0\0\x80\x3f", (1,))),
    ],
)
def test_values_are_stored_as_declared(spec: str, value: Any, stored: Any) -> None:
    assert encode(spec, value) == stored


@pytest.mark.parametrize(
    ("spec", "value", "says"),
    [
        ("image", None, "None, and columns hold no nulls"),
        ("image", b"", "0 bytes"),
        ("image", np.zeros((4, 4, 3), np.uint8), "numpy.ndarray of shape (4, 4, 3)"),
        ("image", "photo.jpg", "read_bytes()"),
        ("bytes", "text", "bytes are wanted"),
        ("str", b"text", "a str is wanted"),
        ("str", "a\udcff", "backslashreplace"),
        ("json", {"a": object()}, "not valid JSON"),
        ("json", float("nan"), "not valid JSON"),
        ("bool", 1, "True or False"),
        ("int64", True, "a number for int64"),
        ("int64", 1.0, "a number for int64"),
        ("int64", np.array([1]), "of shape (1,)"),
        ("int8", 128, "-128 to 127"),
        ("uint8", -1, "0 to 255"),
        ("float16", 1e6, "too large for float16"),
        ("float32", "1", "a number for float32"),
        ("float32[2]", [1.0, 2.0], "a numpy array or CPU tensor"),
        ("float32[2]", np.zeros(2), ".astype('float32')"),
        ("float32[2]", np.zeros(3, np.float32), "shape is (3,)"),
        ("float32[*,2]", np.zeros((2, 3), np.float32), "shape is (2, 3)"),
        ("float32[2]", torch.zeros(2, requires_grad=True), "grad"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_row_and_column(spec: str, value: Any, says: str) -> None:
    with pytest.raises(SchemaError) as caught:
        encode(spec, value)
    assert "row 7, column 'x'" in str(caught.value)
    assert says in str(caught.value)
    assert (caught.value.row, caught.value.column) == (7, "x")


def test_a_label_outside_its_classes_is_refused() -> None:
    schema = Schema.from_spec({"label": "int64"}, {"label": ["a", "b"]})
    assert encode_sample(schema, {"label": 1}, 0) == (1,)
    for label in (2, -1):
        with pytest.raises(SchemaError, match="outside the 2 classes"):
            encode_sample(schema, {"label": label}, 0)


@pytest.mark.parametrize("sample", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_a_sample_has_exactly_the_declared_columns(sample: dict[str, int]) -> None:
    with pytest.raises(SchemaError, match=r"row 3: columns missing: .*, columns that are not declared: "):
        encode_sample(Schema.from_spec({"a": "int64", "b": "int64"}), sample, 3)


def test_a_mutable_buffer_is_copied() -> None:
    buffer = bytearray(b"first")
    stored = encode("bytes", buffer)
    buffer[:] = b"other"
    assert stored == b"first"
