"""Declared transforms of audio as steps: which stretch is decoded, and what is done to its values.

Values are encoded recordings until something needs to hear them, then waveforms; callables get and give tensors
float32 (channels, frames).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.errors import ConfigError
from forebay.loader.audio import Recording, Waveform
from forebay.loader.audio_mel import mel_spectrogram
from forebay.loader.audio_transforms import FixedClip, MelSpectrogram, Mono, Pad, RandomClip, Resample
from forebay.loader.draws import Numbers
from forebay.loader.steps import Outs, Step, make_step
from forebay.loader.transforms import Transform

__all__ = ["AUDIO_TRANSFORMS", "audio_shape", "make_audio_step", "values_of"]


class _AudioStep(Step):
    """One transform of one recording."""

    hears_encoded = True

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        return [self._apply(value, numbers) for value in values]

    def _apply(self, value: Any, numbers: Numbers) -> Any:
        return self._change(_heard(value, self.name))

    def _change(self, waveform: Waveform) -> Waveform | Tensor:
        raise NotImplementedError


class _CutStep(_AudioStep):
    """Takes a stretch: of what is still encoded, without decoding it."""

    def _apply(self, value: Any, numbers: Numbers) -> Any:
        cut = functools.partial(self._stretch, numbers)
        if isinstance(value, Recording):
            return value.cut(cut, self._length(value.seconds))
        waveform = _heard(value, self.name)
        there = waveform.values.shape[1]
        first, number = cut(there, waveform.rate)
        values = waveform.values[:, first : first + number]
        if first + number > there:
            values = torch.nn.functional.pad(values, (0, first + number - max(there, first)))
        return Waveform(values, waveform.rate, self._length(waveform.seconds))

    def _stretch(self, numbers: Numbers, frames: int, rate: int) -> tuple[int, int]:
        """First frame and number of frames."""
        raise NotImplementedError

    def _length(self, seconds: float | None) -> float | None:
        """How many seconds it is long by declaration, which is kept, so that another rate rounds them once."""
        raise NotImplementedError


class _RandomClip(_CutStep):
    name = "RandomClip"
    draws = RandomClip.draws

    def __init__(self, transform: RandomClip) -> None:
        assert transform.seconds is not None
        self._seconds = transform.seconds

    def _stretch(self, numbers: Numbers, frames: int, rate: int) -> tuple[int, int]:
        number = round(self._seconds * rate)
        _check_long_enough(self, frames, rate, 0, number)
        return int(numbers.first()[0] * (frames - number + 1)), number

    def _length(self, seconds: float | None) -> float | None:
        return self._seconds


class _Clip(_CutStep):
    name = "FixedClip"

    def __init__(self, transform: FixedClip) -> None:
        assert transform.seconds is not None
        self._seconds, self._start_s = transform.seconds, transform.start_s or 0.0

    def _stretch(self, numbers: Numbers, frames: int, rate: int) -> tuple[int, int]:
        first, number = round(self._start_s * rate), round(self._seconds * rate)
        _check_long_enough(self, frames, rate, first, number)
        return first, number

    def _length(self, seconds: float | None) -> float | None:
        return self._seconds


class _Pad(_CutStep):
    name = "Pad"

    def __init__(self, transform: Pad) -> None:
        self._seconds = transform.seconds

    def _stretch(self, numbers: Numbers, frames: int, rate: int) -> tuple[int, int]:
        return 0, max(frames, round(self._seconds * rate))

    def _length(self, seconds: float | None) -> float | None:
        return seconds if seconds is None else max(seconds, self._seconds)


def _check_long_enough(step: Step, frames: int, rate: int, first: int, number: int) -> None:
    if first + number > frames:
        raise ValueError(
            f"a recording of {frames / rate:.3f} s is shorter than the {(first + number) / rate:.3f} s that "
            f"{step.name} needs; put T.Pad({(first + number) / rate:g}) before it"
        )


class _Mono(_AudioStep):
    name = "Mono"

    def __init__(self, transform: Mono) -> None:
        pass

    def _change(self, waveform: Waveform) -> Waveform:
        if waveform.values.shape[0] == 1:
            return waveform
        return Waveform(waveform.values.mean(0, keepdim=True), waveform.rate, waveform.seconds)


class _Resample(_AudioStep):
    name = "Resample"

    def __init__(self, transform: Resample) -> None:
        self._rate = transform.rate
        self._soxr = _require_soxr()

    def _change(self, waveform: Waveform) -> Waveform:
        rate, there = waveform.rate, waveform.values.shape[1]
        if rate == self._rate:
            return waveform
        wanted = round(waveform.seconds * self._rate) if waveform.seconds else round(there * self._rate / rate)
        made = self._soxr.resample(np.ascontiguousarray(waveform.values.numpy().T), rate, self._rate)
        values = torch.from_numpy(np.ascontiguousarray(made.T[:, :wanted]))
        if values.shape[1] < wanted:  # by one frame, as it rounds down sometimes
            values = torch.nn.functional.pad(values, (0, wanted - values.shape[1]))
        return Waveform(values, self._rate, waveform.seconds)


class _MelSpectrogram(_AudioStep):
    name = "MelSpectrogram"

    def __init__(self, transform: MelSpectrogram) -> None:
        self._transform = transform

    def _change(self, waveform: Waveform) -> Tensor:
        return mel_spectrogram(waveform.values, waveform.rate, self._transform)


class _AudioCall(Step):
    """A user's callable: gets values, and gives values of the same rate, or anything else."""

    opaque = True
    hears_encoded = True

    def __init__(self, transform: Transform) -> None:
        self._call = make_step(transform)
        self.name, self.needs_process = self._call.name, self._call.needs_process

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        value = values[0].load() if isinstance(values[0], Recording) else values[0]
        made = self._call.run([values_of(value)], (), numbers, None)[0]
        if isinstance(made, np.ndarray):
            made = torch.from_numpy(made)
        if isinstance(value, Waveform) and isinstance(made, Tensor) and made.ndim == 2 and made.is_floating_point():
            return [Waveform(made, value.rate)]
        return [made]


def _heard(value: Any, name: str) -> Waveform:
    if isinstance(value, Recording):
        return value.load()
    if not isinstance(value, Waveform):
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise TypeError(f"{name} acts on values (channels, frames), and got {type(value).__name__}{shape}")
    return value


def values_of(value: Any, place: Tensor | None = None) -> Any:
    """What the user gets: the values of a waveform, decoded to `place` if they fit; anything else as it is."""
    if isinstance(value, Recording):
        value = value.load(place)
    return value.values if isinstance(value, Waveform) else value


@functools.cache
def _require_soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        raise ConfigError(
            f"Resample is done by soxr, which cannot be imported ({error}): pip install 'forebay[audio]'"
        ) from error
    return soxr


_STEPS: dict[type, Callable[[Any], Step]] = {
    FixedClip: _Clip,
    MelSpectrogram: _MelSpectrogram,
    Mono: _Mono,
    Pad: _Pad,
    RandomClip: _RandomClip,
    Resample: _Resample,
}
AUDIO_TRANSFORMS = tuple(_STEPS)
"""What may be declared for audio."""


def make_audio_step(transform: Transform) -> Step:
    """The step that does what `transform` declares.

    Raises:
        ConfigError: a package that it needs is missing.
    """
    maker = _STEPS.get(type(transform), _AudioCall)
    return maker(transform)


def audio_shape(transforms: Sequence[Transform]) -> tuple[int, ...] | None:
    """Shape of every sample after these; None where samples may differ."""
    channels: int | None = None
    rate: int | None = None
    seconds: float | None = None
    spectrum: MelSpectrogram | None = None
    for transform in transforms:
        match transform:
            case Mono():
                channels = 1
            case Resample():
                rate = transform.rate
            case FixedClip() | RandomClip():
                seconds = transform.seconds
            case Pad():
                seconds = None if seconds is None else max(seconds, transform.seconds)
            case MelSpectrogram():
                spectrum = transform
            case _:
                return None
    if channels is None or rate is None or seconds is None:
        return None
    frames = round(seconds * rate)
    return (channels, frames) if spectrum is None else (channels, spectrum.bands, 1 + frames // spectrum.step)
