"""Mel spectrograms: the short-time Fourier transform of torch, weighed by triangles on the mel scale.

Scales: D. O'Shaughnessy, Speech Communication, 1987, in HTK's constants; and M. Slaney, Auditory Toolbox, Interval
Research 1998-010. It knows no files.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from forebay.loader.audio_transforms import MelSpectrogram

__all__ = ["mel_bands", "mel_spectrogram"]

_LINEAR_HZ_PER_MEL = 200 / 3
_BEND_HZ = 1000.0
_LOG_STEP = 27 / float(torch.log(torch.tensor(6.4, dtype=torch.float64)))
"""Slaney's mels for each factor of e above the bend: 27 of them from 1 to 6.4 kHz."""


def mel_spectrogram(values: Tensor, rate: int, settings: MelSpectrogram) -> Tensor:
    """Energies of float32 (channels, frames) by band and moment: (channels, bands, 1 + frames // hop).

    Raises:
        ValueError: fewer frames than half of the transform's, which its reflected edges need.
    """
    if values.shape[1] <= settings.n_fft // 2:
        raise ValueError(
            f"a spectrogram of n_fft={settings.n_fft} needs more than {settings.n_fft // 2} frames, and there are "
            f"{values.shape[1]}; put T.Pad(seconds) before it"
        )
    spectrum = torch.stft(
        values,
        settings.n_fft,
        settings.step,
        window=_window(settings.n_fft),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    size = spectrum.abs()
    return torch.matmul(mel_bands(rate, settings), size if settings.power == 1 else size.pow(settings.power))


@functools.lru_cache(maxsize=8)
def _window(n_fft: int) -> Tensor:
    return torch.hann_window(n_fft)


@functools.lru_cache(maxsize=64)
def mel_bands(rate: int, settings: MelSpectrogram) -> Tensor:
    """The triangles: float32 (bands, n_fft // 2 + 1), to be multiplied with a spectrum.

    Raises:
        ValueError: the lowest frequency is above half of the rate.
    """
    high = rate / 2 if settings.high is None else settings.high
    if settings.low >= high:
        raise ValueError(f"low={settings.low} Hz is not below {high} Hz, half of the recording's rate")
    frequencies = torch.arange(settings.n_fft // 2 + 1, dtype=torch.float64) * (rate / settings.n_fft)
    ends = _to_mel(torch.tensor([settings.low, high], dtype=torch.float64), settings.scale)
    mels = torch.linspace(ends[0].item(), ends[1].item(), settings.bands + 2, dtype=torch.float64)
    corners = _to_hz(mels, settings.scale)[:, None]
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - left) / (peak - left), (right - frequencies) / (right - peak)
    bands = torch.minimum(rising, falling).clamp(min=0)
    if settings.norm == "slaney":
        bands *= 2 / (right - left)
    return bands.float()


def _to_mel(hz: Tensor, scale: str) -> Tensor:
    if scale == "htk":
        return 2595 * torch.log10(1 + hz / 700)
    bend = _BEND_HZ / _LINEAR_HZ_PER_MEL
    return torch.where(hz < _BEND_HZ, hz / _LINEAR_HZ_PER_MEL, bend + torch.log(hz / _BEND_HZ) * _LOG_STEP)


def _to_hz(mels: Tensor, scale: str) -> Tensor:
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    bend = _BEND_HZ / _LINEAR_HZ_PER_MEL
    return torch.where(mels < bend, mels * _LINEAR_HZ_PER_MEL, _BEND_HZ * torch.exp((mels - bend) / _LOG_STEP))
