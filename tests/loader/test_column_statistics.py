"""Statistics: equal to numpy's over the whole column, however it comes, and read back for transforms."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigError, SourceError
from forebay.loader import transforms as T
from forebay.loader.column_statistics import STATISTICS_VERSION
from forebay.loader.distinct_count import DistinctCount
from forebay.loader.quantile_sketch import QuantileSketch
from forebay.loader.statistics_pass import StatisticsPass


def statistics_of(array: pa.Array, cuts: tuple[int, ...] = ()) -> T.ColumnStatistics:
    total = StatisticsPass(pa.schema([("c", array.type)]))
    for begin, end in zip((0, *cuts), (*cuts, len(array)), strict=True):
        part = total.empty()
        part.update(pa.table({"c": array.slice(begin, end - begin)}))
        total.merge(part)
    return total.statistics()[0]


@given(values=st.lists(st.none() | st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=30), cut=st.integers(0, 30))
def test_parts_give_what_the_whole_gives(values: list[float | None], cut: int) -> None:
    found = statistics_of(pa.array(values, pa.float64()), (min(cut, len(values)),))
    known = np.array([value for value in values if value is not None and not math.isnan(value)])
    assert found.nulls == values.count(None)
    assert (found.count, found.nans) == (len(values) - found.nulls, len(values) - found.nulls - len(known))
    assert found.distinct == len(np.unique(known))
    if len(known):
        assert (found.min, found.max) == (known.min(), known.max())
        assert found.number("mean") == pytest.approx(known.mean(), abs=1e-6)
        assert found.number("std") == pytest.approx(known.std(), abs=1e-3)
        assert found.quantile(0.5) == pytest.approx(float(np.median(known)))
    else:
        assert found.mean is None


def test_the_deviation_of_large_numbers_does_not_drown() -> None:
    values = 1e9 + np.arange(1000) % 2
    found = statistics_of(pa.array(values), (10, 500))
    assert found.number("std") == pytest.approx(0.5, rel=1e-9)


def test_whole_numbers_are_told_exactly() -> None:
    found = statistics_of(pa.array([(1 << 63) - 1, 1 - (1 << 63)]))
    assert (found.min, found.max) == (1 - (1 << 63), (1 << 63) - 1)


def test_lists_are_told_by_their_values_and_their_lengths() -> None:
    found = statistics_of(pa.array([[1, 2, 3], [], None, [None]]))
    assert (found.count, found.nulls, found.max) == (3, 2, 3)
    assert found.lengths["1.0"] == 3


def test_texts_have_bounds_and_no_mean() -> None:
    found = statistics_of(pa.array(["b", None, "a", "b"]).dictionary_encode())
    assert (found.min, found.max, found.distinct, found.nulls) == ("a", "b", 2, 1)
    with pytest.raises(ConfigError, match="has no mean"):
        found.number("mean")


def test_infinities_leave_no_number_that_json_does_not_know() -> None:
    found = statistics_of(pa.array([1.0, float("inf"), float("-inf")]))
    assert (found.min, found.max, found.mean, found.std) == ("-inf", "inf", 1, 0)
    json.dumps(asdict(found), allow_nan=False)


def test_columns_without_statistics_are_left_out_with_the_reason() -> None:
    looked = StatisticsPass(pa.schema([("a", pa.int8()), ("m", pa.map_(pa.string(), pa.int8()))]))
    assert looked.columns == ["a"]
    assert "map<string, int8>" in looked.left_out["m"]


@pytest.mark.parametrize("name", ["uniform", "lognormal", "sorted", "few"])
def test_the_sketch_is_within_a_thousandth_of_all_ranks(name: str) -> None:
    rng = np.random.default_rng(0)
    values = {
        "uniform": rng.random(400_000),
        "lognormal": rng.lognormal(size=400_000),
        "sorted": np.arange(400_000.0),
        "few": rng.integers(0, 5, 400_000).astype(float),
    }[name]
    whole, left, right = QuantileSketch(), QuantileSketch(), QuantileSketch()
    for part in np.array_split(values, 37):
        whole.update(part)
    left.update(values[:300_000])
    right.update(values[300_000:])
    left.merge(right)
    ordered = np.sort(values)
    fractions = [0.0, 0.001, 0.1, 0.5, 0.9, 0.999, 1.0]
    for sketch in (whole, left):
        for fraction, value in zip(fractions, sketch.quantiles(fractions), strict=True):
            low, high = np.searchsorted(ordered, [value - 1e-9, value + 1e-9], side="left") / len(values)
            if name == "few":  # between two values the sketch goes by a straight line
                low, high = low - 0.2, high + 0.2
            assert low - 0.001 <= fraction <= high + 0.001


def test_the_sketch_keeps_its_bounds_and_a_bounded_memory() -> None:
    sketch = QuantileSketch()
    for part in np.array_split(np.arange(1_000_000.0), 10):
        sketch.update(part)
    assert sketch.quantiles([0, 1]) == [0, 999_999]
    assert len(sketch._means) <= 1000


@given(hashes=st.lists(st.integers(0, (1 << 64) - 1)), cut=st.integers(0, 20))
def test_different_values_are_counted_exactly_while_they_are_few(hashes: list[int], cut: int) -> None:
    left, right = DistinctCount(), DistinctCount()
    left.update(np.array(hashes[:cut], np.uint64))
    right.update(np.array(hashes[cut:], np.uint64))
    left.merge(right)
    assert left.is_exact
    assert left.estimate() == len(set(hashes))


def test_more_different_values_are_estimated() -> None:
    rng = np.random.default_rng(1)
    count = DistinctCount(kept=4096)
    for part in np.array_split(rng.integers(0, 1 << 64, 100_000, np.uint64, endpoint=False), 7):
        count.update(part)
        count.update(part)
    assert not count.is_exact
    assert count.estimate() == pytest.approx(100_000, rel=0.05)


def saved(path: Path, columns: list[T.ColumnStatistics], **more: Any) -> Path:
    path.write_text(json.dumps({"version": STATISTICS_VERSION, "columns": [asdict(one) for one in columns], **more}))
    return path


def test_transforms_take_their_numbers_from_the_file(tmp_path: Path) -> None:
    found = statistics_of(pa.array(np.arange(101.0)))
    loaded = T.load_statistics(saved(tmp_path / "stats.json", [found]))["c"]
    assert loaded == found
    assert T.Standardize.of(loaded).mean == 50
    assert T.Clip.of(loaded, 0.01, 0.99) == T.Clip(1, 99)
    assert T.Bucketize.of(loaded, 4).boundaries == (25, 50, 75)


def test_what_is_no_file_of_statistics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        T.load_statistics(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no statistics"):
        T.load_statistics(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="version 9"):
        T.load_statistics(saved(tmp_path / "b.json", [], version=9))
