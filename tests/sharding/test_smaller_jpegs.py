"""Smaller JPEGs of many pictures at once: the native part gives what numpy gives, also of bytes that hold no window."""

from __future__ import annotations

import io
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.sharding import Frames, JpegLayout, bands_of, describe_jpeg, smaller_jpegs, sub_jpegs

PICTURES = [
    (40, 61, "4:2:0", 2),
    (131, 96, "4:4:4", 6),
    (200, 330, "4:2:2", 7),
    (9, 8, "4:2:0", 1),
    (300, 200, "grey", 5),
]
Picture = tuple[bytes, JpegLayout]


@cache
def addressable(height: int, width: int, sampling: str, segment: int) -> Picture:
    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(noise)
    if sampling == "grey":
        image.convert("L").save(file, "JPEG", restart_marker_blocks=segment)
    else:
        image.save(file, "JPEG", subsampling=sampling, restart_marker_blocks=segment)
    layout = describe_jpeg(file.getvalue())
    assert layout is not None
    return file.getvalue(), layout


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    if smaller_jpegs._cut is None:
        pytest.skip("forebay was installed without its native parts")


@st.composite
def samples(draw: st.DrawFn) -> tuple[Picture, tuple[int, int, int, int], list[tuple[float, int]], int]:
    """A picture, a window of it, bytes of its bands that are changed, and how many bytes are missing at the end."""
    data, layout = addressable(*draw(st.sampled_from(PICTURES)))
    top, left = draw(st.integers(0, layout.height - 1)), draw(st.integers(0, layout.width - 1))
    window = top, left, draw(st.integers(1, layout.height - top)), draw(st.integers(1, layout.width - left))
    changes = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0x00, 0xD0, 0xD9, 0xFF]))
    return (data, layout), window, draw(st.lists(changes, max_size=4)), draw(st.sampled_from([0, 0, 0, 1, 2, 500]))


@settings(max_examples=400, deadline=None)
@given(drawn=st.lists(samples(), min_size=1, max_size=5))
@pytest.mark.usefixtures("native")
def test_the_native_part_gives_what_numpy_gives(
    drawn: list[tuple[Picture, tuple[int, int, int, int], list[tuple[float, int]], int]],
) -> None:
    headers, parts, first_rows = [], [], []
    for (data, layout), window, changes, missing in drawn:
        first, end = bands_of(layout, window[0], window[2])
        bounds = list(accumulate(layout.band_nbytes, initial=layout.header_nbytes))
        bands = bytearray(data[bounds[first] : bounds[end]])
        for place, value in changes:
            bands[int(place * len(bands))] = value
        headers.append(data[: layout.header_nbytes])
        parts.append(bytes(bands[: len(bands) - min(missing, len(bands))]))
        first_rows.append(sum(layout.band_rows[:first]))
    frames = Frames.of_layouts([layout for (_, layout), *_ in drawn])
    windows = np.array([window for _, window, *_ in drawn])
    given = headers, parts, frames, np.array(first_rows), windows
    smaller, origins = sub_jpegs(*given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smaller_jpegs, "_cut", None)
        expected, expected_origins = sub_jpegs(*given)
    assert smaller == expected
    assert np.array_equal(origins, expected_origins)
    for (_, _, changes, missing), one in zip(drawn, smaller, strict=True):
        assert one is not None or changes or missing


@settings(max_examples=400, deadline=None)
@given(
    picture=st.sampled_from(PICTURES),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    kept=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
)
@pytest.mark.usefixtures("native")
def test_both_find_the_frame_of_damaged_headers_or_neither(
    picture: tuple[int, int, str, int], flips: list[tuple[float, int]], kept: float
) -> None:
    data, layout = addressable(*picture)
    header = bytearray(data[: layout.header_nbytes])
    for place, value in flips:
        header[int(place * len(header))] = value
    part, bands = bytes(header[: int(kept * len(header))]), data[layout.header_nbytes : -2]
    arguments = (
        [part],
        [bands],
        Frames.of_layouts([layout]),
        np.array([0]),
        np.array([(0, 0, layout.height, layout.width)]),
    )
    smaller, _ = sub_jpegs(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smaller_jpegs, "_cut", None)
        expected, _ = sub_jpegs(*arguments)
    assert smaller == expected


@pytest.mark.parametrize("way", ["native", "numpy"])
def test_one_picture_whose_bytes_do_not_hold_the_window_costs_no_other(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "numpy":
        monkeypatch.setattr(smaller_jpegs, "_cut", None)
    elif smaller_jpegs._cut is None:
        pytest.skip("forebay was installed without its native parts")
    data, layout = addressable(*PICTURES[0])
    header, bands = data[: layout.header_nbytes], data[layout.header_nbytes : -2]
    fill = bands.replace(b"\xff\xd0", b"\xff\xff", 1)
    frames = Frames.of_layouts([layout] * 6)
    smaller, _ = sub_jpegs(
        [header, header, header, header[:40], b"", header],
        [bands, bands[:30], fill, bands, bands, bands],
        frames,
        np.array([0, 0, 0, 0, 0, 1]),
        np.array([(0, 0, layout.height, layout.width)] * 6),
    )
    assert smaller == [data, None, None, None, None, None]


@pytest.mark.usefixtures("native")
def test_jobs_that_cannot_be_are_refused_before_any_byte_is_looked_at() -> None:
    assert smaller_jpegs._cut is not None
    good = [0, 1, 4, 0, 4, 8, 8]
    for place, value in ((0, -1), (1, 0), (2, 3), (3, -1), (3, 4), (4, 5), (5, 0), (6, 0)):
        job = list(good)
        job[place] = value
        with pytest.raises(ValueError, match="a job of no rows or segments"):
            smaller_jpegs._cut([b"x"], [b"x"], np.array([job]))
    with pytest.raises(ValueError, match="of another number than headers"):
        smaller_jpegs._cut([b"x"], [], np.array([good]))
    with pytest.raises(ValueError, match="of another number than headers"):
        smaller_jpegs._cut([b"x"], [b"x"], np.array([good] * 2))
    with pytest.raises(TypeError):
        smaller_jpegs._cut([None], [b"x"], np.array([good]))  # type: ignore[list-item]
