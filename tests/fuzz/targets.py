"""What must hold for any bytes: no crash, no read or write outside, no exception but those promised, the same pixels.

An input is 64 bytes that choose what is done, then a JPEG, or what is left of one. Run against a build for the
sanitizers (`make fuzz`), which ends the process at the first read or write outside; without, only the rest is checked.
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import warnings
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from forebay.errors import DecodeError
from forebay.loader import _kernel as kernel
from forebay.sharding import bands_of, describe_jpeg, read_header, sub_jpeg

__all__ = ["CONTROL_NBYTES", "check"]

CONTROL_NBYTES = 64
_MAX_PIXELS = 1 << 18
_MOST_VECTORS = 4
_DONE = 0
_WHOLE_FILE = -1
Numbers = tuple[int, ...]
transcoder: Any = importlib.import_module("forebay.sharding._transcode")  # it has no stub


def check(data: bytes) -> None:
    """Do what an input says and look at what comes out.

    Raises:
        AssertionError: something that must hold does not.
    """
    if len(data) < CONTROL_NBYTES:
        return
    control, jpeg = struct.unpack("<B3B6H12i", data[:CONTROL_NBYTES]), exact(data[CONTROL_NBYTES:])
    if control[0] & 1:
        check_transcoding(jpeg, control)
    else:
        check_pixels(jpeg, control)


def exact(data: bytes | memoryview) -> memoryview:
    """The same bytes in memory that ends with them; the zero behind a `bytes` object would hide one byte too many."""
    array: Any = np.frombuffer(data, dtype=np.uint8).copy()
    return memoryview(array)


def check_pixels(jpeg: memoryview, control: Numbers) -> None:
    """Decode a window of a whole file, and the same from header and bands; each with all vector widths."""
    kernel.use_vectors(_MOST_VECTORS)
    found = np.zeros((1, 3), np.int64)
    kernel.frames([jpeg], _MAX_PIXELS, found)
    frame = tuple(found[0].tolist()) if found.any() else None
    stored = frame[:2] if frame else (control[4] % 64, control[5] % 64)
    layout = describe_jpeg(jpeg)
    if layout is not None and layout.height * layout.width <= _MAX_PIXELS:
        assert frame is None or stored == (layout.height, layout.width), "two readers of one header differ"
        assert sum(layout.band_rows) == -(-layout.height // layout.mcu_height)
        assert layout.header_nbytes + sum(layout.band_nbytes) + 2 == len(jpeg)
    job, out_height, out_width = job_of(control, *stored)
    whole = decode([jpeg], [None], [job], out_height, out_width, control)
    if layout is None or frame is None:
        return
    top, rows = stored_rows(job, *stored)
    if rows < 1:
        return
    first, end = bands_of(layout, top, rows)
    begins = [0, *accumulate(layout.band_nbytes)]
    header = exact(jpeg[: layout.header_nbytes])
    bands = exact(jpeg[layout.header_nbytes + begins[first] : layout.header_nbytes + begins[end]])
    first_row = sum(layout.band_rows[:first])
    part = decode([header], [bands], [(*job[:-1], first_row)], out_height, out_width, control)
    if whole is not None and part is not None:
        assert np.array_equal(whole, part), "a window of the bands is not that of the whole file"
    left = control[6] % layout.width
    window = top, left, rows, 1 + control[7] % (layout.width - left)
    smaller, origin = sub_jpeg(header, bands, layout, first_row, window)
    within = read_header(memoryview(smaller))
    assert origin[0] <= top < top + rows <= origin[0] + within.height
    assert origin[1] <= left < left + window[3] <= origin[1] + within.width


def check_transcoding(jpeg: memoryview, control: Numbers) -> None:
    """Transcode; what comes out is addressable, comes out unchanged when transcoded again, and shows the same."""
    segment = max(1, control[1])
    try:
        header = read_header(jpeg)
        width = header.width
        divisors = [number for number in range(1, 256) if width and -(-width // 8) % number == 0]
        if control[2] & 7 and divisors:
            segment = divisors[control[3] % len(divisors)]
    except DecodeError:
        pass
    try:
        result = transcoder.transcode(jpeg, segment, _MAX_PIXELS)
    except ValueError:
        return
    if describe_jpeg(result) is None:  # frames that no decoder takes, which make_addressable refuses
        return
    assert transcoder.transcode(exact(result), segment, _MAX_PIXELS) == result, "transcoded again it is another"
    before, after = pixels_of(bytes(jpeg)), pixels_of(result)
    if before is not None:
        assert after is not None, "what Pillow decodes it does not when transcoded"
        assert np.array_equal(before, after), "transcoding changed pixels"


def pixels_of(data: bytes) -> npt.NDArray[np.uint8] | None:
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            return np.asarray(image)
    except Exception:  # noqa: BLE001 - Pillow raises many kinds for damaged files, and none of them is ours
        return None


def job_of(control: Numbers, height: int, width: int) -> tuple[Numbers, int, int]:
    """A job that fits the frame, or, one time in eight, numbers that mean nothing."""
    flags, numbers, raw = control[1], control[4:10], control[10:]
    out_height, out_width = 1 + control[2] % 80, 1 + control[3] % 80
    if flags & 7 == 7:
        scaled = raw[4] % 4096, raw[5] % 4096
        return (*raw[:4], *scaled, *raw[6:10], height, width, _WHOLE_FILE), out_height, out_width
    orientation = 1 + (flags >> 3) % 8 if flags & 1 else 1
    upright = (width, height) if orientation >= 5 else (height, width)
    axes = []
    for side, out, (begin, length, extra) in zip(
        upright, (out_height, out_width), (numbers[:3], numbers[3:]), strict=True
    ):
        start = begin % max(side, 1)
        crop = extra % 16 if flags & 2 else 0
        axes.append((start, 1 + length % max(side - start, 1), out + crop, crop // 2))
    (top, rows, tall, crop_top), (left, columns, wide, crop_left) = axes
    job = top, left, rows, columns, tall, wide, crop_top, crop_left, flags >> 6 & 1, orientation, height, width
    return (*job, _WHOLE_FILE), out_height, out_width


def stored_rows(job: Numbers, height: int, width: int) -> tuple[int, int]:
    """Pixel rows as stored that hold what a job needs: first and how many; none for a job that means nothing."""
    (top, left, rows, columns), orientation = job[:4], job[9]
    if orientation >= 5:
        return (0, height) if 0 <= left < left + columns <= height and 0 <= top < top + rows <= width else (0, 0)
    if not (0 <= top < top + rows <= height and 0 <= left < left + columns <= width):
        return 0, 0
    return (height - top - rows if orientation in {3, 4} else top), rows


def decode_other(number: int, threads: int) -> None:
    """A sound picture on each thread, with other tables and another size for each number: nothing of it may stay."""
    side = 8 * number + 5
    other, copies = other_picture(number, side), threads
    numbers = np.array([(0, 0, side, side, side, side, 0, 0, 0, 1, side, side, _WHOLE_FILE)] * copies, dtype=np.int32)
    status = np.full(copies, -1, dtype=np.int32)
    out = np.empty((copies, side, side, 3), dtype=np.uint8)
    none = [None] * copies
    kernel.decode([other] * copies, none, numbers, out, side, side, None, 1, status, _MAX_PIXELS, threads, None)
    assert not status.any(), "a sound picture was left alone after a damaged one"


@functools.cache
def other_picture(number: int, side: int) -> bytes:
    """Drawn once, with Huffman tables of its own."""
    pixels = np.random.default_rng(number).integers(0, 16 << number, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=20 * number, optimize=True)
    return file.getvalue()


def decode(
    heads: list[memoryview],
    bodies: list[memoryview | None],
    jobs: list[Numbers],
    height: int,
    width: int,
    control: Numbers,
) -> Any:
    """Decode on one or two threads with vectors and without, after different pictures: the same each time.

    Returns:
        The pixels; None for what is left alone.
    """
    itemsize = (1, 1, 2, 4)[control[3] >> 6]
    with_table = itemsize > 1 or bool(control[2] & 1)
    table = np.arange(768 * itemsize, dtype=np.uint32).astype(np.uint8) if with_table else None
    copies = 1 + (control[2] >> 6 == 3)
    numbers = np.array(jobs * copies, dtype=np.int32)
    results: list[Any] = []
    for most in (_MOST_VECTORS if control[0] & 2 else 2, 1):
        kernel.use_vectors(most)
        decode_other(most, copies)
        out = np.full((copies, height, width, 3 * itemsize), 17, dtype=np.uint8)
        status = np.full(copies, -1, dtype=np.int32)
        kernel.decode(
            heads * copies,
            bodies * copies,
            numbers,
            out,
            height,
            width,
            table,
            itemsize,
            status,
            _MAX_PIXELS,
            copies,
            None,
        )
        assert set(status.tolist()) <= {0, 1}, f"status {status.tolist()}"
        assert len(set(status.tolist())) == 1, "one image in one batch was done and left alone"
        results.append(out[0] if status[0] == _DONE else None)
        assert status[0] != _DONE or (out == out[0]).all(), "one image in one batch came out differently"
    one, other = results
    assert (one is None) == (other is None), "whether it is done depends on vectors, or on what was before"
    assert one is None or np.array_equal(one, other), "pixels depend on vectors, or on what was before"
    return one
