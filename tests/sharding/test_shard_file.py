"""Round trips, other readers, damage: every byte of a shard matters or is noticed."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import SchemaError, ShardCorruptError, SourceError
from forebay.sharding import MappedFile, ShardReader, ShardWriter, open_dataset, sample_checksum, verify_dataset

Sample = dict[str, Any]
Same = Callable[[Any, Any], bool]


def read_all(path: Path, open_shard: Callable[[Any, int], ShardReader]) -> list[Sample]:
    data = open_dataset(path)
    found: list[Sample] = []
    for shard in range(data.num_shards):
        with open_shard(data, shard) as reader:
            found += [{name: reader.value(row, name) for name in data.schema.names} for row in range(reader.rows)]
    return found


def mapped(data: Any, shard: int) -> ShardReader:
    reader: ShardReader = data.reader(shard, MappedFile(data.source.root / data.shard_name(shard)))
    return reader


def in_place(data: Any, shard: int) -> ShardReader:
    reader: ShardReader = data.open_shard(shard)
    return reader


@pytest.mark.parametrize("open_shard", [in_place, mapped])
def test_what_was_written_is_read(
    open_shard: Callable[[Any, int], ShardReader], pristine: Path, samples: list[Sample], same_value: Same
) -> None:
    found = read_all(pristine, open_shard)
    assert len(found) == len(samples)
    for left, right in zip(found, samples, strict=True):
        assert all(same_value(left[name], right[name]) for name in right)


SPECS: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=40),
    "image": st.binary(min_size=1, max_size=40),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    "json": st.recursive(
        st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=5,
    ),
    "bool": st.booleans(),
    "uint8": st.integers(0, 255),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "int16[2,3]": st.binary(min_size=12, max_size=12).map(lambda b: np.frombuffer(b, np.int16).reshape(2, 3)),
    "float64[*,*]": st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda shape: np.ones(shape)),
}


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_samples_come_back_whatever_the_sizes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, same_value: Same
) -> None:
    specs = data.draw(st.lists(st.sampled_from(sorted(SPECS)), min_size=1, max_size=5, unique=True))
    rows = data.draw(st.lists(st.fixed_dictionaries({spec: SPECS[spec] for spec in specs}), max_size=20))
    batch_nbytes = data.draw(st.integers(1, 300))
    path = tmp_path_factory.mktemp("any") / "data"
    with ShardWriter(
        path, {spec: spec for spec in specs}, batch_nbytes=batch_nbytes, shard_nbytes=data.draw(st.integers(300, 900))
    ) as writer:
        for row in rows:
            writer.write(row)
    found = read_all(path, in_place)
    assert len(found) == len(rows)
    assert all(same_value(left[spec], right[spec]) for left, right in zip(found, rows, strict=True) for spec in specs)
    assert verify_dataset(open_dataset(path)) == []


def test_plain_pyarrow_reads_a_shard(pristine: Path, samples: list[Sample]) -> None:
    batches = []
    for path in sorted(pristine.glob("0*.arrow")):
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
        batches.append(table)
    table = pa.concat_tables(batches)
    assert table["image"].to_pylist() == [sample["image"] for sample in samples]
    assert table["good"].to_pylist() == [sample["good"] for sample in samples]
    assert table["name"].to_pylist() == [sample["name"] for sample in samples]
    boxes = table["box"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(boxes, np.stack([sample["box"] for sample in samples]))
    sounds = table["sound"].to_pylist()
    assert [sound["shape"] for sound in sounds] == [list(sample["sound"].shape) for sample in samples]
    assert [sound["data"] for sound in sounds] == [sample["sound"].ravel().tolist() for sample in samples]


def test_polars_reads_a_shard(pristine: Path, samples: list[Sample]) -> None:
    frame = pl.concat(pl.read_ipc(io.BytesIO(path.read_bytes())) for path in sorted(pristine.glob("0*.arrow")))
    assert frame["image"].to_list() == [sample["image"] for sample in samples]
    assert frame["label"].to_list() == [sample["label"] for sample in samples]
    assert frame["name"].to_list() == [sample["name"] for sample in samples]
    assert frame["sound"].struct.field("data").to_list() == [sample["sound"].ravel().tolist() for sample in samples]


def test_a_shard_lies_in_record_batches_and_holds_nothing_compressed(pristine: Path, samples: list[Sample]) -> None:
    path = pristine / "00000000.arrow"
    with pa.OSFile(str(path)) as file:
        assert pa.ipc.open_file(file).num_record_batches > 1
    assert samples[0]["image"] in path.read_bytes()


def test_places_are_offsets_in_the_file(pristine: Path, samples: list[Sample]) -> None:
    with open_dataset(pristine).open_shard(0) as reader:
        places = reader._footer.placed["image"]
        content = (pristine / "00000000.arrow").read_bytes()
        for row in range(reader.rows):
            stored = content[places.offsets[row] : places.offsets[row] + places.nbytes[row]]
            assert stored == samples[row]["image"]
            assert places.checksums[row] == sample_checksum(stored)


def test_only_the_columns_named_are_opened(pristine: Path) -> None:
    with open_dataset(pristine).open_shard(0, ["label"]) as reader:
        assert reader.value(1, "label") == 1
        with pytest.raises(SchemaError, match=r"'image' was not opened .* opened: 'label'"):
            reader.read(0, "image")
    with pytest.raises(SchemaError, match="no column 'mask'"):
        open_dataset(pristine).open_shard(0, ["mask"])


def test_a_method_that_is_not_for_the_column_says_which_is(pristine: Path) -> None:
    with open_dataset(pristine).open_shard(0) as reader:
        with pytest.raises(SchemaError, match=r"read\(\) is not for it; use scalars\(\)"):
            reader.read(0, "label")
        with pytest.raises(SchemaError, match=r"scalars\(\) is not for it"):
            reader.scalars("image")
        with pytest.raises(SchemaError, match=r"shape\(\) is not for it"):
            reader.shape(0, "image")
        for row in (-1, reader.rows):
            for column in reader._columns:
                with pytest.raises(IndexError, match=r"has \d+ rows"):
                    reader.value(row, column)


def test_values_are_read_only(pristine: Path) -> None:
    with open_dataset(pristine).open_shard(0) as reader:
        for array in (
            reader.scalars("label"),
            reader.scalars("good"),
            reader.value(1, "box"),
            reader.value(1, "sound"),
        ):
            assert not array.flags.writeable
        assert reader.read(0, "image").readonly


@contextmanager
def flipped(path: Path, place: int) -> Iterator[None]:
    """One bit of the file is other than it was written."""
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << place % 8]), place)
        yield
        os.pwrite(file.fileno(), byte, place)


def error_of(reader: ShardReader, row: int, column: str) -> ShardCorruptError | None:
    try:
        reader.value(row, column)
    except ShardCorruptError as error:
        return error
    return None


def test_no_flipped_byte_in_a_shard_passes(
    tmp_path: Path, pristine: Path, samples: list[Sample], same_value: Same
) -> None:
    """One bit in every byte before the footer, and in every third of it: `verify` reports each; no read is wrong."""
    folder = tmp_path / "tiny"
    columns = {column.name: column.spec for column in open_dataset(pristine).schema}
    with ShardWriter(folder, columns, batch_nbytes=500) as writer:
        for sample in samples[:4]:
            writer.write(sample)
    data = open_dataset(folder)
    content = (folder / "00000000.arrow").read_bytes()
    footer = len(content) - int(data.footer_nbytes[0])
    refused = 0
    for place in itertools.chain(range(footer), range(footer, len(content), 3)):
        with flipped(folder / "00000000.arrow", place):
            problems = verify_dataset(data)
            assert problems, place
            if place >= footer:
                with pytest.raises(ShardCorruptError, match="its footer has checksum"):
                    data.open_shard(0)
                continue
            places = {(p.row, p.column) for p in problems if p.row is not None and p.column is not None}
            with data.open_shard(0) as reader:
                for row, name in itertools.product(range(4), columns) if place % 3 == 0 else places:
                    error = error_of(reader, row, name)
                    if error is None:
                        assert (row, name) not in places
                        assert same_value(reader.value(row, name), samples[row][name])
                        continue
                    # a damaged batch of scalars or shapes makes the column unreadable, and names its own first row
                    assert (error.row, error.column) in places
                    assert (error.dataset, error.shard, error.column) == (str(folder), "00000000.arrow", name)
                    refused += 1
    assert refused >= sum(len(sample["image"]) for sample in samples[:4])


def test_a_sample_is_verified_every_time_it_is_read(stored: Path) -> None:
    data = open_dataset(stored)
    with data.open_shard(0) as reader:
        reader.read(1, "image")
        place = int(reader._footer.placed["image"].offsets[1])
        damaged = flipped(stored / "00000000.arrow", place)
        with (
            damaged,
            pytest.raises(ShardCorruptError, match=r"shard 00000000.arrow of .*, row 1, column 'image': it has"),
        ):
            reader.read(1, "image")
        reader.read(2, "image")


@pytest.mark.parametrize("left", [0, 7, 1000, -1])
def test_a_shard_cut_short_is_refused_when_it_is_opened(left: int, stored: Path) -> None:
    path = stored / "00000000.arrow"
    os.truncate(path, left if left >= 0 else path.stat().st_size - 1)
    with pytest.raises(ShardCorruptError, match=r"shard 00000000.arrow of .* bytes, and the index says .* cut short"):
        open_dataset(stored).open_shard(0)
    (problem,) = verify_dataset(open_dataset(stored))
    assert (problem.shard, problem.row) == ("00000000.arrow", None)


def test_a_shard_cut_short_while_it_is_read_names_the_sample(stored: Path) -> None:
    with open_dataset(stored).open_shard(0) as reader:
        last = reader.rows - 1
        os.truncate(stored / "00000000.arrow", int(reader._footer.placed["image"].offsets[last]))
        assert reader.read(0, "image")
        with pytest.raises(SourceError, match=rf"00000000.arrow of .*, row {last}, column 'image': .* cut short"):
            reader.read(last, "image")
        with pytest.raises(SourceError, match="cut short"):
            reader.scalars("label")


def test_a_missing_shard_is_named(stored: Path) -> None:
    (stored / "00000001.arrow").unlink()
    data = open_dataset(stored)
    with pytest.raises(SourceError, match=r"00000001.arrow of .* cannot be opened: No such file"):
        data.open_shard(1)
    assert [problem.shard for problem in verify_dataset(data)] == ["00000001.arrow"]
