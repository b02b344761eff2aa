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
from forebay.loader.geometry import View, stored_window
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
    view, resized = View.whole(height, width), False
    for step in steps:
        if step == "crop":
            window = draw_crop(data, *seen.shape[2:])
            seen, view = pixels.crop(seen, window), view.crop(window)
        elif step == "flip":
            seen, view = pixels.flip(seen), view.flip()
        else:
            size = data.draw(SIDES), data.draw(SIDES)
            changes = size != tuple(seen.shape[2:])
            after = view.resize(size)
            if changes and resized:
                assert after is None, "two resizes are not one"
                return
            assert after is not None
            view, resized = after, resized or changes
            seen = pixels.resize(seen.clone(memory_format=torch.channels_last), size)
        assert (view.out_height, view.out_width) == tuple(seen.shape[2:])
    assert torch.equal(show(picture, view), seen)


def test_a_view_of_all_is_the_picture() -> None:
    picture = noise(7, 9)
    view = View.whole(7, 9)
    assert torch.equal(show(picture, view), picture)
    assert view.source() == (0, 0, 7, 9)
    assert view.resize((7, 9)) == view
    assert view.flip().flip() == view


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
    top, left, rows, columns = view.source()
    assert view.top <= top < top + rows <= view.top + view.height
    assert view.left <= left < left + columns <= view.left + view.width
    picture = noise(height, width)
    other = 255 - picture
    other[:, :, top : top + rows, left : left + columns] = picture[:, :, top : top + rows, left : left + columns]
    assert torch.equal(show(other, view), show(picture, view))


def test_the_source_of_a_small_part_is_small() -> None:
    halved = View.whole(1000, 1200).resize((500, 600))
    assert halved is not None
    top, left, rows, columns = halved.crop((100, 200, 50, 60)).source()
    assert 196 <= top <= 200
    assert 396 <= left <= 400
    assert 100 <= rows <= 108
    assert 120 <= columns <= 128
    enlarged = View.whole(1000, 1200).resize((4000, 4800))
    assert enlarged is not None
    assert max(enlarged.crop((400, 800, 40, 40)).source()[2:]) <= 15


def test_a_view_is_a_plain_value() -> None:
    view = View.whole(20, 30).crop((2, 3, 10, 12)).resize((5, 6))
    assert view == View(2, 3, 10, 12, 5, 6, 0, 0, 5, 6, False)
    assert view.flip().crop((0, 0, 5, 2))[6:] == (0, 4, 5, 2, True)
