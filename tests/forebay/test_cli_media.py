"""`forebay shard`, `inspect` and `verify` on folders of audio and video."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.cli.inspect import inspect
from forebay.cli.shard import shard
from forebay.cli.verify import verify
from forebay.errors import ConfigError, ForebayError
from forebay.loader.video import torchcodec_version
from forebay.sharding import ShardWriter, open_dataset

soundfile = pytest.importorskip("soundfile")

app = typer.Typer()
for command in (shard, inspect, verify):
    app.command()(command)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    return result


def report_of(*arguments: object) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return report


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """Two classes of three recordings, one of them no recording, and a text."""
    root = tmp_path / "sounds"
    for k, name in enumerate(("barks", "meows")):
        (root / name).mkdir(parents=True)
        for n, suffix in enumerate(("wav", "FLAC", "ogg")):
            values = np.random.default_rng(3 * k + n).normal(0, 0.1, 8_000)
            soundfile.write(root / name / f"{n}.{suffix}", values, 8_000, format=suffix.upper())
    (root / "meows" / "0.wav").write_bytes(b"RIFF" + bytes(100))
    (root / "barks" / "notes.txt").write_text("none of these is a cat")
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_recordings_becomes_a_column_of_audio(sounds: Path, tmp_path: Path, workers: int) -> None:
    report = report_of("shard", sounds, tmp_path / "out", "--workers", workers)
    assert (report["media"], report["rows"], report["ignored_files"]) == ("audio", 5, 1)
    assert [bad["file"] for bad in report["bad_images"]] == ["meows/0.wav"]
    data = open_dataset(tmp_path / "out")
    assert data.schema.to_json()["columns"][0] == {"name": "audio", "type": "audio"}
    assert data.schema["label"].classes == ("barks", "meows")
    dataset = ShardDataset(tmp_path / "out", transforms={"audio": [T.RandomClip(0.5)]})
    (batch,) = DataLoader(dataset, batch_size=5)
    assert batch["audio"].shape == (5, 1, 4_000)
    assert batch["name"][0] == "barks/0.wav"


@pytest.mark.parametrize(("check", "bad"), [("decode", 1), ("header", 1), ("none", 0)])
def test_how_closely_recordings_are_looked_at(sounds: Path, tmp_path: Path, check: str, bad: int) -> None:
    report = report_of("shard", sounds, tmp_path / "out", "--check", check, "--workers", 0)
    assert len(report["bad_images"]) == bad


def test_recordings_are_told_in_words_and_verified(sounds: Path, tmp_path: Path) -> None:
    assert "5 recordings in 2 classes" in " ".join(run("shard", sounds, tmp_path / "out").stdout.split())
    assert "bytes" in run("inspect", tmp_path / "out").stdout
    verified = run("verify", tmp_path / "out", "--decode")
    assert "all 5 recordings decode" in " ".join(verified.stdout.split())
    assert verified.exit_code == 0


def test_verify_lists_recordings_that_do_not_decode(tmp_path: Path) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(800), 8_000, format="WAV")
    with ShardWriter(tmp_path / "out", {"audio": "audio"}) as writer:
        writer.write({"audio": file.getvalue()})
        writer.write({"audio": b"no recording"})
    result = run("verify", tmp_path / "out", "--decode", "--json")
    assert result.exit_code == 1
    assert [problem["row"] for problem in json.loads(result.stdout)["undecodable"]] == [1]


def test_a_folder_of_several_kinds_is_asked_about(sounds: Path, tmp_path: Path) -> None:
    (sounds / "barks" / "film.mp4").write_bytes(b"x")
    with pytest.raises(ConfigError, match="6 recordings and 1 video; say which are to be stored: --media"):
        run("shard", sounds, tmp_path / "out")
    assert report_of("shard", sounds, tmp_path / "out", "--media", "audio")["rows"] == 5
    with pytest.raises(ConfigError, match="is for images"):
        run("shard", sounds, tmp_path / "other", "--media", "audio", "--jpeg", "original")
    with pytest.raises(ConfigError, match=r"class folder 'meows' of .* holds no videos"):
        run("shard", sounds, tmp_path / "other", "--media", "video")


def test_labelled_recordings_keep_their_columns(sounds: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label,speaker\nbarks/0.wav,7,rex\nmeows/1.FLAC,8,tom\n")
    report = report_of("shard", sounds, tmp_path / "out", "--labels", labels)
    assert (report["rows"], report["unlabelled_images"]) == (2, 4)
    assert open_dataset(tmp_path / "out").schema.names == ("audio", "label", "speaker", "name")


@pytest.mark.skipif(torchcodec_version() is None, reason="torchcodec cannot be used")
def test_a_folder_of_videos_becomes_a_column_of_video(data_dir: Path, tmp_path: Path) -> None:
    for name, clip in (
        ("yes", "asl_gestures/yes.mkv"),
        ("no", "asl_gestures/no.mkv"),
        ("no", "torchcodec/h265_video.mp4"),
    ):
        (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(data_dir / "video" / clip, tmp_path / "in" / name)
    (tmp_path / "in/no/short.mp4").write_bytes((data_dir / "video/torchcodec/h265_video.mp4").read_bytes()[:9_000])
    report = report_of("shard", tmp_path / "in", tmp_path / "out", "--workers", 0)
    assert (report["media"], report["rows"]) == ("video", 3)
    assert [bad["file"] for bad in report["bad_images"]] == ["no/short.mp4"]
    dataset = ShardDataset(tmp_path / "out", transforms={"video": [T.RandomClip(frames=4), T.Resize((32, 32))]})
    (batch,) = DataLoader(dataset, batch_size=3)
    assert batch["video"].shape == (3, 4, 3, 32, 32)
    assert "all 3 videos decode" in " ".join(run("verify", tmp_path / "out", "--decode").stdout.split())
