"""The native kernel's pixels: to the bit those of the libraries and close to Pillow's, for every JPEG and view."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from forebay.loader.decode import MAX_PIXELS, decode_image
from forebay.loader.geometry import View
from forebay.loader.kernel import JOB_FIELDS, find_frames, native_version, why_not
from forebay.sharding import describe_jpeg, make_addressable, read_header

_kernel = pytest.importorskip("forebay.loader._kernel", reason="forebay was installed without its native parts")

Kinds = Callable[..., dict[str, bytes]]
ByKernel = Callable[..., Tensor | None]
ByLibrary = Callable[[bytes, View], Tensor]
DrawView = Callable[..., View]

SIZES = [
    (75, 101),
    (64, 96),
    (9, 130),
    (1, 77),
    (77, 1),
    (1, 1),
    (8, 8),
    (16, 16),
    (17, 33),
    (130, 18),
    (2, 3),
    (33, 5),
]
EXACT_BELOW = 4
"""Shrunk by less than this in both directions, pixels are those of the libraries to the bit; by more, close to them."""


def same(made: Tensor, expected: Tensor, data: bytes) -> bool:
    """To the bit; of a picture on its side, which the kernel resizes along its other side first, within one level.

    A test of its own asks more of those.
    """
    if read_header(memoryview(data)).orientation >= 5:
        return bool((made.int() - expected.int()).abs().max() <= 1)
    return torch.equal(made, expected)


def upright_size(data: bytes) -> tuple[int, int]:
    header = read_header(memoryview(data))
    return (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_kind_gives_the_libraries_pixels_to_the_bit(
    size: tuple[int, int], jpeg_kinds: Kinds, draw_view: DrawView, by_kernel: ByKernel, by_library: ByLibrary
) -> None:
    rng = random.Random(str(size))
    for kind, data in jpeg_kinds(*size).items():
        for _ in range(12):
            view = draw_view(rng, *upright_size(data))
            made = by_kernel(data, view)
            assert made is not None, (kind, view)
            assert same(made, by_library(data, view), data), (kind, view)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("segment_pixels", [1, 40, 10_000])
def test_addressable_jpegs_give_the_same_whole_or_in_part(
    size: tuple[int, int],
    segment_pixels: int,
    jpeg_kinds: Kinds,
    draw_view: DrawView,
    by_kernel: ByKernel,
    by_library: ByLibrary,
) -> None:
    rng = random.Random(str(size))
    for kind, data in jpeg_kinds(*size).items():
        addressable = make_addressable(data, segment_pixels=segment_pixels)
        assert describe_jpeg(addressable) is not None
        for _ in range(6):
            view = draw_view(rng, *upright_size(data))
            expected = by_library(data, view)
            for in_part in (False, True):
                made = by_kernel(addressable, view, in_part=in_part)
                assert made is not None, (kind, view, in_part)
                assert same(made, expected, data), (kind, view, in_part)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_are_made_upright_with_the_libraries_pixels(
    orientation: int, make_jpeg: Callable[..., bytes], draw_view: DrawView, by_kernel: ByKernel, by_library: ByLibrary
) -> None:
    rng = random.Random(orientation)
    for options in ({"subsampling": "4:2:0"}, {"progressive": True}, {"restart_marker_rows": 1}):
        data = make_jpeg(90, 141, orientation=orientation, **options)
        whole = by_kernel(data, View.of_window((0, 0, *upright_size(data)), upright_size(data)))
        assert whole is not None
        assert np.array_equal(whole[0].permute(1, 2, 0).numpy(), decode_image(data))
        for _ in range(25):
            view = draw_view(rng, *upright_size(data))
            made = by_kernel(data, view)
            assert made is not None
            # A picture on its side is narrowed along its other axis first: rounding may differ.
            difference = (made.int() - by_library(data, view).int()).abs().max()
            assert difference <= (1 if orientation >= 5 else 0), (options, view)


def differences(
    data: bytes, window: tuple[int, int, int, int], size: tuple[int, int], by_kernel: ByKernel
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """By value (H, W, 3), from Pillow's crop then resize, which are our semantics, and from its `resize(box=...)`."""
    image = Image.fromarray(decode_image(data))
    top, left, height, width = window
    view = View.of_window(window, size)
    made = by_kernel(data, view)
    assert made is not None
    found = made[0].permute(1, 2, 0).numpy().astype(int)
    box = (left, top, left + width, top + height)
    cropped = image.crop(box).resize(size[::-1], Image.Resampling.BILINEAR)
    boxed = image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)
    of_crop, of_box = (np.abs(found - np.asarray(other, dtype=int)) for other in (cropped, boxed))
    return of_crop, of_box


def without_edges(difference: npt.NDArray[np.int64], window: tuple[int, int, int, int]) -> npt.NDArray[np.int64]:
    """Without the outermost pixels, whose filter looks beyond the window where it may: they are others by design."""
    ring = max(1, -(-difference.shape[0] // window[2]), -(-difference.shape[1] // window[3]))
    return difference[ring:-ring, ring:-ring]


def close(differences: list[npt.NDArray[np.int64]]) -> bool:
    values = np.concatenate([difference.ravel() for difference in differences])
    return bool(values.mean() <= 1 and np.percentile(values, 99.9) <= 8)


def photographs(data_dir: Path, folder: str, count: int) -> list[bytes]:
    paths = sorted(path for path in (data_dir / folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    assert paths
    return [path.read_bytes() for path in paths[:: max(1, len(paths) // count)]]


def random_window(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """A window as random resized crops take it: a twelfth of the area and more, of common shapes."""
    share, aspect = rng.uniform(0.08, 1), rng.uniform(3 / 4, 4 / 3)
    h = min(height, round((share * height * width / aspect) ** 0.5))
    w = min(width, round((share * height * width * aspect) ** 0.5))
    return rng.randint(0, height - h), rng.randint(0, width - w), h, w


@pytest.mark.parametrize("folder", ["photos", "flowers", "large"])
def test_photographs_give_the_libraries_pixels(
    folder: str, data_dir: Path, by_kernel: ByKernel, by_library: ByLibrary
) -> None:
    rng = random.Random(folder)
    for data in photographs(data_dir, folder, 30):
        addressable = make_addressable(data)
        window = random_window(rng, *upright_size(data))
        view = View.of_window(window, (224, 224), flipped=rng.random() < 0.5)
        expected = by_library(data, view)
        made = [by_kernel(data, view), by_kernel(addressable, view), by_kernel(addressable, view, in_part=True)]
        for pixels in made:
            assert pixels is not None
            assert torch.equal(pixels, made[0] if made[0] is not None else expected)
            if max(window[2], window[3]) < EXACT_BELOW * 224:
                assert torch.equal(pixels, expected)
            else:
                assert float((pixels.float() - expected.float()).abs().mean()) <= 1


@pytest.mark.parametrize("folder", ["photos", "flowers", "large"])
def test_photographs_are_pillows_within_a_grey_level(folder: str, data_dir: Path, by_kernel: ByKernel) -> None:
    """Each by itself; of `resize(box=...)`, whose edges differ by more than 8 in one window of twenty, all together."""
    rng = random.Random(folder)
    of_boxes = []
    for data in photographs(data_dir, folder, 40):
        window = random_window(rng, *upright_size(data))
        of_crop, of_box = differences(data, window, (224, 224), by_kernel)
        assert close([of_crop])
        assert close([without_edges(of_box, window)])
        of_boxes.append(of_box)
    assert close(of_boxes)


def close_when_made_small(
    data: list[bytes], rng: random.Random, shrink: tuple[float, float], by_kernel: ByKernel
) -> bool:
    """Whether many windows, made so many times as small, are Pillow's within a grey level, taken together.

    Half and a quarter of the size come from the inverse transform, whose pixels straddle the window's edges: the
    outermost pixels are within a level on average, as all are, but not all within 8.
    """
    crops, boxes, inner_crops, inner_boxes = [], [], [], []
    for each in data:
        height, width = upright_size(each)
        h, w = rng.randint(height // 2, height), rng.randint(width // 2, width)
        window = rng.randint(0, height - h), rng.randint(0, width - w), h, w
        size = int(h / rng.uniform(*shrink)), int(w / rng.uniform(*shrink))
        of_crop, of_box = differences(each, window, size, by_kernel)
        crops.append(of_crop)
        boxes.append(of_box)
        inner_crops.append(without_edges(of_crop, window))
        inner_boxes.append(without_edges(of_box, window))
    on_average = all(np.concatenate([each.ravel() for each in found]).mean() <= 1 for found in (crops, boxes))
    return on_average and close(inner_crops) and close(inner_boxes)


@pytest.mark.parametrize("shrink", [(3.5, 4.5), (4, 8), (8, 16)], ids=str)
@pytest.mark.parametrize("folder", ["photos", "flowers", "large"])
def test_photographs_made_small_are_pillows_within_a_grey_level(
    folder: str, shrink: tuple[float, float], data_dir: Path, by_kernel: ByKernel
) -> None:
    assert close_when_made_small(photographs(data_dir, folder, 40), random.Random(folder), shrink, by_kernel)


def test_every_kind_made_small_is_pillows_within_a_grey_level(
    data_dir: Path, jpeg_kinds: Kinds, by_kernel: ByKernel
) -> None:
    photograph = np.ascontiguousarray(decode_image(photographs(data_dir, "flowers", 1)[0])[:331, :402])
    kinds = jpeg_kinds(*photograph.shape[:2], photograph)
    far = [
        kind
        for kind, data in kinds.items()
        if not close_when_made_small([data] * 20, random.Random(1), (4, 10), by_kernel)
    ]
    assert far == []


def test_the_kernel_says_what_it_is_and_what_it_takes(make_jpeg: Callable[..., bytes]) -> None:
    assert why_not() is None
    assert (native_version() or "").startswith("libjpeg-turbo ")
    assert _kernel.JOB_FIELDS == JOB_FIELDS
    plain, turned = make_jpeg(40, 60), make_jpeg(40, 60, orientation=6)
    assert find_frames([plain], MAX_PIXELS).tolist() == [[*(40, 60, False)]]
    assert find_frames([memoryview(turned)], MAX_PIXELS).tolist() == [[*(40, 60, True)]]
    assert find_frames([plain], 40 * 60).tolist() == [[*(40, 60, False)]]
    assert not find_frames([plain], 40 * 60 - 1).any()
