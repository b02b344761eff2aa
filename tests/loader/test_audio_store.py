"""Decoded recordings in the cache: the same values hit or missed, and faults cost a decoding, never a value."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset, ShardWriter
from forebay import transforms as T
from forebay.errors import ConfigError, SampleError
from forebay.loader import audio_store

soundfile = pytest.importorskip("soundfile")

SAMPLES = 20


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 recordings of one channel or two, in several shards, some longer than a piece; the last is no recording."""
    path = tmp_path_factory.mktemp("audio") / "train"
    with ShardWriter(path, {"audio": "audio", "number": "int64"}, shard_nbytes=250_000, batch_nbytes=100_000) as writer:
        for number in range(SAMPLES):
            rng = np.random.default_rng(number)
            file = io.BytesIO()
            values = rng.normal(0, 0.1, (12_000 + 3_000 * number, 1 + number % 2))
            soundfile.write(file, values, 16_000, format=("FLAC", "OGG", "WAV")[number % 3])
            writer.write({"audio": file.getvalue(), "number": number})
        writer.write({"audio": b"no recording", "number": SAMPLES})
    return path


def epochs(shards: Path, cache: Path | None, *, count: int = 2, budget: str = "100MB", steps: Any = None) -> list[Any]:
    """By epoch, the clip of each recording."""
    dataset = ShardDataset(
        shards,
        cache="" if cache is None else f"{cache}:{budget}",
        decoded=cache is not None,
        transforms={"audio": steps or [T.RandomClip(0.5), T.Mono()]},
        columns=["audio", "number", "__valid__"],
    )
    loader = DataLoader(dataset, batch_size=7, shuffle=True, seed=5, on_error="skip", num_workers=2)
    with contextlib.closing(loader):
        return [_clips(loader) for _ in range(count)]


def _clips(loader: DataLoader[Any]) -> dict[int, Tensor]:
    return {
        number: clip
        for batch in loader
        for number, clip, valid in zip(batch["number"].tolist(), batch["audio"], batch["__valid__"], strict=True)
        if valid
    }


def same(ours: list[dict[int, Tensor]], theirs: list[dict[int, Tensor]]) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="module")
def expected(shards: Path) -> list[dict[int, Tensor]]:
    found = epochs(shards, None)
    assert found[0].keys() == set(range(SAMPLES))
    assert not torch.equal(found[0][3], found[1][3])
    return found


def pixels(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 100_000)


def test_clips_are_the_same_filled_read_and_without_a_store(
    shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert same(epochs(shards, tmp_path), expected)
    opened: list[int] = []

    class Opened(soundfile.SoundFile):  # type: ignore[misc, name-defined]
        def __init__(self, file: io.BytesIO) -> None:
            opened.append(len(file.getvalue()))
            super().__init__(file)

    monkeypatch.setattr(soundfile, "SoundFile", Opened)
    assert same(epochs(shards, tmp_path), expected)
    assert set(opened) == {len(b"no recording")}


def test_stretches_that_go_beyond_the_end_are_silence(shards: Path, tmp_path: Path) -> None:
    steps = [T.Pad(6.0), T.RandomClip(5.0), T.Mono(), T.Resample(8_000)]
    without = epochs(shards, None, steps=steps)
    assert same(epochs(shards, tmp_path, steps=steps), without)
    assert same(epochs(shards, tmp_path, steps=steps), without)


def test_flipped_bytes_are_decoded_again(shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path) -> None:
    epochs(shards, tmp_path, count=1)
    for path in pixels(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 3 :: 5_000] = bytes(b ^ 0x10 for b in data[len(data) // 3 :: 5_000])
        path.write_bytes(data)
    assert same(epochs(shards, tmp_path), expected)
    assert same(epochs(shards, tmp_path), expected)


@pytest.mark.parametrize("budget", ["2MB", "3MB"])
def test_a_budget_smaller_than_the_values_is_kept(
    shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path, budget: str
) -> None:
    assert same(epochs(shards, tmp_path, budget=budget), expected)
    used = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    assert used <= int(budget[0]) * 1_000_000 + 100_000


def test_another_version_of_the_decoder_has_a_store_of_its_own(
    shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs(shards, tmp_path, count=1)
    before = pixels(tmp_path)
    monkeypatch.setattr(audio_store, "soundfile_version", lambda: "a later one")
    assert same(epochs(shards, tmp_path), expected)
    assert len(pixels(tmp_path)) > len(before)


def test_more_shards_than_files_may_be_open_at_once(
    shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_store, "_MOST_OPEN", 2)
    assert same(epochs(shards, tmp_path), expected)
    assert same(epochs(shards, tmp_path), expected)


def _fill(shards: Path, cache: Path, answers: Any) -> None:
    answers.put([{k: clip.numpy() for k, clip in clips.items()} for clips in epochs(shards, cache)])


def test_two_processes_fill_one_store_at_once(shards: Path, expected: list[dict[int, Tensor]], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_fill, args=(shards, tmp_path, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    told = [answers.get() for _ in processes]
    for process in processes:
        process.join()
        process.close()
    answers.close()
    for clips in told:
        assert same([{k: torch.from_numpy(v) for k, v in epoch.items()} for epoch in clips], expected)
    assert same(epochs(shards, tmp_path), expected)


def test_a_bad_recording_is_named_with_a_store_too(shards: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(shards, cache=f"{tmp_path}:100MB", decoded=True, transforms={"audio": [T.RandomClip(0.5)]})
    with (
        contextlib.closing(DataLoader(dataset, batch_size=1)) as loader,
        pytest.raises(SampleError, match="decode fail"),
    ):
        list(loader)


def test_auto_is_for_images(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="audio alone is kept with decoded=True"):
        ShardDataset(shards, cache=f"{tmp_path}:100MB", decoded="auto")


def test_rooms_hold_what_is_stored_and_long_recordings_have_none() -> None:
    assert audio_store.room_nbytes(0, 1) == 0
    assert audio_store.room_nbytes(1 << 24, 2) == 0
    assert audio_store.room_nbytes(1 << 14, 1) % 3 == 0
    assert audio_store.room_nbytes(1 << 14, 2) >= (1 << 14) * 8
