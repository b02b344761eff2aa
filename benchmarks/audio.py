"""How many random clips of recordings a second this loader and torch's DataLoader make, round after round in turn.

Both sides decode with libsndfile, torch's through soundfile in worker processes, from files; nothing is resampled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.turns import PassTime, Ratio, take_turns, time_pass
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset, transforms
from forebay.loader.audio import require_soundfile, soundfile_version
from forebay.sharding import SUFFIXES, Kind, ShardWriter

__all__ = ["AudioComparison", "AudioSide", "AudioWork", "compare_audio"]

_DECODED, _DECODING = "forebay, decoded cache", "forebay"


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioWork:
    """What every side has to do."""

    seconds: float = 1.0
    """Length of a clip, from anywhere in its recording."""
    clips: int = 400
    """Clips a round; recordings are repeated where there are fewer."""
    batch_size: int = 32
    """Clips a batch."""
    seed: int = 0
    """Of this loader's order and places."""

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.clips < 1 or self.batch_size < 1:
            raise ConfigError(
                f"seconds={self.seconds}, clips={self.clips}, batch_size={self.batch_size}; all are above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioSide:
    """One loader's rounds."""

    name: str
    clips_per_s: tuple[float, ...]
    """By round, from `iter()` to the last batch."""
    first_batch_s: tuple[float, ...]
    """By round, from `iter()` to the first batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioComparison:
    """Rounds of both sides, interleaved in one run."""

    source: str
    work: AudioWork
    threads: int
    """Of this loader."""
    workers: int
    """Processes of torch's."""
    recordings: int
    """Different ones, all of one rate and as many channels."""
    rate: int
    channels: int
    formats: dict[str, int]
    """How many of the recordings are of each."""
    mean_seconds: float
    """Length of a recording."""
    decoded: AudioSide
    """This loader with a decoded cache, filled in the pass that warms up."""
    decoding: AudioSide
    """This loader, decoding each clip."""
    theirs: AudioSide
    """torch's."""
    soundfile: str
    """Versions that both sides decode with."""

    def over(self, side: AudioSide) -> Ratio:
        """How many times as fast as torch's DataLoader one of this loader's sides is."""
        return Ratio.of(side.clips_per_s, self.theirs.clips_per_s)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians, the ratio, and what machine it was."""
        values = dataclasses.asdict(self)
        for name, side in (("decoded", self.decoded), ("decoding", self.decoding), ("theirs", self.theirs)):
            values[name]["median_clips_per_s"] = statistics.median(side.clips_per_s)
            values[name]["times_as_fast"] = self.over(side)._asdict()
        return {**values, "machine": describe_machine()}


@dataclass(frozen=True)
class FileClips(Dataset[Tensor]):
    """Random clips of recordings in files: for torch's DataLoader, the quickest way that soundfile has."""

    files: Sequence[str]
    seconds: float
    clips: int

    def __len__(self) -> int:
        return self.clips

    def __getitem__(self, index: int) -> Tensor:
        with require_soundfile().SoundFile(self.files[index % len(self.files)]) as file:
            frames = round(self.seconds * file.samplerate)
            file.seek(random.randint(0, file.frames - frames))
            return torch.from_numpy(file.read(frames, dtype="float32", always_2d=True).T)


@dataclass(frozen=True, slots=True)
class _Facts:
    rate: int
    channels: int
    format: str
    seconds: float


def compare_audio(
    source: str | os.PathLike[str],
    work: AudioWork,
    *,
    threads: int = 2,
    workers: int = 2,
    rounds: int = 5,
    progress: Callable[[str], None] | None = None,
) -> AudioComparison:
    """Measure all sides on the recordings of a folder: the warm-up is the first epoch, the rounds are those after it.

    Args:
        source: a folder that holds recordings, at any depth. Those of the most common rate and number of channels are
            taken, as long as a clip at least.
        work: what is done.
        threads: of this loader.
        workers: processes of torch's DataLoader, kept from round to round; 0 works in this one.
        rounds: timed passes of each side.
        progress: told the name of a side before each of its passes.

    Raises:
        ConfigError: soundfile is not installed, or the folder has no such recording.
    """
    found = _find(Path(source), work.seconds)
    (rate, channels), _ = Counter((facts.rate, facts.channels) for facts in found.values()).most_common(1)[0]
    chosen = {path: facts for path, facts in found.items() if (facts.rate, facts.channels) == (rate, channels)}
    name = f"torch DataLoader, soundfile, {workers} workers"
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder, contextlib.ExitStack() as stack:
        files = [str(Path(folder, f"{k}{path.suffix}")) for k, path in enumerate(chosen)]
        for path, copy in zip(chosen, files, strict=True):
            shutil.copyfile(path, copy)
        shards = _write_shards(Path(folder, "shards"), files, work)
        decoded, decoding = (
            stack.enter_context(contextlib.closing(_our_loader(shards, work, threads, cache=cache)))
            for cache in (f"{folder}/cache:64GB", "")
        )
        theirs = _torch_loader(FileClips(files, work.seconds, work.clips), work, workers)
        shape = (channels, round(work.seconds * rate))

        def check(batch: Tensor) -> None:
            assert batch.shape[1:] == shape
            assert batch.dtype == torch.float32

        told = take_turns(
            {
                _DECODED: lambda: time_pass(lambda: _audio(decoded), check),
                _DECODING: lambda: time_pass(lambda: _audio(decoding), check),
                name: lambda: time_pass(lambda: iter(theirs), check),
            },
            rounds=rounds,
            progress=progress or (lambda _: None),
        )
    return AudioComparison(
        source=str(source),
        work=work,
        threads=threads,
        workers=workers,
        recordings=len(chosen),
        rate=rate,
        channels=channels,
        formats=dict(Counter(facts.format for facts in chosen.values())),
        mean_seconds=statistics.mean(facts.seconds for facts in chosen.values()),
        decoded=_side(_DECODED, told[_DECODED]),
        decoding=_side(_DECODING, told[_DECODING]),
        theirs=_side(name, told[name]),
        soundfile=soundfile_version() or "",
    )


def _find(source: Path, seconds: float) -> dict[Path, _Facts]:
    soundfile = require_soundfile()
    found: dict[Path, _Facts] = {}
    for path in sorted(source.rglob("*")):
        if path.suffix.lower() not in SUFFIXES[Kind.AUDIO]:
            continue
        try:
            soundfile.read(path)  # whole: some have a good header
            info = soundfile.info(path)
        except soundfile.SoundFileError:
            continue
        if info.frames >= round(seconds * info.samplerate):
            found[path] = _Facts(info.samplerate, info.channels, info.format, info.duration)
    if not found:
        raise ConfigError(f"{source} holds no recording of {seconds:g} s or more that decodes; give another folder")
    return found


def _write_shards(path: Path, files: Sequence[str], work: AudioWork) -> Path:
    with ShardWriter(path, {"audio": "audio"}) as writer:
        for k in range(work.clips):
            writer.write({"audio": Path(files[k % len(files)]).read_bytes()})
    return path


def _our_loader(path: Path, work: AudioWork, threads: int, *, cache: str) -> DataLoader[Any]:
    clip = [transforms.RandomClip(work.seconds)]
    dataset = ShardDataset(path, cache=cache, decoded=bool(cache), transforms={"audio": clip})
    return DataLoader(dataset, work.batch_size, shuffle=True, seed=work.seed, num_workers=threads)


def _audio(loader: DataLoader[Any]) -> Iterator[Tensor]:
    for batch in loader:
        yield batch["audio"]


def _torch_loader(dataset: FileClips, work: AudioWork, workers: int) -> torch.utils.data.DataLoader[Tensor]:
    return torch.utils.data.DataLoader(
        dataset,
        work.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        multiprocessing_context="spawn" if workers else None,
    )


def _side(name: str, passes: Sequence[PassTime]) -> AudioSide:
    return AudioSide(
        name=name,
        clips_per_s=tuple(each.images_per_s for each in passes[1:]),
        first_batch_s=tuple(each.first_batch_s for each in passes[1:]),
    )
