"""Views: declared steps put together give what the steps give in turn, and name the pixels that they need."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from forebay.loader import pixels
from forebay.loader.geometry import View, Views, stored_window, stored_windows
from forebay.loader.windows import Window

TURNS = {  # Exif 2.3, table 6, by the method of Pillow that undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDES = st.integers(1, 40)


def noise(height: int, width: int) -> Tensor:
    """uint8 (1, 3, H, W) in channels_last memory."""
    values = np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return pixels.from_pixels(values)


def show(picture: Tensor, view: View) -> Tensor:
    """What a decoder does with a view: it decodes the window, and renders that."""
    return pixels.render(pixels.crop(picture, view[:4]).clone(memory_format=torch.channels_last), view)


def draw_crop(data: st.DataObject, height: int, width: int) -> Window:
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    return data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w


def whole(*sizes: tuple[int, int]) -> Views:
    heights, widths = np.array(sizes, np.int64).T
    return Views.whole(heights, widths)


@settings(max_examples=400, deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    steps=st.lists(st.sampled_from(["crop", "crop", "resize", "flip"]), max_size=6),
    data=st.data(),
)
def test_steps_put_together_give_what_they_give_in_turn(
    height: int, width: int, steps: list[str], data: st.DataObject
) -> None:
    picture = seen = noise(height, width)
    views, resized = whole((height, width)), False
    for step in steps:
        if step == "crop":
            window = draw_crop(data, *seen.shape[2:])
            seen, views = pixels.crop(seen, window), views.crop(*window)
        elif step == "flip":
            seen, views = pixels.flip(seen), views.flip()
        else:
            size = data.draw(SIDES), data.draw(SIDES)
            changes = size != tuple(seen.shape[2:])
            views = views.resize(size)
            if changes and resized:
                assert views[0] is None, "two resizes are not one"
                return
            resized = resized or changes
            seen = pixels.resize(seen.clone(memory_format=torch.channels_last), size)
        view = views[0]
        assert view is not None
        assert (view.out_height, view.out_width) == tuple(seen.shape[2:])
    view = views[0]
    assert view is not None
    assert torch.equal(show(picture, view), seen)


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6), seed=st.integers(0, 10**6))
def test_views_of_many_pictures_are_those_of_each(sizes: list[tuple[int, int]], seed: int) -> None:
    def put_together(views: Views) -> Views:
        rng = np.random.default_rng(seed)
        shares = rng.random((4, 6))[:, views.samples]
        heights, widths = 1 + shares[0] * (views.down.out - 1), 1 + shares[1] * (views.across.out - 1)
        window = shares[2] * 3, shares[3] * 3, heights, widths  # some reach beyond the edge
        views = views.crop(*(each.astype(np.int64) for each in window)).flip(shares[2] < 0.5)
        return views.resize((20, 30)).crop(3, 4, 10, 12).resize((10, 12))

    together = put_together(whole(*sizes))
    assert len(together) == len(sizes)
    for i, (height, width) in enumerate(sizes):
        alone = put_together(Views.whole(np.array([height]), np.array([width]), np.array([i])))
        assert together[i] == alone[0]
        view = together[i]
        if view is not None:
            again = Views.of([view])
            assert again[0] == view
            assert [each[0] for each in again.sources()] == [each[i] for each in together.sources()]


def test_a_crop_beyond_the_edge_is_unknown() -> None:
    for window in ((1, 0, 7, 9), (0, 1, 7, 9), (-1, 0, 7, 9), (0, -1, 7, 9), (0, 0, 8, 9), (0, 0, 7, 10)):
        assert whole((7, 9)).crop(*window)[0] is None
    assert whole((7, 9)).crop(0, 0, 7, 9)[0] is not None


def test_a_view_of_all_is_the_picture() -> None:
    picture = noise(7, 9)
    views = whole((7, 9))
    view = views[0]
    assert view is not None
    assert torch.equal(show(picture, view), picture)
    assert [each.tolist() for each in views.sources()] == [[0], [0], [7], [9]]
    assert views.resize((7, 9))[0] == view
    assert views.flip().flip()[0] == view
    assert view == View.of_window((0, 0, 7, 9), (7, 9))


@pytest.mark.parametrize("orientation", range(1, 9))
@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 30), width=st.integers(1, 30), data=st.data())
def test_a_window_of_the_upright_picture_lies_where_pillow_turns_it_from(
    orientation: int, height: int, width: int, data: st.DataObject
) -> None:
    stored = np.arange(height * width, dtype=np.int32).reshape(height, width)
    turned = Image.fromarray(stored, "I")
    if orientation in TURNS:
        turned = turned.transpose(TURNS[orientation])
    upright = np.asarray(turned)
    top, left, rows, columns = draw_crop(data, *upright.shape)
    y, x, h, w = stored_window((top, left, rows, columns), height=height, width=width, orientation=orientation)
    assert y >= 0
    assert x >= 0
    found, wanted = stored[y : y + h, x : x + w], upright[top : top + rows, left : left + columns]
    assert found.shape == (wanted.shape[::-1] if orientation >= 5 else wanted.shape)
    assert sorted(found.ravel()) == sorted(wanted.ravel())


@settings(max_examples=400, deadline=None)
@given(height=SIDES, width=SIDES, seed=st.integers(0, 10**6), shrink=st.sampled_from([1.5, 3.9, 40.0]))
def test_what_lies_outside_the_source_of_a_view_changes_nothing(
    draw_view: Callable[..., View], height: int, width: int, seed: int, shrink: float
) -> None:
    view = draw_view(random.Random(seed), height, width, shrink=shrink)
    top, left, rows, columns = (each.item() for each in Views.of([view]).sources())
    assert view.top <= top < top + rows <= view.top + view.height
    assert view.left <= left < left + columns <= view.left + view.width
    picture = noise(height, width)
    other = 255 - picture
    other[:, :, top : top + rows, left : left + columns] = picture[:, :, top : top + rows, left : left + columns]
    assert torch.equal(show(other, view), show(picture, view))


def test_the_source_of_a_small_part_is_small() -> None:
    halved = whole((1000, 1200)).resize((500, 600))
    top, left, rows, columns = (each.item() for each in halved.crop(100, 200, 50, 60).sources())
    assert 196 <= top <= 200
    assert 396 <= left <= 400
    assert 100 <= rows <= 108
    assert 120 <= columns <= 128
    enlarged = whole((1000, 1200)).resize((4000, 4800))
    assert max(each.item() for each in enlarged.crop(400, 800, 40, 40).sources()[2:]) <= 15


def test_a_view_is_a_plain_value() -> None:
    views = whole((20, 30)).crop(2, 3, 10, 12).resize((5, 6))
    assert views[0] == View(2, 3, 10, 12, 5, 6, 0, 0, 5, 6, False)
    flipped = views.flip().crop(0, 0, 5, 2)[0]
    assert flipped is not None
    assert flipped[6:] == (0, 4, 5, 2, True)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8),
    orientations=st.lists(st.integers(1, 8), min_size=8, max_size=8),
    data=st.data(),
)
def test_stored_windows_are_those_of_each(
    sizes: list[tuple[int, int]], orientations: list[int], data: st.DataObject
) -> None:
    turned = orientations[: len(sizes)]
    windows = [
        draw_crop(data, *(size[::-1] if orientation >= 5 else size))
        for size, orientation in zip(sizes, turned, strict=True)
    ]
    expected = [
        stored_window(window, height=height, width=width, orientation=orientation)
        for window, (height, width), orientation in zip(windows, sizes, turned, strict=True)
    ]
    top, left, rows, columns = np.array(windows, np.int64).T
    heights, widths = np.array(sizes, np.int64).T
    found = stored_windows((top, left, rows, columns), heights, widths, np.array(turned))
    assert list(zip(*(each.tolist() for each in found), strict=True)) == expected
