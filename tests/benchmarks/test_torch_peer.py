"""torch's side of the comparison does the work that it is compared in."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.benchmarks import draw_photograph
from forebay.benchmarks.torch_peer import FileImages, Resizer, decode_file, draw_window, make_pixels_with_opencv

WINDOW = (10, 20, 90, 70)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 900), width=st.integers(1, 900))
def test_a_window_lies_within_the_image(height: int, width: int) -> None:
    top, left, h, w = draw_window(height, width)
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0
    assert w > 0


@pytest.mark.parametrize("resizer", [Resizer.SAME_FILTER, Resizer.PILLOW])
def test_the_antialiased_peers_resize_as_pillow_does(resizer: Resizer) -> None:
    data = draw_photograph("spheres", 1, longest=(200, 240))
    pixels = FileImages([], 32, resizer=resizer).make(data, WINDOW, flip=True).numpy()
    with Image.open(io.BytesIO(data)) as opened:
        cut = opened.convert("RGB").crop((20, 10, 90, 100)).resize((32, 32), Image.Resampling.BILINEAR)
    expected = np.asarray(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("flip", [False, True])
def test_the_opencv_peer_resizes_as_opencv_does_and_writes_where_it_is_told(flip: bool) -> None:
    image = decode_file(draw_photograph("spheres", 1, longest=(200, 240)))
    expected = cv2.resize(image[10:100, 20:90].copy(), (32, 32), interpolation=cv2.INTER_LINEAR)
    out = np.zeros((32, 32, 3), np.uint8)
    pixels = make_pixels_with_opencv(image, WINDOW, 32, flip=flip, out=out).numpy()
    assert np.shares_memory(pixels, out)
    assert np.array_equal(pixels, expected[:, ::-1] if flip else expected)
    assert np.array_equal(pixels, make_pixels_with_opencv(image, WINDOW, 32, flip=flip).numpy())


@pytest.mark.parametrize("resizer", Resizer)
def test_the_peers_give_what_the_comparison_expects(photographs: Path, resizer: Resizer) -> None:
    path = next(photographs.rglob("0.jpg"))
    pixels, label = FileImages([(str(path), 5)], 20, resizer=resizer)[0]
    assert (pixels.shape, pixels.dtype, label) == ((20, 20, 3), torch.uint8, 5)
    floats, _ = FileImages([(str(path), 5)], 20, normalize=True, resizer=resizer)[0]
    assert floats.dtype == torch.float32
    assert floats.min() >= -3
    assert floats.max() <= 3
