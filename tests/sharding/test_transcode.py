from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, UnidentifiedImageError

from forebay.errors import ConfigError, DecodeError
from forebay.sharding import (
    JpegLayout,
    TranscodeError,
    bands_of,
    can_transcode,
    choose_segment,
    describe_jpeg,
    make_addressable,
    read_header,
    sub_jpeg,
)

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]
native = pytest.mark.skipif(not can_transcode(), reason="forebay was installed without its native parts")


def picture(height: int, width: int) -> Pixels:
    """Smooth colours with noise, so that every coefficient and the upsampling of colours matter."""
    rng = np.random.default_rng(height * 1000 + width)
    rows, columns = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(rows / (5 + c) + columns / (9 - c) + c) for c in range(3)]
    return np.clip(np.stack(waves, axis=2) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)


def by_pillow(pixels: Pixels, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **{"quality": 88, **options})
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def decode(data: bytes) -> Pixels:
    with opened(data) as image:
        return np.asarray(image)


def same(left: Image.Image, right: Image.Image) -> bool:
    """As `np.array_equal`, for many large pictures."""
    return left.mode == right.mode and left.size == right.size and ImageChops.difference(left, right).getbbox() is None


def written(height: int, width: int) -> Iterator[tuple[str, bytes]]:
    pixels = picture(height, width)
    for subsampling in ("444", "422", "420", "440", "411"):
        yield subsampling, simplejpeg.encode_jpeg(pixels, colorsubsampling=subsampling)
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        yield f"progressive {subsampling}", by_pillow(pixels, subsampling=subsampling, progressive=True)
    yield "grey", by_pillow(pixels, "L")
    yield "progressive grey", by_pillow(pixels, "L", progressive=True)
    yield (
        "grey of 2 x 2 samples",
        simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), colorspace="GRAY", colorsubsampling="Gray"),
    )
    yield "red, green, blue", by_pillow(pixels, keep_rgb=True)
    yield "restart markers in a row", by_pillow(pixels, restart_marker_blocks=3)
    yield "restart markers by the row", by_pillow(pixels, restart_marker_rows=2, subsampling="4:2:0")
    yield "optimal tables", by_pillow(pixels, optimize=True)
    yield "coefficients of many bits", by_pillow(pixels, quality=100)


def random_part(data: bytes, layout: JpegLayout, rng: random.Random) -> tuple[Window, bytes, tuple[int, int]]:
    """A window, the smaller JPEG that holds it, and where that lies."""
    height, width = rng.randint(1, layout.height), rng.randint(1, layout.width)
    window = rng.randint(0, layout.height - height), rng.randint(0, layout.width - width), height, width
    first, end = bands_of(layout, window[0], height)
    begin = layout.header_nbytes + sum(layout.band_nbytes[:first])
    bands = data[begin : begin + sum(layout.band_nbytes[first:end])]
    smaller, origin = sub_jpeg(data[: layout.header_nbytes], bands, layout, sum(layout.band_rows[:first]), window)
    return window, smaller, origin


SIZES = [(75, 101), (64, 96), (8, 120), (1, 77), (77, 1), (1, 1), (16, 16), (17, 33), (130, 18)]


def jpegs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".mpo"))


@native
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_keeps_every_pixel(size: tuple[int, int]) -> None:
    for kind, data in written(*size):
        result = make_addressable(data)
        layout = describe_jpeg(result)
        assert layout is not None, kind
        assert (layout.height, layout.width) == size, kind
        assert np.array_equal(decode(result), decode(data)), kind


@native
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_gives_windows_with_the_pixels_of_the_whole(size: tuple[int, int]) -> None:
    rng = random.Random(str(size))
    for kind, data in written(*size):
        for segment_pixels in (1, 50):
            result = make_addressable(data, segment_pixels=segment_pixels)
            layout, whole = describe_jpeg(result), decode(data)
            assert layout is not None
            for _ in range(20):
                (top, left, height, width), smaller, (y, x) = random_part(result, layout, rng)
                held = decode(smaller)[top - y : top - y + height, left - x : left - x + width]
                assert np.array_equal(held, whole[top : top + height, left : left + width]), kind


@native
@pytest.mark.parametrize("folder", ["photos", "flowers", "large"])
def test_every_photograph_keeps_every_pixel_and_gives_its_windows(folder: str, data_dir: Path) -> None:
    rng = random.Random(folder)
    paths = jpegs(data_dir / folder)
    assert paths
    for path in paths:
        data = path.read_bytes()
        result = make_addressable(data)
        layout = describe_jpeg(result)
        assert layout is not None
        (top, left, height, width), smaller, (y, x) = random_part(result, layout, rng)
        with opened(data) as before, opened(result) as after, opened(smaller) as part:
            assert same(after, before), path
            within = part.crop((left - x, top - y, left - x + width, top - y + height))
            assert same(within, before.crop((left, top, left + width, top + height))), path


@native
def test_awkward_files_keep_every_pixel_or_are_refused(data_dir: Path) -> None:
    taken: set[str] = set()
    refused: dict[str, list[str]] = {}
    for path in jpegs(data_dir / "awkward"):
        data = path.read_bytes()
        try:
            result = make_addressable(data)
        except TranscodeError as error:
            refused.setdefault(path.parent.name, []).append(str(error))
            continue
        taken.add(path.parent.name)
        assert describe_jpeg(result) is not None, path
        try:
            assert np.array_equal(decode(result), decode(data)), path
        except UnidentifiedImageError:  # Pillow reads its own way what is no matter of pixels, and trips over it
            assert np.array_equal(simplejpeg.decode_jpeg(result), simplejpeg.decode_jpeg(data)), path
    assert {"jpeg_baseline", "jpeg_exif_8", "jpeg_extended_sof1", "jpeg_gray", "jpeg_icc", "jpeg_progressive"} <= taken
    assert not taken & {"jpeg_arithmetic", "jpeg_cmyk_or_ycck", "jpeg_lossless_sof3", "jpeg_mpo", "jpeg_truncated"}
    reasons = {
        "arithmetic": "arithmetic",
        "cmyk_or_ycck": "CMYK",
        "extended_sof1": "12 bits",
        "lossless_sof3": "lossless",
    }
    for kind, reason in reasons.items():
        assert any(reason in told for told in refused[f"jpeg_{kind}"]), kind


@native
def test_transcoding_again_changes_nothing() -> None:
    for kind, data in written(75, 101):
        result = make_addressable(data)
        assert make_addressable(memoryview(result)) == result, kind


@native
def test_threads_at_once_write_the_same_bytes() -> None:
    pictures = [data for _, data in written(75, 101)] * 8
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(make_addressable, pictures)) == [make_addressable(data) for data in pictures]


@native
def test_progressive_and_baseline_of_the_same_coefficients_come_out_the_same() -> None:
    pixels = picture(75, 101)
    plain, progressive = by_pillow(pixels), by_pillow(pixels, progressive=True)
    assert plain != progressive
    assert make_addressable(plain) == make_addressable(progressive)


@native
def test_the_width_of_segments_can_be_asked_for() -> None:
    data = simplejpeg.encode_jpeg(picture(64, 192), colorsubsampling="420")
    segments = {}
    for pixels in (16, 60, 100, 1000):
        layout = describe_jpeg(make_addressable(data, segment_pixels=pixels))
        assert layout is not None
        segments[pixels] = layout.segment
    assert segments == {16: 1, 60: 4, 100: 6, 1000: 12}


@given(mcus_per_row=st.integers(1, 8192), mcu_width=st.sampled_from([8, 16, 32]), part=st.integers(0, 31))
def test_the_chosen_segment_divides_the_row(mcus_per_row: int, mcu_width: int, part: int) -> None:
    width = max(1, mcus_per_row * mcu_width - part % mcu_width)
    assert mcus_per_row % choose_segment(mcus_per_row, mcu_width, width) == 0


def test_the_chosen_segments_of_common_sizes_are_these() -> None:
    sizes = {(400, 16): 5, (500, 8): 3, (500, 16): 2, (1600, 8): 8, (1600, 16): 5, (2592, 16): 6, (4000, 16): 10}
    assert {(w, mcu): choose_segment(-(-w // mcu), mcu, w) for w, mcu in sizes} == sizes


@native
def test_what_a_picture_says_of_itself_is_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    said: dict[str, Any] = {
        "exif": exif.tobytes(),
        "icc_profile": random.Random(1).randbytes(150_000),  # three segments
        "xmp": b"<x:xmpmeta/>",
        "comment": b"a comment",
        "dpi": (300, 300),
    }
    data = by_pillow(picture(40, 60), progressive=True, **said)
    result = make_addressable(data)
    layout = describe_jpeg(result)
    assert layout is not None
    assert layout.orientation == 6
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(result)) as after:
        assert before.info.pop("progressive") == 1
        assert {name: after.info[name] for name in said} == said
        before.info.pop("progression")
        assert after.info == before.info


@native
def test_the_adobe_marker_and_no_other_is_kept() -> None:
    data = by_pillow(picture(40, 60), keep_rgb=True)
    with Image.open(io.BytesIO(make_addressable(data))) as after:
        assert after.info == {"adobe": 100, "adobe_transform": 0}
    bare = simplejpeg.encode_jpeg(picture(40, 60))
    jfif = bare[2 : 4 + int.from_bytes(bare[4:6], "big")]
    assert jfif[4:8] == b"JFIF"
    assert b"JFIF" not in make_addressable(bare.replace(jfif, b"", 1))


@native
def test_bytes_after_the_end_are_left_out() -> None:
    data = by_pillow(picture(40, 60))
    assert make_addressable(data + b"\0\0 a camera's own") == make_addressable(data)


@native
def test_a_file_of_several_pictures_is_kept(tmp_path: Path) -> None:
    first, second = (Image.fromarray(picture(size, 60)) for size in (40, 48))
    first.save(tmp_path / "two.mpo", save_all=True, append_images=[second])
    with pytest.raises(TranscodeError, match="another picture follows"):
        make_addressable((tmp_path / "two.mpo").read_bytes())


@native
@pytest.mark.parametrize("progressive", [False, True])
def test_a_cut_file_is_refused_wherever_it_ends(progressive: bool) -> None:
    data = by_pillow(picture(40, 60), progressive=progressive)
    for nbytes in range(len(data)):
        with pytest.raises(TranscodeError):
            make_addressable(data[:nbytes])


@native
def test_a_progressive_picture_that_lacks_scans_is_refused() -> None:
    data = by_pillow(picture(40, 60), progressive=True)
    last_scan = data.rindex(b"\xff\xda")
    with pytest.raises(TranscodeError, match="lacks some of its scans"):
        make_addressable(data[:last_scan] + b"\xff\xd9")


@native
@settings(max_examples=300, deadline=None)
@given(progressive=st.booleans(), place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_damaged_file_keeps_every_pixel_or_is_refused(progressive: bool, place: float, value: int) -> None:
    data = bytearray(by_pillow(picture(40, 60), progressive=progressive))
    data[int(place * len(data))] = value
    try:
        result = make_addressable(bytes(data))
    except TranscodeError:
        return
    assert np.array_equal(decode(result), decode(bytes(data)))


@native
def test_a_claim_of_more_than_the_bytes_can_hold_is_refused_before_memory_is_taken() -> None:
    data = bytearray(by_pillow(picture(40, 60)))
    frame = read_header(memoryview(data)).frame_at
    data[frame + 5 : frame + 9] = (11_000).to_bytes(2, "big") * 2
    with pytest.raises(TranscodeError, match="more pixels than its bytes can hold"):
        make_addressable(bytes(data))
    data[frame + 5 : frame + 9] = (65_500).to_bytes(2, "big") * 2
    with pytest.raises(TranscodeError, match="more pixels than allowed"):
        make_addressable(bytes(data))


@native
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_reason(data: bytes) -> None:
    for begin in (b"", b"\xff\xd8", b"\xff\xd8\xff\xc0\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0"):
        with pytest.raises(TranscodeError, match="JPEG"):
            make_addressable(begin + data)


def test_what_is_no_jpeg_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DecodeError):
        read_header(memoryview(b"GIF89a"))
    monkeypatch.setitem(sys.modules, "forebay.sharding._transcode", None)
    assert not can_transcode()
    with pytest.raises(ConfigError, match="native parts"):
        make_addressable(b"GIF89a")
