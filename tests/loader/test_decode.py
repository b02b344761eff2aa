"""Every kind of picture: the right pixels, or an error that says why. Pillow is the judge."""

from __future__ import annotations

import contextlib
import csv
import io
import random
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from forebay.errors import DecodeError
from forebay.loader.decode import decode_image, decode_mask
from forebay.loader.pixels import from_pixels
from forebay.sharding import read_header

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
INDEX = DATA / "awkward" / "INDEX.csv"
if INDEX.exists():
    with INDEX.open(encoding="utf-8") as listing:
        AWKWARD = list(csv.DictReader(listing))
else:
    AWKWARD = [{"file": "", "category": "missing", "pillow_13_decode": "", "mode": ""}]


def pillow(data: bytes) -> np.ndarray[Any, Any]:
    """What Pillow makes of a picture: upright, in RGB."""
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
        image.load()
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def sixteen_bit(data: bytes) -> np.ndarray[Any, Any]:
    """Our rule for 16-bit grey: the high byte."""
    with Image.open(io.BytesIO(data)) as image:
        values = np.clip(np.array(image).astype(np.int64), 0, 65535)
    return np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)


def encode(pixels: np.ndarray[Any, Any], kind: str = "JPEG", **settings: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **settings)
    return out.getvalue()


def picture(height: int = 40, width: int = 52, seed: int = 0) -> np.ndarray[Any, Any]:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("entry", AWKWARD, ids=lambda entry: entry["file"])
def test_an_awkward_file_gives_pillows_pixels_or_an_error(data_dir: Path, entry: dict[str, str]) -> None:
    data = (data_dir / "awkward" / entry["file"]).read_bytes()
    if entry["pillow_13_decode"] != "ok":
        if entry["file"].endswith("jfif-bogus-empty-jfif-segment.jpg"):  # sound, but for a header that Pillow refuses
            assert decode_image(data).shape == (714, 942, 3)
            return
        with pytest.raises(DecodeError):
            decode_image(data)
        return
    expected = sixteen_bit(data) if entry["mode"].startswith("I") else pillow(data)
    pixels = decode_image(memoryview(data))
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, expected)
    assert from_pixels(pixels).shape == (1, 3, *expected.shape[:2])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_is_applied_or_ignored_as_asked(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(), kind, exif=exif)
    assert np.array_equal(decode_image(data), pillow(data))
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(decode_image(data, orientation="ignore"), np.array(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "YCbCr"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_of_each_kind_equal_pillows(mode: str, subsampling: int, progressive: bool) -> None:
    out = io.BytesIO()
    settings = {} if mode == "L" else {"subsampling": subsampling}
    Image.fromarray(picture()).convert(mode).save(out, "JPEG", progressive=progressive, **settings)
    assert np.array_equal(decode_image(out.getvalue()), pillow(out.getvalue()))


def test_a_picture_that_claims_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    data = encode(picture())
    for bad in (data, encode(picture(), "PNG"), encode(picture(), "WEBP")):
        with pytest.raises(DecodeError, match="52 x 40 pixels, more than max_pixels=2079"):
            decode_image(bad, max_pixels=40 * 52 - 1)
    huge = bytearray(data)
    frame = data.index(b"\xff\xc0")
    huge[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(DecodeError, match="max_pixels"):
        decode_image(bytes(huge))


@pytest.mark.parametrize(
    "junk", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"\0" * 100, b"GIF89a", b"%!PS-Adobe-3.0 EPSF"]
)
def test_junk_is_an_error(junk: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_image(junk)
    with pytest.raises(DecodeError):
        decode_mask(junk)


def test_damaged_jpegs_are_errors_or_pictures_of_the_right_size(data_dir: Path) -> None:
    """Cut at 20 places and with 20 flipped bytes: never another exception, another size, or a crash."""
    choose = random.Random(1)
    paths = [
        *sorted(data_dir.glob("photos/validation/*/*"))[::60],
        *sorted(data_dir.glob("flowers/validation/*/*"))[::40],
    ]
    for path in paths:
        data = path.read_bytes()
        damaged = [data[: choose.randrange(len(data))] for _ in range(20)]
        for _ in range(20):
            at = choose.randrange(len(data))
            damaged.append(data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :])
        for bad in damaged:
            try:
                pixels = decode_image(bad)
            except DecodeError:
                continue
            assert pixels.ndim == 3
            assert pixels.shape[2] == 3


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=300),
    head=st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff\xe1\x00\x20Exif\0\0II*\0", b"\xff\xd8\xff\xc0"]),
)
def test_the_header_walk_never_looks_outside(data: bytes, head: bytes) -> None:
    try:
        header = read_header(memoryview(head + data))
    except DecodeError:
        return
    assert 1 <= header.orientation <= 8


def test_the_header_tells_what_the_frame_holds() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    header = read_header(memoryview(encode(picture(), exif=exif, progressive=True)))
    assert (header.sof, header.precision, header.components) == (2, 8, 3)
    assert (header.height, header.width, header.orientation) == (40, 52, 6)


def test_masks_keep_their_numbers() -> None:
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    assert np.array_equal(decode_mask(encode(values, "PNG")), values)
    palette = Image.fromarray(values, "L").convert("P")
    palette.putdata(values.ravel().tolist())
    palette.putpalette([(i * 37) % 256 for i in range(768)])
    out = io.BytesIO()
    palette.save(out, "PNG")
    assert np.array_equal(decode_mask(out.getvalue()), values)
    bits = values % 2 == 0
    assert np.array_equal(decode_mask(encode(bits, "PNG")), bits.astype(np.uint8))
    deep = values.astype(np.uint16) * 1000
    found = decode_mask(encode(deep, "PNG"))
    assert found.dtype == np.int32
    assert np.array_equal(found, deep)
    with pytest.raises(DecodeError, match="RGB"):
        decode_mask(encode(picture(), "PNG"))


def exif_block(orientation: int, *, order: str = "<", kind: int = 3, entries: int = 1) -> bytes:
    """Exif with one tag, the orientation, said to be of type `kind`, in a directory that claims `entries`."""
    value = struct.pack(order + {3: "H2x", 4: "I"}[kind], orientation)
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, entries)
    return b"Exif\0\0" + head + struct.pack(order + "HHI", 0x0112, kind, 1) + value + bytes(4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("number_type", [3, 4])
def test_the_orientation_is_read_as_pillow_reads_it(kind: str, order: str, number_type: int) -> None:
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encode(picture(), kind, exif=exif_block(6, order=order, kind=number_type), **lossless)
    assert np.array_equal(decode_image(data), pillow(data))
    assert decode_image(data).shape == (52, 40, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_without_exif_the_orientation_of_xmp_counts_as_for_pillow(kind: str) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    if kind == "JPEG":
        data = encode(picture(), kind, xmp=xmp)
    else:
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        data = encode(picture(), kind, pnginfo=info)
    assert decode_image(data).shape == (52, 40, 3)
    assert np.array_equal(decode_image(data), pillow(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damaged_metadata_neither_warns_nor_fails(kind: str) -> None:
    data = encode(picture(), kind, exif=exif_block(3, entries=60_000))
    with warnings.catch_warnings(action="error"):
        assert np.array_equal(decode_image(data), pillow(data))


def test_a_palette_with_transparency_loses_it_without_a_warning() -> None:
    palette = Image.fromarray(picture()).quantize(16)
    out = io.BytesIO()
    palette.save(out, "PNG", transparency=bytes(range(0, 256, 16)))
    with warnings.catch_warnings(action="error"):
        assert np.array_equal(decode_image(out.getvalue()), pillow(out.getvalue()))


def test_the_bound_on_pixels_is_ours_and_not_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow warns at its own bound and refuses at twice as much, whatever was asked for here."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings(action="error"):
        assert np.array_equal(decode_image(encode(picture(), "PNG")), picture())


def test_masks_are_turned_upright_with_their_images() -> None:
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    for orientation in range(1, 9):
        data = encode(values, "PNG", exif=exif_block(orientation))
        assert np.array_equal(decode_mask(data), decode_image(data)[:, :, 0])
        assert np.array_equal(decode_mask(data, orientation="ignore"), values)
        turned = from_pixels(decode_image(data))
        assert np.array_equal(turned[0].permute(1, 2, 0).numpy(), decode_image(data))


def test_damaged_files_of_any_format_are_errors_or_pictures(data_dir: Path) -> None:
    """Cut, overwritten, zeroed and shortened: never another exception than DecodeError."""
    choose = random.Random(2)
    files = [path for path in sorted((data_dir / "awkward").glob("*/*")) if 0 < path.stat().st_size < 20_000]
    for path in files:
        data = path.read_bytes()
        for _ in range(6):
            a, b = sorted(choose.choices(range(len(data) + 1), k=2))
            bad = choose.choice(
                [
                    data[:a],
                    data[:a] + choose.randbytes(min(4, b - a)) + data[min(a + 4, b) :],
                    data[:a] + bytes(min(40, b - a)) + data[min(a + 40, b) :],
                    data[:a] + data[b:],
                ]
            )
            for decode in (decode_image, decode_mask):
                with warnings.catch_warnings(action="ignore"), contextlib.suppress(DecodeError):
                    decode(bad, max_pixels=1 << 22)
