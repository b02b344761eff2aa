"""Small data sets of shards, written once a session with the real writer."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from PIL import Image
from torch import Tensor

from forebay.loader.decode import MAX_PIXELS, decode_image
from forebay.loader.geometry import View, Views, stored_window
from forebay.loader.kernel import WHOLE_FILE, decode_batch, make_jobs
from forebay.loader.pixels import from_pixels, render
from forebay.sharding import ShardWriter, bands_of, describe_jpeg, read_header

SAMPLES = 97


def jpeg(seed: int) -> bytes:
    """A small picture that no other seed gives."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(33, 70, 2)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    out = io.BytesIO()
    coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_pictures(
    path: Path, samples: int = SAMPLES, *, broken: tuple[int, ...] = (), shard_nbytes: int = 12_000
) -> Path:
    """Shards of `samples` pictures; those in `broken` hold bytes that no decoder takes."""
    columns = {"image": "image", "label": "int64", "name": "str"}
    with ShardWriter(
        path, columns, classes={"label": ["a", "b", "c"]}, shard_nbytes=shard_nbytes, batch_nbytes=4_000
    ) as writer:
        for i in range(samples):
            image = b"not an image " * 40 if i in broken else jpeg(i)
            writer.write({"image": image, "label": i % 3, "name": f"picture {i}"})
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """97 small JPEGs in about a dozen shards."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "train")


@pytest.fixture(scope="session")
def make_pictures() -> Callable[..., Path]:
    """`write_pictures`, for tests that need their own."""
    return write_pictures


# -- JPEGs of every kind, and what a view shows of them -----------------------------------------------------------


def waves(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Smooth colours with noise, so that every coefficient and the upsampling of colours matter."""
    rng = np.random.default_rng(height * 1000 + width)
    rows, columns = np.mgrid[:height, :width]
    colours = [127 + 90 * np.sin(rows / (5 + c) + columns / (9 - c) + c) for c in range(3)]
    return np.clip(np.stack(colours, axis=2) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)


def save_jpeg(pixels: npt.NDArray[np.uint8], mode: str = "RGB", **options: Any) -> bytes:
    """As Pillow writes it; `orientation=6` is put into its Exif."""
    if (orientation := options.pop("orientation", 1)) != 1:
        options["exif"] = exif = Image.Exif()
        exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **{"quality": 88, **options})
    return file.getvalue()


def write_kinds(height: int, width: int, pixels: npt.NDArray[np.uint8] | None = None) -> dict[str, bytes]:
    """One picture as every kind of JPEG that the kernel takes."""
    pixels = waves(height, width) if pixels is None else pixels
    kinds = {
        f"sampled {sampling}": simplejpeg.encode_jpeg(pixels, colorsubsampling=sampling)
        for sampling in ("444", "422", "420", "440", "411")
    }
    kinds |= {
        f"progressive {sampling}": save_jpeg(pixels, subsampling=sampling, progressive=True)
        for sampling in ("4:4:4", "4:2:2", "4:2:0")
    }
    grey = np.ascontiguousarray(pixels[..., :1])
    mcus = -(-width // 16)
    return kinds | {
        "grey": save_jpeg(pixels, "L"),
        "progressive grey": save_jpeg(pixels, "L", progressive=True),
        "grey of 2 x 2 samples": simplejpeg.encode_jpeg(grey, colorspace="GRAY", colorsubsampling="Gray"),
        "red, green, blue": save_jpeg(pixels, keep_rgb=True),
        "restarts that divide no row": save_jpeg(pixels, restart_marker_blocks=mcus + 1, subsampling="4:2:0"),
        "restarts within rows": save_jpeg(pixels, restart_marker_blocks=max(1, mcus // 2), subsampling="4:2:0"),
        "restarts by the row": save_jpeg(pixels, restart_marker_rows=1, subsampling="4:2:2"),
        "restarts by two rows": save_jpeg(pixels, restart_marker_rows=2),
        "optimal tables": save_jpeg(pixels, optimize=True),
        "coefficients of many bits": save_jpeg(pixels, quality=100, subsampling="4:2:0"),
        "restarts, many bits": save_jpeg(pixels, quality=100, restart_marker_rows=1),
        "lying on its side": save_jpeg(pixels, subsampling="4:2:0", restart_marker_rows=1, orientation=6),
    }


def random_view(
    rng: random.Random, height: int, width: int, *, shrink: float = 3.9, flipped: bool | None = None
) -> View:
    """A window, often at a border, resized (made at most `shrink` times as small), and a part of that."""

    def axis(length: int) -> tuple[int, int, int, int, int]:
        window = rng.choice([1, length, rng.randint(1, length), rng.randint(1, length)])
        start = rng.choice([0, length - window, rng.randint(0, length - window)])
        scaled = rng.choice([window, rng.randint(int(window / shrink) + 1, 2 * window + 8)])
        out = rng.choice([scaled, rng.randint(1, scaled)])
        return start, window, scaled, rng.randint(0, scaled - out), out

    y, x = axis(height), axis(width)
    mirrored = rng.random() < 0.5 if flipped is None else flipped
    return View(y[0], x[0], y[1], x[1], y[2], x[2], y[3], x[3], y[4], x[4], mirrored)


def render_by_library(data: bytes, view: View) -> Tensor:
    """What a view shows, uint8 (1, 3, H, W): all decoded by libjpeg-turbo, and then resized by torch."""
    pixels = decode_image(data)
    return render(from_pixels(pixels[view.top : view.top + view.height, view.left : view.left + view.width]), view)


def take_part(data: bytes, view: View) -> tuple[memoryview, memoryview, int] | None:
    """Header, the bands that a view needs, and the first row of MCUs in them; None where it is not addressable."""
    layout = describe_jpeg(data)
    if layout is None:
        return None
    (source,) = zip(*(each.tolist() for each in Views.of([view]).sources()), strict=True)
    window = stored_window(source, height=layout.height, width=layout.width, orientation=layout.orientation)
    first, end = bands_of(layout, window[0], window[2])
    whole, begin = memoryview(data), layout.header_nbytes + sum(layout.band_nbytes[:first])
    bands = whole[begin : begin + sum(layout.band_nbytes[first:end])]
    return whole[: layout.header_nbytes], bands, sum(layout.band_rows[:first])


def render_by_kernel(
    data: bytes,
    view: View,
    *,
    in_part: bool = False,
    table: npt.NDArray[np.uint8] | None = None,
    dtype: torch.dtype = torch.uint8,
) -> Tensor | None:
    """The same by the native kernel, given the whole file or just what the view needs of it; None: it is not done."""
    header = read_header(memoryview(data))
    head, body, first_row = memoryview(data), None, WHOLE_FILE
    if in_part:
        part = take_part(data, view)
        assert part is not None
        head, body, first_row = part
    out = torch.empty((1, view.out_height, view.out_width, 3), dtype=dtype).permute(0, 3, 1, 2)
    job = make_jobs(
        Views.of([view]),
        orientations=header.orientation,
        heights=header.height,
        widths=header.width,
        first_row=first_row,
    )[0]
    jobs = np.array([job], dtype=np.int32)
    done = decode_batch([head], [body], jobs, out, table=table, max_pixels=MAX_PIXELS, threads=1)
    return out if done[0] else None


def write_images(path: Path, images: Iterable[bytes], *, shard_nbytes: int = 1 << 20) -> Path:
    """Shards of encoded images, as they are."""
    with ShardWriter(path, {"image": "image"}, shard_nbytes=shard_nbytes) as writer:
        for image in images:
            writer.write({"image": image})
    return path


@pytest.fixture(scope="session")
def jpeg_kinds() -> Callable[..., dict[str, bytes]]:
    """`write_kinds`."""
    return write_kinds


@pytest.fixture(scope="session")
def make_jpeg() -> Callable[..., bytes]:
    """A picture of some height and width, as `save_jpeg` writes it with some options."""
    return lambda height, width, *mode, **options: save_jpeg(waves(height, width), *mode, **options)


@pytest.fixture(scope="session")
def draw_view() -> Callable[..., View]:
    """`random_view`."""
    return random_view


@pytest.fixture(scope="session")
def by_library() -> Callable[[bytes, View], Tensor]:
    """`render_by_library`."""
    return render_by_library


@pytest.fixture(scope="session")
def by_kernel() -> Callable[..., Tensor | None]:
    """`render_by_kernel`."""
    return render_by_kernel


@pytest.fixture(scope="session", name="take_part")
def _take_part() -> Callable[[bytes, View], tuple[memoryview, memoryview, int] | None]:
    """`take_part`."""
    return take_part


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., Path]:
    """`write_images`."""
    return write_images
