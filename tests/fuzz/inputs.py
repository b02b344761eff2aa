"""Where fuzzing begins, and how an input becomes the next: JPEGs of every kind, and changes that know their markers."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from forebay.sharding import TranscodeError, make_addressable
from tests.fuzz.targets import CONTROL_NBYTES

__all__ = ["MOST_NBYTES", "first_inputs", "mutate"]

MOST_NBYTES = 1 << 15
_SIZES = [(40, 56), (16, 17), (9, 130), (97, 1), (1, 1)]
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKERS = [0xC0, 0xC1, 0xC2, 0xC4, *range(0xD0, 0xDE), 0xE0, 0xE1, 0xE2, 0xEE, 0xFE, 0x01, 0xFF, 0x00]


def first_inputs(data_dir: Path, seed: int) -> list[bytes]:
    """Drawn pictures of every sampling and coding; the awkward files and some photographs where they are."""
    rng = random.Random(seed)
    inputs = []
    for jpeg in [*_drawn(), *_real(data_dir)]:
        versions = [jpeg]
        for segment_pixels in (1, 32, None):
            try:
                versions.append(make_addressable(jpeg, segment_pixels=segment_pixels))
            except TranscodeError:
                break
        inputs += [
            bytes([number]) + rng.randbytes(CONTROL_NBYTES - 1) + version
            for version in versions
            for number in (0, 1)
            if len(version) <= MOST_NBYTES - CONTROL_NBYTES
        ]
    return inputs


def _drawn() -> Iterator[bytes]:
    for height, width in _SIZES:
        rng = np.random.default_rng(height * 1000 + width)
        rows, columns = np.mgrid[:height, :width]
        waves = np.stack([127 + 90 * np.sin(rows / (5 + c) + columns / (9 - c)) for c in range(3)], axis=2)
        pixels = np.clip(waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)
        for subsampling in ("444", "422", "420", "440", "411"):
            yield simplejpeg.encode_jpeg(pixels, quality=70, colorsubsampling=subsampling)
        for mode, options in (
            ("RGB", {"progressive": True}),
            ("RGB", {"subsampling": "4:4:4", "progressive": True, "restart_marker_blocks": 2}),
            ("RGB", {"restart_marker_blocks": 3, "optimize": True}),
            ("RGB", {"restart_marker_rows": 1, "keep_rgb": True}),
            ("RGB", {"quality": 100}),
            ("L", {}),
            ("L", {"progressive": True}),
            ("CMYK", {}),
        ):
            file = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
            yield file.getvalue()


def _real(data_dir: Path) -> Iterator[bytes]:
    for path in sorted((data_dir / "awkward").glob("jpeg_*/*")):
        if path.stat().st_size <= MOST_NBYTES // 2:
            yield path.read_bytes()
    for path in sorted((data_dir / "flowers").rglob("*.jpg"))[::400][:6]:
        with Image.open(path) as image:
            image.thumbnail((160, 160))
            file = io.BytesIO()
            image.convert("RGB").save(file, "JPEG", quality=85)
            yield file.getvalue()


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Another input, by one to four small changes."""
    control, jpeg = bytearray(data[:CONTROL_NBYTES]), bytearray(data[CONTROL_NBYTES:])
    control += rng.randbytes(CONTROL_NBYTES - len(control))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if rng.random() < 0.3:
            control[rng.randrange(CONTROL_NBYTES)] = rng.randrange(256)
            continue
        if len(jpeg) < 4:
            break
        markers = [found.start() for found in _MARKER.finditer(jpeg, 0, len(jpeg) - 2)]
        _change(jpeg, rng.choice(markers or [0]), others, rng)
    return bytes(control + jpeg)[:MOST_NBYTES]


def _change(jpeg: bytearray, marker: int, others: list[bytes], rng: random.Random) -> None:
    """One change, in place."""
    at = rng.randrange(len(jpeg) - 3)
    near = min(len(jpeg) - 1, marker + rng.randrange(24))
    length = rng.choice((1, 2, 3, 8, 64, 500))
    match rng.randrange(13):
        case 0:
            jpeg[at] ^= 1 << rng.randrange(8)
        case 1 | 2:
            jpeg[near] ^= 1 << rng.randrange(8)
        case 3 | 4:
            jpeg[near] = rng.choice((0, 1, 2, 3, 0x11, 0x22, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 5:
            jpeg[marker + 1] = rng.choice(_MARKERS)
        case 6:  # a segment's length
            number = (jpeg[marker + 2] << 8 | jpeg[marker + 3]) + rng.choice((-300, -2, -1, 1, 2, 300))
            jpeg[marker + 2 : marker + 4] = (number % 65536).to_bytes(2, "big")
        case 7:  # a marker where none was
            jpeg[at : at + rng.choice((0, 2))] = bytes((0xFF, rng.choice(_MARKERS)))
        case 8:
            del jpeg[at : at + length]
        case 9:
            del jpeg[at:]
        case 10:  # twice
            jpeg[at:at] = jpeg[marker : marker + length]
        case 11:
            jpeg[at : at + length] = rng.randbytes(rng.choice((1, length)))
        case _:  # the end of another
            other = rng.choice(others)[CONTROL_NBYTES:]
            jpeg[at:] = other[rng.randrange(len(other) + 1) :]
