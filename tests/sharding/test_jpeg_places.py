"""Crop-addressable JPEGs in a shard: what the footer tells of them, and that a part is read as well as the whole."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.errors import SchemaError, ShardCorruptError, SourceError
from forebay.sharding import (
    Frames,
    JpegLayout,
    ReadMemory,
    Schema,
    ShardReader,
    ShardWriter,
    bands_of,
    describe_jpeg,
    open_dataset,
    plan_parts,
    sub_jpeg,
    verify_dataset,
)
from forebay.sharding.footer import FOOTER_METADATA_KEY, FooterError
from forebay.sharding.jpeg_part import GAP_NBYTES
from forebay.sharding.jpeg_places import JpegPlaces
from forebay.sharding.shard_layout import build_batch, lay_out_shard
from forebay.sharding.values import encode_sample

Pixels = npt.NDArray[np.uint8]


def picture(height: int, width: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Noise over a slope: every band is full of bytes, and no two places look alike."""
    slope = np.linspace(0, 200, height * width).reshape(height, width, 1)
    noise = np.random.default_rng(seed).integers(0, 56, (height, width, 3))
    return Image.fromarray((slope + noise).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(image: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(image)))


ADDRESSABLE = {  # restart markers every so many MCUs, which divide a row of MCUs
    "4:2:0": encoded(picture(700, 640), quality=90, subsampling="4:2:0", restart_marker_blocks=8),
    "4:2:2, odd sides": encoded(picture(333, 501, 1), quality=85, subsampling="4:2:2", restart_marker_blocks=4),
    "4:4:4": encoded(picture(240, 320, 2), quality=95, subsampling="4:4:4", restart_marker_blocks=40),
    "grey": encoded(picture(400, 160, 3, "L"), quality=95, restart_marker_blocks=5),
    "one row of MCUs": encoded(picture(15, 1000, 4), quality=95, subsampling="4:2:0", restart_marker_blocks=9),
}
OTHERS = {
    "ordinary": encoded(picture(64, 64), quality=90),
    "progressive": encoded(picture(64, 64), quality=90, progressive=True),
    "PNG": encoded(picture(9, 9), "PNG"),
    "no image": b"\xff",
}
NAMES = ["PNG", *ADDRESSABLE, "ordinary", "4:2:0", "progressive", "no image"]  # in a shard, row by row
SCHEMA = Schema.from_spec({"photo": "image", "thumb": "image", "label": "int64"})


def rows_of(names: Sequence[str]) -> list[dict[str, Any]]:
    images = ADDRESSABLE | OTHERS
    return [{"photo": images[name], "thumb": OTHERS["ordinary"], "label": row} for row, name in enumerate(names)]


class CountedFile:
    """A source file in memory that notes what was read, and may be damaged."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.nbytes = len(content)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        if offset + nbytes > len(self.content):
            raise SourceError("cut short")
        self.reads.append((offset, nbytes))
        return memoryview(bytes(self.content[offset : offset + nbytes]))

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def open_in_memory(names: Sequence[str]) -> tuple[ShardReader, CountedFile]:
    """A shard of two record batches with these images, and the file it is read from."""
    samples = [encode_sample(SCHEMA, row, 0) for row in rows_of(names)]
    laid = lay_out_shard(SCHEMA, [build_batch(SCHEMA, part) for part in (samples[:2], samples[2:]) if part])
    file = CountedFile(laid.data.to_pybytes())
    reader = ShardReader(
        file,
        dataset="d",
        shard="s",
        schema=SCHEMA,
        footer_nbytes=laid.footer_nbytes,
        footer_checksum=laid.footer_checksum,
        rows=laid.rows,
    )
    file.reads.clear()
    return reader, file


def layout_of(reader: ShardReader, row: int) -> JpegLayout:
    layout = reader.jpeg_layout(row, "photo")
    assert layout is not None
    return layout


def test_the_test_images_have_several_bands() -> None:
    layouts = {name: describe_jpeg(image) for name, image in ADDRESSABLE.items()}
    assert {name for name, layout in layouts.items() if layout is not None and len(layout.band_rows) > 2} >= {
        "4:2:0",
        "4:2:2, odd sides",
        "4:4:4",
        "grey",
    }
    assert [describe_jpeg(image) for image in OTHERS.values()] == [None] * len(OTHERS)


def test_a_layout_comes_back_for_each_sample_that_has_one_and_all_are_read_whole(tmp_path: Path) -> None:
    rows = rows_of(NAMES * 3)
    with ShardWriter(
        tmp_path / "data", {column.name: column.spec for column in SCHEMA}, batch_nbytes=200_000
    ) as writer:
        for row in rows:
            writer.write(row)
    data = open_dataset(tmp_path / "data")
    with data.open_shard(0) as reader:
        assert reader.rows == len(rows)
        for number, row in enumerate(rows):
            assert reader.jpeg_layout(number, "photo") == describe_jpeg(row["photo"])
            assert reader.jpeg_layout(number, "thumb") is None
            assert reader.read(number, "photo") == row["photo"]
    assert verify_dataset(data) == []


def footer_of(names: Sequence[str]) -> Any:
    batch = build_batch(SCHEMA, [encode_sample(SCHEMA, row, 0) for row in rows_of(names)])
    return json.loads(pa.ipc.open_file(lay_out_shard(SCHEMA, [batch]).data).metadata[FOOTER_METADATA_KEY])


def test_a_column_without_addressable_samples_is_written_as_it_was_before_there_were_any() -> None:
    columns = footer_of(NAMES)["columns"]
    assert set(columns["photo"]) == {"starts", "nbytes", "checksums", "jpeg"}
    assert set(columns["thumb"]) == {"starts", "nbytes", "checksums"}
    assert set(footer_of(list(OTHERS))["columns"]["photo"]) == {"starts", "nbytes", "checksums"}


@pytest.mark.parametrize("name", ADDRESSABLE)
def test_the_parts_of_a_jpeg_are_its_bytes(name: str) -> None:
    reader, _ = open_in_memory(NAMES)
    row = NAMES.index(name)
    layout = layout_of(reader, row)
    header, bands, first_row = reader.read_jpeg(row, "photo", 0, layout.height)
    assert first_row == 0
    assert bytes(header) + bytes(bands) + b"\xff\xd9" == ADDRESSABLE[name]
    assert header.readonly
    assert bands.readonly


@functools.cache
def open_once() -> tuple[ShardReader, CountedFile, dict[str, Pixels]]:
    """A shard for many examples, and the pixels of its addressable images decoded whole."""
    return *open_in_memory(NAMES), {name: pixels(image) for name, image in ADDRESSABLE.items()}


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_window_is_decoded_from_the_bands_that_hold_it_and_no_others_are_read(data: st.DataObject) -> None:
    reader, file, whole = open_once()
    name = data.draw(st.sampled_from(sorted(ADDRESSABLE)))
    row = NAMES.index(name)
    layout = layout_of(reader, row)
    top = data.draw(st.integers(0, layout.height - 1))
    left = data.draw(st.integers(0, layout.width - 1))
    height = data.draw(st.integers(1, layout.height - top))
    width = data.draw(st.integers(1, layout.width - left))
    file.reads.clear()
    header, bands, first_row = reader.read_jpeg(row, "photo", top, height)
    first, end = bands_of(layout, top, height)
    gap = sum(layout.band_nbytes[:first])
    wanted = sum(layout.band_nbytes[first:end])
    assert (len(header), len(bands)) == (layout.header_nbytes, wanted)
    assert sum(nbytes for _, nbytes in file.reads) == len(header) + wanted + (gap if gap < GAP_NBYTES else 0)
    assert len(file.reads) == (1 if gap < GAP_NBYTES else 2)
    jpeg, (upper, leftmost) = sub_jpeg(header, bands, layout, first_row, (top, left, height, width))
    part = pixels(jpeg)[top - upper :, left - leftmost :][:height, :width]
    assert np.array_equal(part, whole[name][top : top + height, left : left + width])


def test_bands_far_behind_the_header_are_read_apart() -> None:
    reader, file = open_in_memory(["4:2:0"])
    layout = layout_of(reader, 0)
    reader.read_jpeg(0, "photo", layout.height - 1, 1)
    (_, first), (_, second) = file.reads
    assert first == layout.header_nbytes
    assert second < len(ADDRESSABLE["4:2:0"]) / 4


def parts_of(layout: JpegLayout) -> list[tuple[str, int, int]]:
    """Name, begin and length of the header and of each band, within the sample."""
    names = ["header", *(f"band {band}" for band in range(len(layout.band_nbytes)))]
    nbytes = [layout.header_nbytes, *layout.band_nbytes]
    return list(zip(names, itertools.accumulate(nbytes, initial=0), nbytes, strict=False))


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0], ids=["first byte", "middle byte", "last byte"])
def test_a_flipped_bit_is_noticed_where_it_is_read_and_nowhere_else(at: float) -> None:
    row = NAMES.index("4:2:0")
    reader, file = open_in_memory(NAMES)
    layout = layout_of(reader, row)
    start = bytes(file.content).index(ADDRESSABLE["4:2:0"])
    top, height = 300, 40
    first, end = bands_of(layout, top, height)
    assert 0 < first < end < len(layout.band_rows)
    read = {"header", *(f"band {band}" for band in range(first, end))}
    for name, begin, nbytes in parts_of(layout):
        place = start + begin + int(at * (nbytes - 1))
        file.content[place] ^= 1
        if name in read:
            says = rf"shard s of d, row {row}, column 'photo': its {name} has checksum 0x\w+, and 0x\w+ was written"
            with pytest.raises(ShardCorruptError, match=says) as caught:
                reader.read_jpeg(row, "photo", top, height)
            assert (caught.value.row, caught.value.column) == (row, "photo")
        else:
            reader.read_jpeg(row, "photo", top, height)
        with pytest.raises(ShardCorruptError, match=f"row {row}"):
            reader.read(row, "photo")
        file.content[place] ^= 1
    reader.read_jpeg(row, "photo", top, height)


def test_bytes_that_cannot_be_read_name_the_sample() -> None:
    reader, file = open_in_memory(NAMES)
    row = NAMES.index("grey")
    del file.content[bytes(file.content).index(ADDRESSABLE["grey"]) + 20_000 :]
    with pytest.raises(SourceError, match=rf"shard s of d, row {row}, column 'photo': cut short") as caught:
        reader.read_jpeg(row, "photo", 0, 400)
    assert caught.value.row == row


def test_a_sample_that_has_no_parts_is_refused_with_the_way_to_read_it() -> None:
    reader, _ = open_in_memory(NAMES)
    for name in OTHERS:
        assert reader.jpeg_layout(NAMES.index(name), "photo") is None
        with pytest.raises(SchemaError, match=r"row \d+, column 'photo' is no crop-addressable JPEG: use read\(\)"):
            reader.read_jpeg(NAMES.index(name), "photo", 0, 1)
    with pytest.raises(SchemaError, match=r"jpeg_layout\(\) is not for it; use scalars\(\)"):
        reader.jpeg_layout(0, "label")
    with pytest.raises(SchemaError, match="'mask' was not opened"):
        reader.jpeg_layout(0, "mask")
    for row in (-1, len(NAMES)):
        with pytest.raises(IndexError, match=rf"row {row} of shard s of d, which has {len(NAMES)} rows"):
            reader.jpeg_layout(row, "photo")


@pytest.mark.parametrize(("top", "height"), [(-1, 5), (0, 0), (5, -1), (0, 701), (700, 1), (1 << 40, 1)])
def test_rows_of_pixels_outside_the_picture_are_refused(top: int, height: int) -> None:
    reader, file = open_in_memory(["4:2:0"])
    with pytest.raises(IndexError, match=rf"pixel rows {top} to .* of shard s of d, row 0, .* has 700 of them"):
        reader.read_jpeg(0, "photo", top, height)
    assert file.reads == []


def test_a_layout_that_no_reader_would_take_is_not_written() -> None:
    layout = describe_jpeg(ADDRESSABLE["grey"])
    nbytes = len(ADDRESSABLE["grey"])
    places = JpegPlaces.of("photo", [None, layout], np.array([3, nbytes]))
    assert places is not None
    assert [places.layout(0), places.layout(1)] == [None, layout]
    with pytest.raises(FooterError, match="column 'photo' has in row 1 a JPEG whose lengths cannot be"):
        JpegPlaces.of("photo", [None, layout], np.array([3, nbytes + 1]))
    assert JpegPlaces.of("photo", [None], np.array([3])) is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_parts_of_many_are_those_of_each(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(ADDRESSABLE)), min_size=1, max_size=6))
    shards = [open_in_memory(NAMES)[0] for _ in range(2)]  # two shards, whose samples come in any order
    rows = [NAMES.index(name) for name in names]
    places = [shards[i % 2].jpeg_places("photo") for i in range(len(rows))]
    known = [each for each in places if each is not None]
    assert len(known) == len(rows)
    frames = Frames.of(places, rows)
    tops, heights = [], []
    for height in frames.height.tolist():
        tops.append(data.draw(st.integers(0, height - 1)))
        heights.append(data.draw(st.integers(1, height - tops[-1])))
    plans = plan_parts(known, rows, frames, np.array(tops), np.array(heights))
    for i, row in enumerate(rows):
        layout = known[i].layout(row)
        assert layout is not None
        first, end = bands_of(layout, tops[i], heights[i])
        of_it = plans.pictures == i
        assert plans.gaps[i] == sum(layout.band_nbytes[:first])
        assert plans.nbytes[i] == sum(layout.band_nbytes[first:end])
        assert plans.first_rows[i] == sum(layout.band_rows[:first])
        assert plans.checksums[of_it].tolist() == list(layout.band_checksums[first:end])
        assert (plans.ends - plans.begins)[of_it].tolist() == list(layout.band_nbytes[first:end])
        assert plans.begins[of_it].tolist() == [0, *plans.ends[of_it].tolist()[:-1]]


def test_frames_of_what_is_not_addressable_are_zero() -> None:
    reader, _ = open_in_memory(NAMES)
    places = reader.jpeg_places("photo")
    frames = Frames.of([places, None, places], [NAMES.index("PNG"), 1, 1])
    assert frames.bands.tolist()[:2] == frames.height.tolist()[:2] == [0, 0]
    assert frames.of_some(np.array([2])).height.tolist() == [layout_height(reader, 1)]


def layout_height(reader: ShardReader, row: int) -> int:
    layout = reader.jpeg_layout(row, "photo")
    assert layout is not None
    return layout.height
