"""What the kernel does not take, or is told wrongly, it leaves alone: it neither crashes nor guesses."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.loader.decode import MAX_PIXELS
from forebay.loader.geometry import View
from forebay.loader.kernel import decode_batch, find_frames
from forebay.sharding import describe_jpeg, make_addressable

pytest.importorskip("forebay.loader._kernel", reason="forebay was installed without its native parts")

HEIGHT, WIDTH, SIZE = 41, 58, 8
NAMES = (
    *("top", "left", "height", "width", "scaled_height", "scaled_width", "crop_top", "crop_left"),
    *("flip", "orientation", "frame_height", "frame_width", "first_row"),
)
SOUND = dict(zip(NAMES, (3, 5, 30, 40, 12, 14, 2, 3, 0, 1, HEIGHT, WIDTH, -1), strict=True))
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
Head = bytes | memoryview


@pytest.fixture(scope="module")
def data(make_jpeg: Callable[..., bytes]) -> bytes:
    return make_jpeg(HEIGHT, WIDTH, subsampling="4:2:0")


def is_done(head: Head | None, job: dict[str, int], *, body: Head | None = None, max_pixels: int = MAX_PIXELS) -> bool:
    out = torch.empty((1, SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    jobs = np.array([list(job.values())], dtype=np.int32)
    done = decode_batch([head], [body], jobs, out, table=None, max_pixels=max_pixels, threads=1)
    return bool(done[0])


def is_true(job: dict[str, int]) -> bool:
    """Whether a job describes something that there is in the picture of these tests."""
    height, width = (HEIGHT, WIDTH) if job["orientation"] < 5 else (WIDTH, HEIGHT)
    return (
        1 <= job["orientation"] <= 8
        and (job["frame_height"], job["frame_width"], job["first_row"]) == (HEIGHT, WIDTH, -1)
        and 0 <= job["top"] < job["top"] + job["height"] <= height
        and 0 <= job["left"] < job["left"] + job["width"] <= width
        and 0 <= job["crop_top"] <= job["scaled_height"] - SIZE
        and 0 <= job["crop_left"] <= job["scaled_width"] - SIZE
    )


def numbers(name: str) -> st.SearchStrategy[int]:
    highest = 1 << 20 if name.startswith("scaled") else HIGHEST  # a test of its own asks for more
    return st.one_of(
        st.integers(-2, 70),
        st.integers(LOWEST, highest),
        st.sampled_from([LOWEST, LOWEST + 1, -1, highest - SIZE, highest - 1, highest]),
    )


LIES = st.fixed_dictionaries({}, optional={name: numbers(name) for name in NAMES})


@settings(max_examples=1500, deadline=None)
@given(lies=LIES)
def test_a_job_is_done_only_if_all_of_it_is_true(data: bytes, lies: dict[str, int]) -> None:
    job = {**SOUND, **lies}
    assert is_done(data, job) == is_true(job), job


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [LOWEST, -2, 0, 9, 65_536, HIGHEST])
def test_one_lie_is_enough(data: bytes, name: str, value: int) -> None:
    if name == "flip" or (name.startswith("scaled") and value > 1 << 20):
        return
    job = {**SOUND, name: value}
    assert is_done(data, job) == is_true(job)


@pytest.mark.parametrize("name", ["scaled_height", "scaled_width"])
def test_a_size_that_no_picture_is_scaled_to_is_refused(data: bytes, name: str) -> None:
    """Its filter has as many weights, and takes seconds."""
    assert not is_done(data, {**SOUND, name: 100_000_000})


@settings(max_examples=300, deadline=None)
@given(lies=LIES, cut=st.integers(0, 400), until=st.integers(0, 4000), first_row=st.integers(-1, 9))
def test_lies_about_parts_never_crash(data: bytes, lies: dict[str, int], cut: int, until: int, first_row: int) -> None:
    addressable = make_addressable(data, segment_pixels=16)
    layout = describe_jpeg(addressable)
    assert layout is not None
    head, body = addressable[: layout.header_nbytes], addressable[layout.header_nbytes :]
    is_done(head, {**SOUND, "first_row": first_row, **lies}, body=body[cut:until])
    is_done(addressable, {**SOUND, "first_row": first_row, **lies}, body=body[cut:until])
    is_done(head[: len(head) - cut], {**SOUND, "first_row": first_row}, body=body)


def test_a_body_cut_at_any_byte_is_not_done_where_its_rows_are_needed(data: bytes) -> None:
    addressable = make_addressable(data, segment_pixels=16)
    layout = describe_jpeg(addressable)
    assert layout is not None
    head, body = addressable[: layout.header_nbytes], addressable[layout.header_nbytes : -2]
    job = {**SOUND, "top": HEIGHT - SIZE, "height": SIZE, "left": WIDTH - SIZE, "width": SIZE, "first_row": 0}
    assert is_done(head, job, body=body)
    assert not any(is_done(head, job, body=body[:nbytes]) for nbytes in range(len(body)))
    assert not is_done(head, {**job, "first_row": 1}, body=body)
    assert not is_done(head, job)
    assert not is_done(head, {**job, "first_row": -1})


def test_a_file_cut_at_any_byte_is_not_done(make_jpeg: Callable[..., bytes]) -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_rows": 1}):
        data = make_jpeg(HEIGHT, WIDTH, **options)
        assert is_done(data, SOUND)
        assert not any(is_done(data[:nbytes], SOUND) for nbytes in range(len(data)))


AWKWARD = {
    "jpeg_arithmetic": False,
    "jpeg_cmyk_or_ycck": False,
    "jpeg_lossless_sof3": False,
    "jpeg_truncated": None,
    "jpeg_baseline": True,
    "jpeg_gray": True,
    "jpeg_progressive_gray": True,
    "jpeg_exif_8": True,
}


@pytest.mark.parametrize("category", AWKWARD)
def test_kinds_that_it_does_not_take_are_told_by_their_headers(data_dir: Path, category: str) -> None:
    paths = sorted((data_dir / "awkward" / category).glob("*"))
    assert paths
    for path in paths:
        frame = find_frames([path.read_bytes()], MAX_PIXELS)[0]
        assert AWKWARD[category] in (None, bool(frame.any())), path


def test_no_other_format_and_no_deep_picture_is_taken(data_dir: Path) -> None:
    with (data_dir / "awkward" / "INDEX.csv").open(encoding="utf-8") as listing:
        entries = list(csv.DictReader(listing))
    others = [entry["file"] for entry in entries if not entry["file"].startswith("jpeg")]
    deep = [
        entry["file"] for entry in entries if "12" in entry["file"] and entry["sof"] == "SOF1" and not entry["mode"]
    ]
    assert len(others) > 50
    for file in others + deep:
        data = (data_dir / "awkward" / file).read_bytes()
        assert not find_frames([data], MAX_PIXELS).any(), file
        assert not is_done(data, SOUND), file


def test_deep_and_arithmetic_frames_are_refused_by_their_numbers(data: bytes) -> None:
    frame = data.index(b"\xff\xc0")
    for sof in range(0xC0, 0xD0):
        marked = data[: frame + 1] + bytes([sof]) + data[frame + 2 :]
        assert find_frames([marked], MAX_PIXELS).any() == (sof in (0xC0, 0xC1, 0xC2))
    for precision in (0, 2, 7, 9, 12, 16, 255):
        deep = data[: frame + 4] + bytes([precision]) + data[frame + 5 :]
        assert not find_frames([deep], MAX_PIXELS).any()
        assert not is_done(deep, SOUND)


@pytest.mark.parametrize(
    "junk", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", bytes(5000), b"\x89PNG\r\n\x1a\n" * 9]
)
def test_junk_is_left_alone(junk: bytes) -> None:
    assert not find_frames([junk], MAX_PIXELS).any()
    assert not is_done(junk, SOUND)
    assert not is_done(junk, {**SOUND, "first_row": 0}, body=junk)


@settings(max_examples=500, deadline=None)
@given(at=st.integers(0, 700), put=st.binary(max_size=12), gone=st.integers(0, 12))
def test_any_bytes_in_the_header_are_survived(data: bytes, at: int, put: bytes, gone: int) -> None:
    changed = data[:at] + put + data[at + gone :]
    is_done(changed, SOUND)
    frame = find_frames([changed], MAX_PIXELS)[0]
    assert not frame.any() or 0 < frame[0] * frame[1] <= MAX_PIXELS


def test_more_pixels_than_allowed_are_refused(data: bytes) -> None:
    for limit in (LOWEST, 0, HEIGHT * WIDTH - 1):
        assert not is_done(data, SOUND, max_pixels=limit)
        assert not find_frames([data], limit).any()
    assert is_done(data, SOUND, max_pixels=HEIGHT * WIDTH)


@pytest.mark.parametrize(("marker", "expected"), [(0xDB, False), (0xC4, None)], ids=["quantisation", "Huffman"])
def test_tables_that_a_file_lacks_are_not_those_of_the_file_before_it(
    marker: int,
    expected: bool | None,
    make_jpeg: Callable[..., bytes],
    by_kernel: Callable[..., Tensor | None],
    by_library: Callable[[bytes, View], Tensor],
) -> None:
    data = make_jpeg(HEIGHT, WIDTH, optimize=True)
    lacking, view = data, View.of_window((0, 0, HEIGHT, WIDTH), (HEIGHT, WIDTH))
    while (at := lacking.find(bytes([0xFF, marker]))) >= 0:
        lacking = lacking[:at] + lacking[at + 2 + int.from_bytes(lacking[at + 2 : at + 4], "big") :]
    others = [data, make_jpeg(HEIGHT, WIDTH, quality=30), make_jpeg(HEIGHT, WIDTH, quality=99, optimize=True)]
    for other in random.Random(1).choices(others, k=9):
        assert by_kernel(other, view) is not None
        made = by_kernel(lacking, view)
        assert made is None or (expected is None and torch.equal(made, by_library(lacking, view)))
