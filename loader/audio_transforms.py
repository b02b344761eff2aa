"""What may be done to recordings, and which stretch of a recording or video is taken: declared, like all transforms.

Lengths are seconds of the recording's own time, rates are values a second and channel. Nothing is decoded here.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from forebay.errors import ConfigError
from forebay.loader.declared import Declared

__all__ = ["FixedClip", "MelSpectrogram", "Mono", "Pad", "RandomClip", "Resample"]


def _check_stretch(name: str, clip: FixedClip | RandomClip) -> None:
    """Refuse what says no length, or two; and steps between frames where there are none."""
    if (clip.seconds is None) == (clip.frames is None):
        raise ConfigError(f"{name}: give seconds= for audio, or frames= for video")
    _check_seconds(name, "seconds", clip.seconds)
    _check_seconds(name, "every_s", clip.every_s)
    if clip.frames is None:
        if clip.every is not None or clip.every_s is not None:
            raise ConfigError(f"{name}: every= and every_s= are for frames=, of video")
    elif type(clip.frames) is not int or clip.frames < 1:
        raise ConfigError(f"{name}: frames={clip.frames!r}; give 1 or more frames")
    if clip.every is not None and (type(clip.every) is not int or clip.every < 1):
        raise ConfigError(f"{name}: every={clip.every!r}; give 1 for each frame, 2 for every other one")
    if clip.every is not None and clip.every_s is not None:
        raise ConfigError(f"{name}: give every= in frames, or every_s= in seconds")


def _check_seconds(name: str, what: str, seconds: float | None) -> None:
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise ConfigError(f"{name}: {what}={seconds!r}; give a number of seconds above 0")


def _check_rate(name: str, rate: int) -> None:
    if type(rate) is not int or not 0 < rate < 1 << 20:
        raise ConfigError(f"{name}: rate={rate!r}; give values a second, such as 16000")


@dataclass(frozen=True)
class RandomClip(Declared):
    """Take a stretch from anywhere, each place as likely as any other. Only that stretch is decoded.

    Args:
        seconds: of audio. A shorter recording is an error, unless `Pad` comes first.
        frames: of video.
        every: take each frame, or every second, third ... one.
        every_s: or the frames that are shown at moments so many seconds apart, whatever the video's rate.
    """

    seconds: float | None = None
    _: KW_ONLY
    frames: int | None = None
    every: int | None = None
    every_s: float | None = None
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_stretch("RandomClip", self)


@dataclass(frozen=True)
class FixedClip(Declared):
    """Take a stretch from a given place. Only that stretch is decoded.

    Args:
        seconds: of audio. A recording that ends before is an error, unless `Pad` comes first.
        frames: of video.
        start: number of the first frame of video, from 0.
        start_s: or the moment that it begins at, in seconds; of audio, and of video with `every_s`.
        every: take each frame, or every second, third ... one.
        every_s: or the frames that are shown at moments so many seconds apart, whatever the video's rate.
    """

    seconds: float | None = None
    _: KW_ONLY
    frames: int | None = None
    start: int | None = None
    start_s: float | None = None
    every: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        _check_stretch("FixedClip", self)
        if self.start is not None and (type(self.start) is not int or self.start < 0 or self.frames is None):
            raise ConfigError(
                f"FixedClip: start={self.start!r} is the number of a frame of video; of audio give start_s="
            )
        if self.start_s is not None and not (isinstance(self.start_s, int | float) and 0 <= self.start_s < math.inf):
            raise ConfigError(f"FixedClip: start_s={self.start_s!r}; give seconds from the beginning")
        if self.frames is not None and (
            (self.start is not None and self.every_s is not None) or (self.start_s is not None and self.every_s is None)
        ):
            raise ConfigError(
                "FixedClip of video: count start= and every= in frames, or start_s= and every_s= in seconds"
            )


@dataclass(frozen=True)
class Pad(Declared):
    """Add silence after the end of recordings that are shorter than `seconds`; longer ones stay as they are."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds("Pad", "seconds", self.seconds)


@dataclass(frozen=True)
class Mono(Declared):
    """Give one channel: the mean of those there are."""


@dataclass(frozen=True)
class Resample(Declared):
    """Change the rate, by soxr's high-quality filter. Put it after a clip: then only the clip is decoded.

    Args:
        rate: of the result. A clip of some seconds has exactly round(seconds * rate) values then.
    """

    rate: int

    def __post_init__(self) -> None:
        _check_rate("Resample", self.rate)


@dataclass(frozen=True)
class MelSpectrogram(Declared):
    """Give energies by mel band and moment: float32 (channels, bands, 1 + frames // hop).

    The numbers are those of torchaudio's `MelSpectrogram` with equal settings: a periodic Hann window as long as the
    transform, edges reflected, so that moment t lies at t * hop.

    Args:
        bands: triangular filters, equally wide on the mel scale.
        n_fft: values of the Fourier transform and its window.
        hop: values from one moment to the next; half of `n_fft` by default.
        low: lowest frequency of the first band, in hertz.
        high: highest frequency of the last band; half of the recording's rate by default.
        scale: "htk": mel = 2595 log10(1 + f / 700); "slaney": linear to 1000 Hz, logarithmic above, librosa's default.
        norm: "slaney" divides each band by half of its width in hertz, librosa's default; None leaves peaks of 1.
        power: 2 for energies, 1 for magnitudes.
    """

    bands: int = 80
    _: KW_ONLY
    n_fft: int = 400
    hop: int | None = None
    low: float = 0.0
    high: float | None = None
    scale: Literal["htk", "slaney"] = "htk"
    norm: Literal["slaney"] | None = None
    power: float = 2.0

    def __post_init__(self) -> None:
        for name in ("bands", "n_fft", "step"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"MelSpectrogram: {'hop' if name == 'step' else name}={value!r}; give 1 or more")
        if self.n_fft < 2:
            raise ConfigError(f"MelSpectrogram: n_fft={self.n_fft}; give 2 or more, such as 400")
        if not 0 <= self.low < (math.inf if self.high is None else self.high):
            raise ConfigError(f"MelSpectrogram: low={self.low}, high={self.high}; give 0 <= low < high, in hertz")
        if self.scale not in ("htk", "slaney") or self.norm not in ("slaney", None):
            raise ConfigError(
                f'MelSpectrogram: scale={self.scale!r}, norm={self.norm!r}; give scale "htk" or "slaney", and norm '
                '"slaney" or None'
            )
        if not 0 < self.power < math.inf:
            raise ConfigError(f"MelSpectrogram: power={self.power}; give 2 for energies, 1 for magnitudes")

    @property
    def step(self) -> int:
        """Values from one moment to the next."""
        return self.n_fft // 2 if self.hop is None else self.hop
