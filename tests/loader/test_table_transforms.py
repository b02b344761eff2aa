"""Declared transforms of columns: their values, what they refuse, and that they are saved and restored."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigError, SchemaError
from forebay.loader import row_kernel
from forebay.loader import transforms as T
from forebay.loader.table_cast import cast_numbers, holds_all

WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [np.dtype(name) for name in ["bool", *WHOLE, "float16", "float32", "float64"]]
CHAIN: list[T.ColumnTransform] = [
    T.Clip(0, None),
    T.Log1p(),
    T.Standardize(1.5, 2.0),
    T.Bucketize((0.5, 1)),
    T.Cast(torch.int8, rounding=True),
]


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64"])
def test_standardized_values_are_computed_in_float64(dtype: str) -> None:
    values = np.array([0, 3, 100], dtype)
    made = T.Standardize(3, 2)(values)
    assert made.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_array_equal(made, np.array([-1.5, 0, 48.5], made.dtype))


def test_a_column_of_one_value_is_standardized_to_zero() -> None:
    assert T.Standardize(3, 0)(np.array([3.0, 3.0])).tolist() == [0, 0]


@given(values=st.lists(st.integers(-128, 127)), low=st.floats(-300, 300), width=st.floats(0, 300))
def test_clipped_whole_numbers_are_the_nearest_whole_ones_between_the_bounds(
    values: list[int], low: float, width: float
) -> None:
    high = low + width
    if math.ceil(low) > math.floor(high):
        return  # nothing whole lies between
    made = T.Clip(low, high)(np.array(values, np.int8))
    assert made.dtype == np.int8
    first, last = max(-128, min(math.ceil(low), 127)), min(127, max(math.floor(high), -128))
    assert made.tolist() == [min(max(value, first), last) for value in values]


@given(
    values=st.lists(st.integers(-(1 << 63), (1 << 63) - 1)),
    boundaries=st.sets(st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(-1e20, 1e20), min_size=1),
)
def test_buckets_count_the_boundaries_at_or_below_even_where_float64_is_too_short(
    values: list[int], boundaries: set[float]
) -> None:
    made = T.Bucketize(tuple(sorted(boundaries)))(np.array(values, np.int64))
    assert made.dtype == np.int64
    assert made.tolist() == [sum(boundary <= value for boundary in boundaries) for value in values]


def test_nan_is_in_the_last_bucket() -> None:
    assert T.Bucketize((0, 1))(np.array([np.nan, 0.5, -1])).tolist() == [2, 1, 0]


def test_log1p_refuses_what_has_no_logarithm() -> None:
    np.testing.assert_allclose(T.Log1p()(np.array([0.0, 1.0])), [0, np.log(2)])
    np.testing.assert_allclose(T.Log1p(signed=True)(np.array([-1.0, 1.0])), [-np.log(2), np.log(2)])
    with pytest.raises(SchemaError, match=r"-2.0 has no logarithm .*signed=True"):
        T.Log1p()(np.array([1.0, -2.0]))


@pytest.mark.parametrize("native", [True, False])
def test_hash_buckets_are_xxh3_of_utf8_of_bytes_and_of_eight_bytes(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(row_kernel, "_native", None)
    texts = ["", "Zürich", "a" * 1000]
    wanted = [xxhash.xxh3_64_intdigest(text.encode(), 7) % 1000 for text in texts]
    bucket = T.HashBucket(1000, seed=7)
    assert bucket(texts).tolist() == wanted
    assert bucket(pa.array(["x", *texts], pa.string()).slice(1)).tolist() == wanted
    assert bucket(pa.array([text.encode() for text in texts])).tolist() == wanted
    assert bucket(pa.array(texts, pa.large_string()).dictionary_encode()).tolist() == wanted
    wanted = [xxhash.xxh3_64_intdigest(n.to_bytes(8, "little", signed=True), 7) % 1000 for n in (-1, 0, 300)]
    assert bucket(np.array([-1, 0, 300], np.int16)).tolist() == wanted
    assert bucket(torch.tensor([-1, 0, 300])).tolist() == wanted


def test_hash_buckets_stay_as_they_are() -> None:
    assert T.HashBucket(1 << 40)(["Zürich", ""]).tolist() == [876488730446, 22428226754]


@given(data=st.data(), source=st.sampled_from(DTYPES), target=st.sampled_from(DTYPES))
def test_a_cast_gives_equal_values_or_an_error(
    data: st.DataObject, source: np.dtype[Any], target: np.dtype[Any]
) -> None:
    if source.kind == "f":
        numbers: st.SearchStrategy[Any] = st.floats(width={2: 16, 4: 32, 8: 64}[source.itemsize])  # type: ignore[arg-type]  # its Literal
    elif source.kind == "b":
        numbers = st.booleans()
    else:
        info = np.iinfo(source)
        numbers = st.integers(int(info.min), int(info.max))
    values = np.array(data.draw(st.lists(numbers, min_size=1)), source)
    try:
        made = cast_numbers(values, target, rounding=False)
    except SchemaError:
        assert not holds_all(target, source)
        return
    assert made.dtype == target
    if source.kind == "f" and target.kind == "f":
        np.testing.assert_array_equal(np.isfinite(made), np.isfinite(values))
    else:
        assert [int(one) for one in made.tolist()] == [int(one) for one in values.tolist()]


def test_floating_numbers_become_whole_ones_where_they_are() -> None:
    assert T.Cast(torch.int8)(np.array([1.0, -128.0])).tolist() == [1, -128]
    with pytest.raises(SchemaError, match=r"1\.5 at place 1 .* no value of int8.*rounding=True"):
        T.Cast(torch.int8)(np.array([1.0, 1.5]))
    assert T.Cast(torch.int8, rounding=True)(np.array([1.5])).tolist() == [1]
    with pytest.raises(SchemaError, match=r"200\.0 at place 0"):
        T.Cast(torch.int8, rounding=True)(np.array([200.0]))
    with pytest.raises(SchemaError, match="nan"):
        T.Cast(torch.int64, rounding=True)(np.array([np.nan]))


def test_a_tensor_gives_a_tensor() -> None:
    made = T.Standardize(1, 2)(torch.tensor([1.0, 3.0]))
    assert isinstance(made, torch.Tensor)
    assert made.tolist() == [0, 1]


def test_transforms_are_saved_as_json_and_restored() -> None:
    chains: dict[str, list[T.ColumnTransform]] = {"a": CHAIN, "b": [T.HashBucket(10, seed=3)]}
    assert T.transforms_from_dict(json.loads(json.dumps(T.transforms_to_dict(chains)))) == chains


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ({"transform": "Nothing"}, "no transform 'Nothing'"),
        ({"transform": "Clip", "lowest": 1}, "does not take"),
        ({"transform": "Cast", "dtype": "float33"}, "give a torch.dtype"),
    ],
)
def test_what_no_transform_saved_is_refused(saved: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        T.transforms_from_dict({"a": [saved]})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: T.Standardize(math.nan, 1), "finite"),
        (lambda: T.Standardize(0, -1), "std 0 or more"),
        (lambda: T.Clip(), "low="),
        (lambda: T.Clip(2, 1), "low is above high"),
        (lambda: T.Bucketize(()), "one or more boundaries"),
        (lambda: T.Bucketize((1, 1)), "above the one before"),
        (lambda: T.HashBucket(0), "1 or more"),
        (lambda: T.Cast("float32"), "torch.dtype"),  # type: ignore[arg-type]  # what a user may write
        (lambda: T.Log1p()(["a"]), "takes numbers"),
        (lambda: T.HashBucket(3)(np.array([0.5])), "Bucketize"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()
