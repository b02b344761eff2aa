"""The drawn photographs: the same for the same seed, and as varied as a camera's."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forebay.benchmarks import CLASSES, draw_folder, draw_photograph


@pytest.mark.parametrize("name", CLASSES)
def test_a_photograph_is_the_same_for_the_same_numbers_and_else_another(name: str) -> None:
    data = draw_photograph(name, 3, longest=(60, 90))
    assert draw_photograph(name, 3, longest=(60, 90)) == data
    assert draw_photograph(name, 4, longest=(60, 90)) != data
    assert draw_photograph(name, 3, seed=1, longest=(60, 90)) != data
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "JPEG"
        assert 60 <= max(image.size) <= 90
        assert np.asarray(image).std() > 4  # not blank


def test_they_differ_in_shape_colour_orientation_and_encoding() -> None:
    shapes, modes, orientations, progressive = set(), set(), set(), set()
    for number in range(120):
        with Image.open(io.BytesIO(draw_photograph("wood", number, longest=(40, 60)))) as image:
            shapes.add(image.size)
            modes.add(image.mode)
            orientations.add(image.getexif().get(0x0112, 1))
            progressive.add("progressive" in image.info)
    assert len(shapes) > 50
    assert modes == {"RGB", "L"}
    assert orientations == {1, 3, 6, 8}
    assert progressive == {True, False}


def test_a_folder_of_them_has_class_folders_and_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[int] = []
    nbytes = draw_folder(tmp_path, per_class=1, first=5, progress=told.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(CLASSES)
    assert sum(told) == nbytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jpg"))
    assert (tmp_path / "bricks" / "bricks-0005.jpg").read_bytes() == draw_photograph("bricks", 5)
