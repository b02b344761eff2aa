"""The comparison with torch's DataLoader: equal work, in turn, on folders and on shards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from forebay.benchmarks import LoaderWork, SideResult, compare
from forebay.benchmarks.reference import PixelDifference
from forebay.benchmarks.torch_peer import load_opencv
from forebay.errors import ConfigError
from forebay.sharding import ShardWriter, can_transcode

OURS = ["forebay", "forebay, addressable"] if can_transcode() else ["forebay"]
PEERS = ["torch, OpenCV", "torch, same filter", "torch, Pillow"]


def test_sides_take_turns_on_the_same_images_and_tell_their_speed(photographs: Path) -> None:
    told: list[str] = []
    work = LoaderWork(size=24, batch_size=8, images=40)
    comparison = compare(photographs, work, threads=1, workers=1, rounds=2, progress=told.append)
    names = [*OURS, *PEERS]
    assert [side.name for side in comparison.sides] == names
    assert told[: len(names)] == names
    assert sorted(told[len(names) : 2 * len(names)]) == sorted(told[2 * len(names) :]) == sorted(names)
    assert told[len(names)] != told[2 * len(names)]  # another one begins the next round
    assert (comparison.images, comparison.distinct_images) == (40, 16)  # the broken one is no part of it
    assert comparison.addressable_images == (16 if can_transcode() else 0)
    assert all(len(side.images_per_s) == 2 and min(side.images_per_s) > 0 for side in comparison.sides)
    values = json.loads(json.dumps(comparison.to_dict()))
    assert values["sides"][0]["times_as_fast"]["forebay"] == {"median": 1, "smallest": 1, "largest": 1}
    assert list(values["sides"][-1]["times_as_fast"]) == OURS
    assert values["machine"]["torch"] == torch.__version__


def test_the_proof_of_equal_work_is_how_far_pixels_are_from_pillows(photographs: Path) -> None:
    work = LoaderWork(size=24, batch_size=8, images=16)
    comparison = compare(photographs, work, threads=1, workers=0, rounds=1)
    pixels = {side.name: side.pixels for side in comparison.sides}
    same_filter = [*OURS, "torch, same filter", "torch, Pillow"]
    assert all(pixels[name].mean < 1 for name in same_filter)
    assert pixels["torch, OpenCV"].mean > 2 * max(pixels[name].mean for name in same_filter)


def test_bytes_read_and_the_decoder_are_told_of_this_loader_alone(photographs: Path) -> None:
    work = LoaderWork(size=24, batch_size=8, images=16)
    comparison = compare(photographs, work, threads=1, workers=0, rounds=1, opencv=False, pillow=False)
    assert [side.name for side in comparison.ours] == OURS
    assert comparison.sides[0].read_nbytes_per_image == pytest.approx(comparison.image_nbytes)
    assert comparison.sides[0].decoder
    assert comparison.sides[-1].read_nbytes_per_image is None


def test_it_also_reads_shards_and_normalises(photographs: Path, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", {"photo": "image"}) as writer:
        for path in sorted(photographs.rglob("[0-9].jpg")):
            writer.write({"photo": path.read_bytes()})
    work = LoaderWork(size=16, batch_size=8, images=16, normalize=True)
    comparison = compare(tmp_path / "shards", work, threads=2, workers=0, rounds=1, pillow=False, addressable=False)
    assert [side.name for side in comparison.sides] == ["forebay", "torch, OpenCV", "torch, same filter"]


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


def test_without_opencv_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    load_opencv.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'forebay\[bench\]'"):
        compare(tmp_path, LoaderWork())
    with pytest.raises(ConfigError, match="has no image"):
        compare(tmp_path, LoaderWork(), opencv=False)


def test_ratios_are_of_rounds_not_of_medians() -> None:
    def side(*images_per_s: float) -> SideResult:
        pixels = PixelDifference(0, 0)
        return SideResult(
            name="a", images_per_s=images_per_s, first_batch_s=(1, 1, 1), very_first_batch_s=1, pixels=pixels
        )

    assert side(100, 200, 300).over(side(50, 200, 100)) == (2, 1, 3)
