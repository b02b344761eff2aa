"""Footers made to mislead: whoever made the shard made the index too, so the checksums hold."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.errors import ShardCorruptError
from forebay.sharding import ReadMemory, Schema, ShardReader, describe_jpeg, open_dataset, sample_checksum
from forebay.sharding.footer import FOOTER_METADATA_KEY
from forebay.sharding.shard_layout import build_batch, lay_out_shard
from forebay.sharding.values import encode_sample

Sample = dict[str, Any]


class Memory:
    """A source file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.nbytes = len(content)

    def read(self, offset: int, nbytes: int, memory: ReadMemory | None = None) -> memoryview:
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        return memoryview(self.content)[offset : offset + nbytes]

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def open_hostile(schema: Schema, content: bytes, rows: int) -> ShardReader:
    footer_nbytes = int.from_bytes(content[-10:-6], "little", signed=True) + 10
    tail = content[max(0, len(content) - footer_nbytes) :]
    return ShardReader(
        Memory(content),
        dataset="d",
        shard="s",
        schema=schema,
        footer_nbytes=footer_nbytes,
        footer_checksum=sample_checksum(tail),
        rows=rows,
    )


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_hostile_footer_is_an_error_and_reads_nothing_outside_the_file(pristine: Path, data: st.DataObject) -> None:
    schema = open_dataset(pristine).schema
    content = bytearray((pristine / "00000000.arrow").read_bytes())
    rows = int(open_dataset(pristine).shard_rows[0])
    footer_nbytes = int.from_bytes(content[-10:-6], "little") + 10
    for _ in range(data.draw(st.integers(1, 4))):
        content[len(content) - data.draw(st.integers(1, footer_nbytes))] = data.draw(st.integers(0, 255))
    try:
        reader = open_hostile(schema, bytes(content), rows)
        for row in range(reader.rows):
            for name in schema.names:
                reader.value(row, name)
    except ShardCorruptError:
        pass


def forge(pristine: Path, samples: list[Sample], edit: Callable[[Any], Any]) -> tuple[Schema, bytes]:
    """A shard whose footer metadata `edit` has changed; everything else is as forebay writes it."""
    schema = open_dataset(pristine).schema
    return schema, forge_shard(schema, samples[:3], edit)


def forge_shard(schema: Schema, samples: list[Sample], edit: Callable[[Any], Any]) -> bytes:
    batches = [build_batch(schema, [encode_sample(schema, sample, 0) for sample in samples])]
    metadata = pa.ipc.open_file(lay_out_shard(schema, batches).data).metadata
    content = edit(json.loads(metadata[FOOTER_METADATA_KEY]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.arrow_schema, metadata={FOOTER_METADATA_KEY: json.dumps(content)}) as writer:
        for built in batches:
            writer.write_batch(built.batch)
    forged: bytes = sink.getvalue().to_pybytes()
    return forged


def packed(*values: int) -> str:
    return base64.b64encode(np.array(values, dtype="<i8").tobytes()).decode()


def edit_column(name: str, **arrays: Any) -> Callable[[Any], Any]:
    def edit(content: Any) -> Any:
        content["columns"][name] |= arrays
        return content

    return edit


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a newer version": (lambda content: content | {"version": 2}, "upgrade"),
    "no version": (lambda content: content | {"version": None}, "upgrade"),
    "no object": (lambda content: [], "not of forebay's form"),
    "an empty object": (lambda content: {}, "not of forebay's form"),
    "no columns": (lambda content: content | {"columns": {}}, "not of forebay's form"),
    "a row too few": (lambda content: content | {"batch_rows": packed(2)}, "the index says 3"),
    "row counts that wrap round": (
        lambda content: content | {"batch_rows": packed(*[2**62] * 4, 3)},
        "the index says 3",
    ),
    "a batch of -1 rows": (lambda content: content | {"batch_rows": packed(4, -1)}, "the index says 3"),
    "no base64": (lambda content: content | {"batch_rows": "####"}, "no base64"),
    "half a number": (lambda content: content | {"batch_rows": "AAAA"}, "not of forebay's form"),
    "a start before the file": (edit_column("image", starts=packed(-1)), "outside the file"),
    "a start far behind it": (edit_column("image", starts=packed(1 << 62)), "outside the file"),
    "a start that wraps round": (edit_column("image", starts=packed((1 << 63) - 1)), "outside the file"),
    "a start too many": (edit_column("image", starts=packed(0, 0)), "2 numbers where 1 are due"),
    "a sample longer than the file": (edit_column("image", nbytes=packed(1, 1, 1 << 40)), "longer than the file"),
    "a sample of -1 bytes": (edit_column("image", nbytes=packed(1, 1, -1)), "longer than the file"),
    "a length too few": (edit_column("image", nbytes=packed(1, 1)), "2 numbers where 3 are due"),
    "no checksums": (edit_column("image", checksums=packed()), "0 numbers where 3 are due"),
    "values far behind the file": (edit_column("label", starts=packed(1 << 62)), "outside the file"),
    "values before it": (edit_column("label", starts=packed(-8)), "outside the file"),
    "no starts": (edit_column("label", starts=None), "not of forebay's form"),
    "no shapes": (edit_column("sound", shapes={}), "not of forebay's form"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_lies_is_refused(lie: str, pristine: Path, samples: list[Sample]) -> None:
    edit, says = LIES[lie]
    schema, content = forge(pristine, samples, edit)
    with pytest.raises(ShardCorruptError, match="shard s of d: ") as caught:
        open_hostile(schema, content, rows=3)
    assert says in str(caught.value)


def test_a_shard_of_another_schema_is_refused(pristine: Path, samples: list[Sample]) -> None:
    _, content = forge(pristine, samples, lambda content: content)
    other = Schema.from_spec({"image": "image"})
    with pytest.raises(ShardCorruptError, match="not of this data set"):
        open_hostile(other, content, rows=3)


def test_an_index_that_claims_giant_row_counts_costs_no_memory(pristine: Path, samples: list[Sample]) -> None:
    schema, content = forge(pristine, samples, lambda content: content | {"batch_rows": packed(1 << 61)})
    with pytest.raises(ShardCorruptError, match="cannot hold"):
        open_hostile(schema, content, rows=1 << 61)


PHOTO_SCHEMA = Schema.from_spec({"photo": "image"})


def restart_marked(height: int, width: int) -> bytes:
    """A JPEG with a restart marker after every 4 of its MCUs."""
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling="4:2:0", restart_marker_blocks=4)
    return file.getvalue()


PHOTOS = [{"photo": restart_marked(200, 256)}, {"photo": b"no JPEG"}, {"photo": restart_marked(208, 128)}]
FRAME = ["height", "width", "orientation", "mcu_height", "mcu_width", "segment", "header_nbytes", "bands"]
ARRAYS = {
    "frames": "<i4",
    "header_checksums": "<u8",
    "band_rows": "<i4",
    "band_nbytes": "<i4",
    "band_checksums": "<u8",
}


def edit_jpeg(array: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any] | None]) -> Callable[[Any], Any]:
    """Change an array of the column's JPEG layouts, in place or for what `change` returns."""

    def edit(content: Any) -> Any:
        layouts = content["columns"]["photo"]["jpeg"]
        values = np.frombuffer(base64.b64decode(layouts[array]), ARRAYS[array]).copy()
        changed = change(values)
        layouts[array] = base64.b64encode((values if changed is None else changed).tobytes()).decode()
        return content

    return edit


def set_number(array: str, index: int, value: int) -> Callable[[Any], Any]:
    def change(values: npt.NDArray[Any]) -> None:
        values[index] = value

    return edit_jpeg(array, change)


def set_frame(row: int, name: str, value: int) -> Callable[[Any], Any]:
    return set_number("frames", row * len(FRAME) + FRAME.index(name), value)


def move(array: str, by: int) -> Callable[[Any], Any]:
    """Take from the first number what is added to the second one: their sum stays."""

    def change(values: npt.NDArray[Any]) -> None:
        values[:2] += np.array([-by, by], values.dtype)

    return edit_jpeg(array, change)


def replace_jpeg(value: Any) -> Callable[[Any], Any]:
    return edit_column("photo", jpeg=value)


JPEG_LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no height": (set_frame(0, "height", 0), "row 0 a JPEG whose size"),
    "a height below 0": (set_frame(2, "height", -208), "row 2 a JPEG whose size"),
    "a width that no JPEG has": (set_frame(0, "width", 1 << 16), "row 0 a JPEG whose size"),
    "the largest width there is": (set_frame(0, "width", (1 << 31) - 1), "row 0 a JPEG whose size"),
    "an MCU row too many": (set_frame(0, "height", 209), "row 0 a JPEG whose rows of bands"),
    "an MCU row too few": (set_frame(0, "height", 192), "row 0 a JPEG whose rows of bands"),
    "no orientation": (set_frame(0, "orientation", 0), "row 0 a JPEG whose orientation"),
    "a ninth orientation": (set_frame(2, "orientation", 9), "row 2 a JPEG whose orientation"),
    "MCUs of 0 rows": (set_frame(0, "mcu_height", 0), "row 0 a JPEG whose size of an MCU"),
    "MCUs of 24 columns": (set_frame(0, "mcu_width", 24), "row 0 a JPEG whose size of an MCU"),
    "MCUs of fewer than 0 rows": (set_frame(0, "mcu_height", -16), "row 0 a JPEG whose size of an MCU"),
    "no segment": (set_frame(0, "segment", 0), "row 0 a JPEG whose segment"),
    "a segment that does not divide": (set_frame(0, "segment", 3), "row 0 a JPEG whose segment"),
    "a segment below 0": (set_frame(0, "segment", -4), "row 0 a JPEG whose segment"),
    "a segment of more than a row": (set_frame(0, "segment", 32), "row 0 a JPEG whose segment"),
    "no header": (set_frame(0, "header_nbytes", 0), "row 0 a JPEG whose lengths"),
    "a header a byte too long": (
        edit_jpeg("frames", lambda values: values + (np.arange(24) == FRAME.index("header_nbytes")).astype("<i4")),
        "row 0 a JPEG whose lengths",
    ),
    "a giant header": (set_frame(0, "header_nbytes", (1 << 31) - 1), "row 0 a JPEG whose lengths"),
    "a sample that is none": (set_frame(1, "height", 8), "row 1 a JPEG whose size"),
    "the bands of none": (set_frame(1, "bands", 1), "numbers where"),
    "bands that another has": (
        edit_jpeg("frames", lambda values: values + np.bincount([7, 23], [1, -1], 24).astype("<i4")),
        "row 0 a JPEG whose rows of bands",
    ),
    "no bands": (set_frame(2, "bands", 0), "numbers where"),
    "fewer than no bands": (set_frame(2, "bands", -1), "fewer than 0 bands"),
    "more bands than there can be": (set_frame(2, "bands", (1 << 31) - 1), "numbers where"),
    "a checksum of no header": (set_number("header_checksums", 1, 5), "row 1 a JPEG whose"),
    "a band without rows": (set_number("band_rows", 0, 0), "row 0 a JPEG whose rows of bands"),
    "bands of which one has fewer than 0 rows": (move("band_rows", 100), "row 0 a JPEG whose rows of bands"),
    "a band that is a byte longer": (
        edit_jpeg("band_nbytes", lambda values: values + (np.arange(len(values)) == 0).astype("<i4")),
        "row 0 a JPEG whose lengths",
    ),
    "bands of which one is shorter than 0": (move("band_nbytes", 1 << 20), "row 0 a JPEG whose lengths"),
    "a frame too few": (edit_jpeg("frames", lambda values: values[:-8]), "16 numbers where 24 are due"),
    "a number too many": (edit_jpeg("frames", lambda values: np.append(values, values[:1])), "25 numbers where 24"),
    "a header checksum too few": (edit_jpeg("header_checksums", lambda v: v[:2]), "2 numbers where 3 are due"),
    "a band too few": (edit_jpeg("band_rows", lambda values: values[:-1]), "numbers where"),
    "a band length too many": (edit_jpeg("band_nbytes", lambda v: np.append(v, v[:1])), "numbers where"),
    "no band checksums": (edit_jpeg("band_checksums", lambda values: values[:0]), "0 numbers where"),
    "no layouts": (replace_jpeg(None), "not of forebay's form"),
    "layouts in a list": (replace_jpeg([]), "not of forebay's form"),
    "empty layouts": (replace_jpeg({}), "not of forebay's form"),
    "numbers as such": (replace_jpeg({"frames": 24}), "not of forebay's form"),
    "no base64": (replace_jpeg({"frames": "####"}), "no base64"),
}


@pytest.mark.parametrize("lie", JPEG_LIES)
def test_jpeg_layouts_that_lie_are_refused(lie: str) -> None:
    edit, says = JPEG_LIES[lie]
    content = forge_shard(PHOTO_SCHEMA, PHOTOS, edit)
    with pytest.raises(ShardCorruptError, match="shard s of d: ") as caught:
        open_hostile(PHOTO_SCHEMA, content, rows=3)
    assert says in str(caught.value)


def test_jpeg_layouts_that_are_true_are_read() -> None:
    content = forge_shard(PHOTO_SCHEMA, PHOTOS, lambda content: content)
    reader = open_hostile(PHOTO_SCHEMA, content, rows=3)
    assert [reader.jpeg_layout(row, "photo") for row in range(3)] == [describe_jpeg(row["photo"]) for row in PHOTOS]
    assert len(describe_jpeg(PHOTOS[0]["photo"]).band_rows) > 2  # type: ignore[union-attr]


@settings(deadline=None, max_examples=400)
@given(
    array=st.sampled_from(sorted(ARRAYS)),
    place=st.integers(0, 1 << 16),
    value=st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 40),
)
def test_a_number_of_a_jpeg_layout_that_is_another_is_refused_or_reads_nothing_outside_the_sample(
    array: str, place: int, value: int
) -> None:
    def change(values: npt.NDArray[Any]) -> None:
        values[place % len(values)] = np.array(value).astype(values.dtype)

    content = forge_shard(PHOTO_SCHEMA, PHOTOS, edit_jpeg(array, change))
    try:
        reader = open_hostile(PHOTO_SCHEMA, content, rows=3)
        for row in range(3):
            layout = reader.jpeg_layout(row, "photo")
            if layout is not None:
                header, bands, first_row = reader.read_jpeg(row, "photo", layout.height // 2, 1)
                assert len(header) + len(bands) + 2 <= len(PHOTOS[row]["photo"])
                assert 0 <= first_row < layout.height
    except ShardCorruptError:
        pass
