"""The benchmark of audio runs, tiny, and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forebay.benchmarks import AudioWork, compare_audio
from forebay.errors import ConfigError

soundfile = pytest.importorskip("soundfile")


def test_a_tiny_run_measures_every_side(tmp_path: Path) -> None:
    for number, rate in enumerate((8_000, 8_000, 8_000, 16_000)):
        values = np.random.default_rng(number).normal(0, 0.1, rate)
        soundfile.write(tmp_path / f"{number}.flac", values, rate)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    work = AudioWork(seconds=0.25, clips=10, batch_size=4)
    names: list[str] = []
    comparison = compare_audio(tmp_path, work, threads=1, workers=0, rounds=2, progress=names.append)
    assert (comparison.recordings, comparison.rate, comparison.formats) == (3, 8_000, {"FLAC": 3})
    assert len(names) == 9
    values = json.loads(json.dumps(comparison.to_dict()))
    for side in ("decoded", "decoding", "theirs"):
        assert len(values[side]["clips_per_s"]) == 2
        assert values[side]["times_as_fast"]["median"] > 0
    assert values["theirs"]["times_as_fast"]["median"] == 1


def test_work_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clips=0"):
        AudioWork(clips=0)
    with pytest.raises(ConfigError, match=r"holds no recording of 1 s or more"):
        compare_audio(tmp_path, AudioWork())
