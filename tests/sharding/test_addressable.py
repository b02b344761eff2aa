from __future__ import annotations

import io
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.sharding import BAND_NBYTES, JpegLayout, bands_of, describe_jpeg, sample_checksum, sub_jpeg

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]
SAMPLINGS = ["4:2:0", "4:2:2", "4:4:4", "grey"]


def picture(height: int, width: int) -> Pixels:
    """Colours that change at every pixel, so that any wrong neighbour shows."""
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@cache
def encoded(height: int, width: int, sampling: str, segment: int) -> bytes:
    """With a restart marker after every `segment` MCUs, as Pillow writes it."""
    image = Image.fromarray(picture(height, width))
    file = io.BytesIO()
    if sampling == "grey":
        image.convert("L").save(file, "JPEG", restart_marker_blocks=segment)
    else:
        image.save(file, "JPEG", subsampling=sampling, restart_marker_blocks=segment)
    return file.getvalue()


def decode(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def part_of(data: bytes, layout: JpegLayout, window: Window) -> tuple[Pixels, tuple[int, int]]:
    """The pixels of the smaller JPEG, read as a reader does: header and the bands that hold the window."""
    first, end = bands_of(layout, window[0], window[2])
    assert 0 <= first < end <= len(layout.band_rows)
    begin = layout.header_nbytes + sum(layout.band_nbytes[:first])
    bands = memoryview(data)[begin : begin + sum(layout.band_nbytes[first:end])]
    header = memoryview(data)[: layout.header_nbytes]
    smaller, origin = sub_jpeg(header, bands, layout, sum(layout.band_rows[:first]), window)
    again = describe_jpeg(smaller)
    assert again is not None
    pixels = decode(smaller)
    assert (again.height, again.width) == pixels.shape[:2]
    return pixels, origin


def assert_same_window(data: bytes, layout: JpegLayout, whole: Pixels, window: Window) -> None:
    top, left, height, width = window
    part, (y, x) = part_of(data, layout, window)
    held = part[top - y : top - y + height, left - x : left - x + width]
    assert np.array_equal(held, whole[top : top + height, left : left + width]), window


def described(data: bytes) -> JpegLayout:
    layout = describe_jpeg(data)
    assert layout is not None
    return layout


def assert_consistent(data: bytes | memoryview, layout: JpegLayout) -> None:
    view = memoryview(data)
    assert layout.header_nbytes + sum(layout.band_nbytes) + 2 == len(view)
    assert sum(layout.band_rows) == -(-layout.height // layout.mcu_height)
    assert -(-layout.width // layout.mcu_width) % layout.segment == 0
    assert 1 <= layout.orientation <= 8
    assert {layout.mcu_height, layout.mcu_width} <= {8, 16, 32}
    assert min(layout.band_rows) >= 1
    assert min(layout.band_nbytes) >= 1
    assert all(nbytes >= BAND_NBYTES for nbytes in layout.band_nbytes[:-1])
    assert layout.header_checksum == sample_checksum(view[: layout.header_nbytes])
    edges = np.cumsum([layout.header_nbytes, *layout.band_nbytes]).tolist()
    assert layout.band_checksums == tuple(sample_checksum(view[a:b]) for a, b in pairwise(edges))


@pytest.mark.parametrize(
    ("sampling", "mcu"), [("4:4:4", (8, 8)), ("4:2:2", (8, 16)), ("4:2:0", (16, 16)), ("grey", (8, 8))]
)
def test_a_jpeg_with_restart_markers_tells_its_layout(sampling: str, mcu: tuple[int, int]) -> None:
    data = encoded(200, 192, sampling, 4)
    layout = described(data)
    assert_consistent(data, layout)
    assert (layout.height, layout.width, layout.segment) == (200, 192, 4)
    assert (layout.mcu_height, layout.mcu_width) == mcu
    assert len(layout.band_rows) > 2
    assert describe_jpeg(memoryview(data)) == layout


@pytest.mark.parametrize("size", [(8, 192), (1, 1), (9, 7), (500, 8)])
def test_one_row_or_one_segment_is_addressable_too(size: tuple[int, int]) -> None:
    data = encoded(*size, "4:4:4", -(-size[1] // 8))
    assert_consistent(data, described(data))
    assert_same_window(data, described(data), decode(data), (0, 0, *size))


def test_what_is_not_addressable_has_no_layout() -> None:
    image, file = Image.fromarray(picture(64, 96)), io.BytesIO()
    image.save(file, "PNG")
    others = [file.getvalue(), encoded(64, 96, "4:4:4", 5), encoded(64, 96, "4:4:4", 24)]
    for options in ({}, {"progressive": True, "restart_marker_blocks": 3}):
        file = io.BytesIO()
        image.save(file, "JPEG", **options)
        others.append(file.getvalue())
    file = io.BytesIO()
    image.convert("CMYK").save(file, "JPEG", restart_marker_blocks=3)
    sound = encoded(64, 96, "4:4:4", 3)
    begin = described(sound).header_nbytes
    others += [
        file.getvalue(),
        sound + b"\0",
        sound[:-2],
        sound[:begin] + sound[begin:].replace(b"\xff\xd2", b"\xff\xd3", 1),
        sound[:begin] + sound[begin:].replace(b"\xff\xd2", b"\xff\x00", 1),
        sound[:begin] + sound[begin:].replace(b"\xff\xd2", b"\xff\xd2\xff\xd2", 1),
        sound.replace(b"\0\x3f\0", b"\0\x05\0", 1),
    ]
    assert [describe_jpeg(other) for other in others] == [None] * len(others)


def test_files_of_all_kinds_have_a_layout_that_holds_or_none(data_dir: Path) -> None:
    held = 0
    for path in sorted((data_dir / "awkward").rglob("*.*")):
        data = path.read_bytes()
        layout = describe_jpeg(data)
        if layout is not None:
            assert_consistent(data, layout)
            held += 1
    assert held


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_orientation_is_that_of_exif(orientation: int) -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(picture(16, 16)).save(file, "JPEG", exif=exif, restart_marker_rows=1)
    assert described(file.getvalue()).orientation == orientation


@given(data=st.binary(max_size=300))
def test_any_bytes_have_a_layout_that_holds_or_none(data: bytes) -> None:
    sound = encoded(8, 16, "4:4:4", 1)
    for begin in (b"", b"\xff\xd8", sound[: described(sound).header_nbytes], sound[:-10]):
        for end in (b"", b"\xff\xd9"):
            layout = describe_jpeg(begin + data + end)
            if layout is not None:
                assert_consistent(begin + data + end, layout)


def test_a_cut_file_has_no_layout_wherever_it_ends() -> None:
    data = encoded(40, 48, "4:2:0", 1)
    for nbytes in range(len(data)):
        assert describe_jpeg(memoryview(data)[:nbytes]) is None


@settings(max_examples=500, deadline=None)
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3),
    in_header=st.booleans(),
)
def test_a_damaged_file_has_a_layout_that_holds_or_none(flips: list[tuple[float, int]], in_header: bool) -> None:
    data = bytearray(encoded(40, 48, "4:2:0", 1))
    nbytes = described(bytes(data)).header_nbytes if in_header else len(data)
    for place, value in flips:
        data[int(place * nbytes)] = value
    layout = describe_jpeg(bytes(data))
    if layout is None:
        return
    assert_consistent(bytes(data), layout)
    header, bands = data[: layout.header_nbytes], data[layout.header_nbytes : -2]
    smaller, _ = sub_jpeg(bytes(header), bytes(bands), layout, 0, (0, 0, layout.height, layout.width))
    assert smaller == bytes(data)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, int, str, int], Window]:
    sampling = draw(st.sampled_from(SAMPLINGS))
    mcu_width = 16 if sampling in ("4:2:0", "4:2:2") else 8
    height, segment = draw(st.sampled_from([1, 9, 40, 131])), draw(st.sampled_from([1, 3, 4, 12]))
    width = 12 * mcu_width - draw(st.sampled_from([0, 1, 5, 7]))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    window = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    return (height, width, sampling, segment), window


@settings(max_examples=400, deadline=None)
@given(windows())
def test_a_window_has_the_pixels_of_the_whole_picture(drawn: tuple[tuple[int, int, str, int], Window]) -> None:
    data = encoded(*drawn[0])
    assert_same_window(data, described(data), decode(data), drawn[1])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("width", [32, 33, 34, 35, 36, 37, 38, 47, 48])
def test_windows_at_every_border_have_the_pixels_of_the_whole_picture(sampling: str, width: int) -> None:
    height = width + 1
    data = encoded(height, width, sampling, 1)
    layout, whole = described(data), decode(data)
    for top in range(height):
        assert_same_window(data, layout, whole, (top, 0, 1, width))
        assert_same_window(data, layout, whole, (top, width - 1, height - top, 1))
        assert_same_window(data, layout, whole, (0, 0, top + 1, 1))
    for left in range(width):
        assert_same_window(data, layout, whole, (0, left, height, 1))
        assert_same_window(data, layout, whole, (height - 1, left, 1, width - left))
        assert_same_window(data, layout, whole, (0, 0, 1, left + 1))


@pytest.mark.parametrize("decoder", ["Pillow", "simplejpeg"])
def test_a_part_is_smaller_than_the_whole(decoder: str) -> None:
    data = encoded(400, 480, "4:2:0", 2)
    layout = described(data)
    first, end = bands_of(layout, 200, 40)
    begin = layout.header_nbytes + sum(layout.band_nbytes[:first])
    bands = data[begin : begin + sum(layout.band_nbytes[first:end])]
    first_row = sum(layout.band_rows[:first])
    smaller, origin = sub_jpeg(data[: layout.header_nbytes], bands, layout, first_row, (200, 100, 40, 60))
    assert origin == (192, 96)
    assert len(bands) < len(data) / 3
    assert len(smaller) < len(bands) / 2
    pixels = decode(smaller) if decoder == "Pillow" else simplejpeg.decode_jpeg(smaller)
    assert pixels.shape == (64, 96, 3)


@pytest.mark.parametrize(
    "window", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (60, 0, 5, 5), (0, 92, 5, 5), (0, 0, 65, 1)]
)
def test_a_window_outside_the_picture_is_refused(window: Window) -> None:
    data = encoded(64, 96, "4:4:4", 3)
    layout = described(data)
    with pytest.raises(ValueError, match="not all within a picture of"):
        sub_jpeg(data[: layout.header_nbytes], data[layout.header_nbytes : -2], layout, 0, window)
    if not 0 <= window[0] < window[0] + window[2] <= 64:
        with pytest.raises(ValueError, match="not all within a picture of 64"):
            bands_of(layout, window[0], window[2])


def test_bands_that_do_not_hold_the_window_are_refused() -> None:
    data = encoded(400, 480, "4:2:0", 2)
    layout = described(data)
    header = data[: layout.header_nbytes]
    one = data[layout.header_nbytes :][: layout.band_nbytes[0]]
    for bands, first_row in ((one, 0), (b"", 0), (one, layout.band_rows[0]), (one[:-200], 20)):
        with pytest.raises(ValueError, match="give all bands that bands_of names"):
            sub_jpeg(header, bands, layout, first_row, (320, 0, 80, 480))


def test_the_bands_of_a_window_are_the_fewest() -> None:
    layout = described(encoded(400, 480, "4:2:0", 2))
    ends = np.cumsum(layout.band_rows) * layout.mcu_height
    for top in range(400):
        first, end = bands_of(layout, top, 1)
        assert first == np.searchsorted(ends, max(0, top - 2), side="right")
        assert end == np.searchsorted(ends, min(399, top + 2), side="right") + 1
    assert bands_of(layout, 0, 400) == (0, len(layout.band_rows))
