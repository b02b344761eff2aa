"""Vocabularies: codes, files, and counts that are exact or short by a known number."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigError, SchemaError, SourceError
from forebay.loader.table_columns import find_columns
from forebay.loader.transforms import Vocabulary
from forebay.loader.value_counts import ValueCounts


def counts_of(kind: pa.DataType, max_values: int = 1000) -> ValueCounts:
    return ValueCounts(find_columns(pa.schema([("c", kind)]), None)[0], max_values=max_values)


def test_codes_follow_from_one_and_zero_is_every_other_value() -> None:
    words = Vocabulary(["b", "a"])
    assert words(["a", "b", "c", None]).tolist() == [2, 1, 0, 0]
    assert len(words) == 3
    assert words.decode([0, 1, 2]) == [None, "b", "a"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_whole_numbers_of_another_width_have_the_same_codes(kind: pa.DataType) -> None:
    assert Vocabulary([5, 300, -1]).apply(pa.array([5, 7], kind)).tolist() == [1, 0]


def test_the_largest_whole_numbers_have_codes_and_meet_no_others() -> None:
    large = Vocabulary(pa.array([(1 << 64) - 1, 5], pa.uint64()))
    assert large.apply(pa.array([5, -1], pa.int64())).tolist() == [2, 0]
    assert large.apply(pa.array([(1 << 64) - 1], pa.uint64())).tolist() == [1]
    assert Vocabulary([-1]).apply(pa.array([(1 << 64) - 1, 0], pa.uint64())).tolist() == [0, 0]
    with pytest.raises(SchemaError, match="18446744073709551615 is not in"):
        Vocabulary([1], unknown="error").apply(pa.array([1, (1 << 64) - 1], pa.uint64()))


def test_unknown_values_are_refused_by_name_where_that_is_declared() -> None:
    with pytest.raises(SchemaError, match="'z' is not in the vocabulary of 1 values"):
        Vocabulary(["a"], unknown="error")(["a", None, "z"])


@pytest.mark.parametrize("values", [["a", "a"], ["a", None], [1.5], [[1]]])
def test_values_that_have_no_code_are_refused(values: list[Any]) -> None:
    with pytest.raises(ConfigError, match="Vocabulary"):
        Vocabulary(values)


@pytest.mark.parametrize("suffix", ["json", "arrow"])
@pytest.mark.parametrize("values", [["b", "ä\n"], [3, -(1 << 62)], []])
def test_a_vocabulary_is_saved_and_loaded(tmp_path: Path, suffix: str, values: list[Any]) -> None:
    words = Vocabulary(values, counts=range(len(values)), counts_short_by=4, unknown="error")
    words.save(tmp_path / f"words.{suffix}")
    loaded = Vocabulary.load(tmp_path / f"words.{suffix}")
    assert loaded == words
    assert (loaded.counts, loaded.counts_short_by, loaded.unknown) == (words.counts, 4, "error")
    assert pickle.loads(pickle.dumps(loaded)) == words  # noqa: S301


def test_bytes_are_saved_as_arrow_alone(tmp_path: Path) -> None:
    words = Vocabulary([b"\xff"])
    words.save(tmp_path / "words.arrow")
    assert Vocabulary.load(tmp_path / "words.arrow") == words
    with pytest.raises(ConfigError, match=r"ends in \.arrow"):
        words.save(tmp_path / "words.json")


def test_a_file_that_holds_no_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        Vocabulary.load(tmp_path / "none.json")
    for name, text in [("a.json", "[]"), ("b.json", "{"), ("c.arrow", "x"), ("d.json", json.dumps({"version": 9}))]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match="vocabulary"):
            Vocabulary.load(tmp_path / name)
    with pytest.raises(ConfigError, match=r"\.json or \.arrow"):
        Vocabulary.load(tmp_path / "words.txt")


def test_the_identity_depends_on_values_and_their_order_alone() -> None:
    words = Vocabulary(pa.array(["x", "a", "b"]).slice(1))
    assert words.identity == Vocabulary(["a", "b"], counts=[2, 1]).identity
    others = [
        Vocabulary(["b", "a"]),
        Vocabulary(["ab"]),
        Vocabulary(["a", "b"], unknown="error"),
        Vocabulary(["", "ab"]),
    ]
    assert len({words.identity, *(other.identity for other in others)}) == 5


@given(parts=st.lists(st.lists(st.none() | st.text("abc", max_size=2)), max_size=6))
def test_counts_are_exact_where_there_are_few_values(parts: list[list[str | None]]) -> None:
    counts = counts_of(pa.string())
    for part in parts:
        counts.update(pa.table({"c": pa.array(part, pa.string())}))
    wanted = Counter(value for part in parts for value in part if value is not None)
    words = counts.vocabulary()
    assert dict(zip(words.values.to_pylist(), words.counts or [], strict=True)) == wanted
    assert words.values.to_pylist() == sorted(wanted, key=lambda value: (-wanted[value], value))
    assert (counts.short_by, counts.values) == (0, wanted.total())


@given(parts=st.lists(st.lists(st.integers(0, 30)), max_size=8), max_values=st.integers(1, 8))
def test_counts_are_short_by_no_more_than_is_told_and_never_too_high(parts: list[list[int]], max_values: int) -> None:
    counts = counts_of(pa.int64(), max_values)
    for part in parts:
        other = counts.empty()
        other.update(pa.table({"c": pa.array(part, pa.int64())}))
        counts.merge(other)
        assert counts.distinct <= max_values
    wanted = Counter(value for part in parts for value in part)
    words = counts.vocabulary()
    found = dict(zip(words.values.to_pylist(), words.counts or [], strict=True))
    for value, count in wanted.items():
        assert count - counts.short_by <= found.get(value, 0) <= count


def test_lists_structs_and_dictionaries_are_counted_by_their_values() -> None:
    lists = counts_of(pa.list_(pa.string()))
    lists.update(pa.table({"c": pa.array([["a", "b"], None, ["a", None]])}))
    assert (lists.vocabulary().values.to_pylist(), lists.nulls) == (["a", "b"], 1)
    coded = counts_of(pa.dictionary(pa.int32(), pa.string()))
    coded.update(pa.table({"c": pa.array(["q", None, "q"]).dictionary_encode()}))
    assert coded.vocabulary().counts == [2]


def test_rare_values_are_left_out() -> None:
    counts = counts_of(pa.int64())
    counts.update(pa.table({"c": pa.array(np.repeat([7, 8, 9], [1, 3, 2]))}))
    assert counts.vocabulary(min_count=2).values.to_pylist() == [8, 9]
    assert counts.vocabulary(max_size=1).values.to_pylist() == [8]


def test_a_column_of_floats_has_no_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"T\.Bucketize"):
        counts_of(pa.float32())
