"""Encoded videos to frames: those asked for are what the whole has there, and transforms of pictures act on them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset, ShardWriter
from forebay import transforms as T
from forebay.errors import ConfigError, DecodeError, SampleError
from forebay.loader.video import VideoFacts, Wanted, decode_video, torchcodec_version

pytestmark = pytest.mark.skipif(torchcodec_version() is None, reason="torchcodec cannot be used")

NAMES = {
    "torchcodec/nasa_13013.mp4": (390, 270, 480),
    "torchcodec/h265_video.mp4": (10, 128, 128),
    "torchcodec/av1_video.mkv": (125, 360, 640),
    "torchcodec/h264_10bits.mp4": (30, 200, 200),
    "asl_gestures/yes.mkv": (65, 480, 640),
}


def numbers(*frames: int) -> Any:
    return lambda facts: Wanted(frames)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("video") / "train"
    with ShardWriter(path, {"video": "video", "name": "str"}) as writer:
        for name in NAMES:
            writer.write({"video": (data_dir / "video" / name).read_bytes(), "name": name})
    return path


def one(path: Path, steps: Sequence[Any], i: int = 0, *, epoch: int = 0, **options: Any) -> Any:
    """What is made of video `i`."""
    with contextlib.closing(ShardDataset(path, transforms={"video": list(steps)}, **options)) as dataset:
        dataset.set_epoch(epoch)
        return dataset[i]["video"]


@pytest.mark.parametrize("name", NAMES)
def test_frames_by_number_are_those_of_the_whole(data_dir: Path, name: str) -> None:
    data = (data_dir / "video" / name).read_bytes()
    count, height, width = NAMES[name]
    whole = decode_video(data)
    assert whole.shape == (count, 3, height, width)
    assert whole.dtype == torch.uint8
    assert whole.stride(1) == 1  # channels_last
    chosen = [count - 1, 0, count // 2, count // 2]
    assert torch.equal(decode_video(data, numbers(*chosen)), whole[chosen])


def test_frames_by_time_are_those_that_are_shown_then(data_dir: Path) -> None:
    data = (data_dir / "video/torchcodec/nasa_13013.mp4").read_bytes()
    facts: list[VideoFacts] = []

    def choose(told: VideoFacts) -> Wanted:
        facts.append(told)
        return Wanted(seconds=[0.0, 1.01, 13.0])

    frames = decode_video(data, choose)
    assert torch.equal(frames, decode_video(data, numbers(0, 30, 389)))  # 29.97 a second
    assert facts == [VideoFacts(390, 0.0, pytest.approx(13.013))]  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 100, 300_000])
def test_what_is_no_video_or_was_cut_short_is_refused(data_dir: Path, length: int) -> None:
    data = (data_dir / "video/torchcodec/nasa_13013.mp4").read_bytes()[:length]
    with pytest.raises(DecodeError):
        decode_video(data)


def test_sound_alone_is_no_video(data_dir: Path) -> None:
    with pytest.raises(DecodeError):
        decode_video((data_dir / "audio/lhotse/stereo.mp3").read_bytes())


def test_more_pixels_than_allowed_are_refused_and_a_clip_of_them_is_not(data_dir: Path) -> None:
    data = (data_dir / "video/torchcodec/h265_video.mp4").read_bytes()
    with pytest.raises(DecodeError, match=r"10 frames of 128 x 128 pixels .* more than max_pixels=100000"):
        decode_video(data, max_pixels=100_000)
    assert len(decode_video(data, numbers(1, 2), max_pixels=100_000)) == 2


def test_a_clip_takes_every_other_frame_from_its_start(videos: Path) -> None:
    whole = one(videos, [])
    assert torch.equal(one(videos, [T.FixedClip(frames=4, start=10, every=3)]), whole[10:20:3])
    assert torch.equal(one(videos, [T.FixedClip(frames=3, start_s=1.0, every_s=1.0)]), whole[[29, 59, 89]])


def test_a_random_clip_is_another_in_each_epoch_and_ends_within_the_video(videos: Path) -> None:
    whole = one(videos, [], 2)
    starts = set()
    for epoch in range(6):
        clip = one(videos, [T.RandomClip(frames=5, every=20)], 2, epoch=epoch)
        (start,) = [k for k in range(125 - 80) if torch.equal(whole[k : k + 81 : 20], clip)]
        starts.add(start)
        assert one(videos, [T.RandomClip(frames=5, every_s=1.2)], 2, epoch=epoch).shape == clip.shape
    assert len(starts) > 3


def test_all_frames_of_a_clip_share_the_geometry_of_pictures(videos: Path) -> None:
    clip = T.FixedClip(frames=6, start=3)
    frames = one(videos, [clip], 4)
    flips = set()
    for epoch in range(6):
        flipped = one(videos, [clip, T.RandomHorizontalFlip()], 4, epoch=epoch)
        assert torch.equal(flipped, frames) or torch.equal(flipped, frames.flip(3))
        flips.add(torch.equal(flipped, frames))
    assert flips == {True, False}
    made = one(videos, [clip, T.RandomResizedCrop(64), T.Normalize()], 4)
    assert made.shape == (6, 3, 64, 64)
    assert made.dtype == torch.float32


def test_batches_of_clips_are_frames_by_channels_and_repeat_exactly(videos: Path) -> None:
    steps = [T.RandomClip(frames=4), T.Resize(shorter=80), T.RandomCrop(64), T.ToDtype(torch.float32, scale=True)]
    dataset = ShardDataset(videos, transforms={"video": steps})

    def epoch(**options: Any) -> dict[str, Tensor]:
        batches = list(DataLoader(dataset, batch_size=5, seed=7, **options))
        assert [batch["video"].shape for batch in batches] == [(5, 4, 3, 64, 64)]
        return dict(zip(batches[0]["name"], batches[0]["video"], strict=True))

    first, second = epoch(num_workers=1), epoch(num_workers=3, shuffle=True)
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_clips_whose_size_nobody_knows_beforehand_are_stacked(videos: Path) -> None:
    steps: list[Any] = [T.FixedClip(frames=2), lambda frames: frames[..., :100, :100]]
    (batch,) = DataLoader(ShardDataset(videos, transforms={"video": steps}), batch_size=5)
    assert batch["video"].shape == (5, 2, 3, 100, 100)
    assert torch.equal(batch["video"][1], one(videos, steps, 1))


def test_a_callable_gets_all_frames(videos: Path) -> None:
    seen: list[tuple[int, ...]] = []

    def note(frames: Tensor) -> Tensor:
        seen.append(tuple(frames.shape))
        return frames

    assert one(videos, [T.FixedClip(frames=3), note, T.Resize((16, 16))], 1).shape == (3, 3, 16, 16)
    assert seen == [(3, 3, 128, 128)]


def test_a_video_shorter_than_its_clip_is_a_bad_sample_that_says_so(videos: Path) -> None:
    for clip, needed in (
        (T.RandomClip(frames=16), "16 frames"),
        (T.FixedClip(frames=4, start=8), "12 frames"),
        (T.RandomClip(frames=3, every_s=1.0), "more than 2 s"),
        (T.FixedClip(frames=3, start_s=0.5, every_s=0.5), "more than 1.5 s"),
    ):
        with pytest.raises(SampleError, match=f"10 frames, 1.000 s, is too short .* needs {needed}"):
            one(videos, [clip], 1)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([T.Resize((8, 8)), T.FixedClip(frames=2)], "FixedClip of a video comes first"),
        ([T.FixedClip(frames=2), T.RandomClip(frames=1)], "RandomClip of a video comes first"),
        ([T.FixedClip(1.0)], r"FixedClip\(seconds\) acts on audio columns"),
        ([T.Mono()], "Mono acts on audio columns"),
    ],
)
def test_transforms_that_cannot_work_are_refused_early(videos: Path, steps: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ShardDataset(videos, transforms={"video": steps})
