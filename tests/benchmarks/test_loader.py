"""The comparison with torch's DataLoader: equal work, in turn, on folders and on shards."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forebay.benchmarks import CLASSES, LoaderWork, SideResult, compare, draw_photograph
from forebay.benchmarks.torch_peer import FileImages, decode_file, draw_window, make_pixels
from forebay.errors import ConfigError
from forebay.sharding import ShardWriter


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small photographs a class, and a file that is none."""
    folder = tmp_path_factory.mktemp("photographs")
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(2):
            (folder / name / f"{number}.jpg").write_bytes(draw_photograph(name, number, longest=(50, 80)))
    (folder / "wood" / "broken.jpg").write_bytes(b"\xff\xd8 no photograph")
    return folder


def test_sides_take_turns_on_the_same_images_and_tell_their_speed(photographs: Path) -> None:
    told: list[str] = []
    work = LoaderWork(size=24, batch_size=8, images=40)
    comparison = compare(photographs, work, threads=1, workers=1, rounds=2, progress=told.append)
    assert [side.name for side in comparison.sides] == ["forebay", "torch", "torch, Pillow"]
    assert sorted(told[:3]) == sorted(told[3:6]) == sorted(told[6:])
    assert told[3] != told[6]  # another one begins the next round
    assert comparison.distinct_images == 16  # the broken one is no part of it
    assert comparison.pixel_difference <= 1
    assert all(len(side.images_per_s) == 2 and min(side.images_per_s) > 0 for side in comparison.sides)
    values = json.loads(json.dumps(comparison.to_dict()))
    assert values["sides"][0]["forebay_over_this"] == {"median": 1, "min": 1, "max": 1}
    assert values["machine"]["torch"] == torch.__version__


def test_it_also_reads_shards_and_normalises(photographs: Path, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", {"photo": "image"}) as writer:
        for path in sorted(photographs.rglob("[0-9].jpg")):
            writer.write({"photo": path.read_bytes()})
    work = LoaderWork(size=16, batch_size=8, images=16, normalize=True)
    comparison = compare(tmp_path / "shards", work, threads=2, workers=0, rounds=1, pillow=False)
    assert len(comparison.sides) == 2


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", {"label": "int64"}) as writer:
        writer.write({"label": 1})
    with pytest.raises(ConfigError, match="no image column"):
        compare(tmp_path / "shards", LoaderWork())
    (tmp_path / "folder" / "class").mkdir(parents=True)
    (tmp_path / "folder" / "class" / "a.jpg").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="can be decoded"):
        compare(tmp_path / "folder", LoaderWork())
    with pytest.raises(ConfigError, match="rounds=0"):
        compare(tmp_path / "folder", LoaderWork(), rounds=0)
    with pytest.raises(ConfigError, match="images=0"):
        LoaderWork(images=0)


def test_ratios_are_of_rounds_not_of_medians() -> None:
    ours = SideResult(name="a", images_per_s=(100, 200, 300), first_batch_s=(1, 1, 1))
    theirs = SideResult(name="b", images_per_s=(50, 200, 100), first_batch_s=(1, 1, 1))
    assert ours.over(theirs) == (2, 1, 3)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 900), width=st.integers(1, 900))
def test_a_window_lies_within_the_image(height: int, width: int) -> None:
    top, left, h, w = draw_window(height, width)
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0
    assert w > 0


def test_the_peer_resizes_as_pillow_does() -> None:
    data = draw_photograph("spheres", 1, longest=(200, 240))
    image = decode_file(data)
    pixels = make_pixels(image, (10, 20, 90, 70), 32, flip=True).numpy()
    with Image.open(io.BytesIO(data)) as opened:
        cut = opened.convert("RGB").crop((20, 10, 90, 100)).resize((32, 32), Image.Resampling.BILINEAR)
    expected = np.asarray(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("pillow", [False, True])
def test_the_peers_give_what_the_comparison_expects(photographs: Path, pillow: bool) -> None:
    path = next(photographs.rglob("0.jpg"))
    pixels, label = FileImages([(str(path), 5)], 20, pillow=pillow)[0]
    assert (pixels.shape, pixels.dtype, label) == ((20, 20, 3), torch.uint8, 5)
    floats, _ = FileImages([(str(path), 5)], 20, normalize=True, pillow=pillow)[0]
    assert floats.dtype == torch.float32
    assert floats.min() >= -3
    assert floats.max() <= 3
