"""Encoded recordings to float32 values: of a recording, only the stretch that is asked for is decoded.

Formats are libsndfile's (WAV, FLAC, Ogg, MP3, AIFF ...), through the package soundfile. It knows no transforms.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.errors import ConfigError, DecodeError

__all__ = [
    "MAX_VALUES",
    "Cut",
    "Floats",
    "Keeper",
    "Recording",
    "Waveform",
    "audio_size",
    "decode_audio",
    "find_stretch",
    "memory_for",
    "require_soundfile",
    "soundfile_version",
]

MAX_VALUES = 1 << 27
"""134 million values that are decoded of one recording, 512 MB: 50 minutes of one channel at 44,100 a second."""
_UNKNOWN_LENGTH = 1 << 60
_BLOCK = 1 << 16
_MPEG_FRAMES = 2 * 1152
"""An MP3 may be shorter than its header says, by what the encoder put before and after: that much is silence."""
_PIPED_NBYTES = 0x7FFF_0000
"""From so many on, a WAV's size is what a writer put there that could not know it."""
_OGG_PAGE = b"OggS"
_LONGEST_BLOCK = 8192
_OPUS_RATE = 48_000

Floats = npt.NDArray[np.float32]
Cut = Callable[[int, int], tuple[int, int]]
"""Told the frames there are and their rate, it says which are wanted: first and number. What lies after the end is
silence."""


@dataclass(frozen=True, slots=True)
class Waveform:
    """Decoded audio."""

    values: Tensor
    """float32 (channels, frames), from -1 to 1."""
    rate: int
    """Frames a second."""
    seconds: float | None = None
    """How long it is by declaration, where its frames are that rounded."""


class Keeper(Protocol):
    """Where one decoded recording is kept. Thread-safe."""

    def read(self, cuts: Sequence[Cut], place: Tensor | None) -> tuple[Tensor, int] | None:
        """A stretch (channels, frames) and the rate, in `place` if it fits; None when it is not there."""

    def has_room(self) -> bool:
        """Whether what is decoded can be stored."""

    def keep(self, values: Tensor, rate: int) -> None:
        """Store all of it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An encoded recording, and which stretch of it is wanted. Decoding waits until that is known."""

    data: bytes | memoryview
    cuts: tuple[Cut, ...] = ()
    seconds: float | None = None
    """As `Waveform.seconds`."""
    store: Keeper | None = None
    """Where it is kept decoded, if it is."""

    def cut(self, cut: Cut, seconds: float | None) -> Recording:
        """A part of what was wanted until now."""
        return Recording(self.data, (*self.cuts, cut), seconds, self.store)

    def load(self, place: Tensor | None = None) -> Waveform:
        """Decode it, see `decode_audio`; or read what was decoded before."""
        found = None if self.store is None else self.store.read(self.cuts, place)
        if found is None and self.store is not None and self.store.has_room():
            whole, rate = decode_audio(self.data)
            self.store.keep(whole, rate)
            found = _stretch_of(whole, rate, self.cuts), rate
        return Waveform(*(found or decode_audio(self.data, self.cuts, place=place)), self.seconds)


def _stretch_of(whole: Tensor, rate: int, cuts: Sequence[Cut]) -> Tensor:
    there = whole.shape[1]
    first, number = find_stretch(cuts, there, rate)
    values = whole[:, first : first + number]
    return values if first + number <= there else torch.nn.functional.pad(values, (0, number - values.shape[1]))


def find_stretch(cuts: Sequence[Cut], frames: int, rate: int) -> tuple[int, int]:
    """First frame and number of frames that cuts leave of a recording of some frames."""
    first, number = 0, frames
    for cut in cuts:
        start, number = cut(number, rate)
        first += start
    return first, number


@functools.cache
def require_soundfile() -> Any:
    """The module `soundfile`.

    Raises:
        ConfigError: it is not installed, or finds no libsndfile.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"audio is decoded by soundfile, which cannot be imported ({error}): pip install 'forebay[audio]'"
        ) from error
    return soundfile


def soundfile_version() -> str | None:
    """Versions of soundfile and libsndfile; None when they are not there."""
    try:
        soundfile = require_soundfile()
    except ConfigError:
        return None
    return f"{soundfile.__version__} (libsndfile {soundfile.__libsndfile_version__})"


def decode_audio(
    data: bytes | memoryview,
    cuts: Sequence[Cut] = (),
    *,
    place: Tensor | None = None,
    max_values: int = MAX_VALUES,
) -> tuple[Tensor, int]:
    """Decode a recording, or a stretch of it: the same values as the whole has there.

    Args:
        data: the encoded bytes.
        cuts: in order, each of what the one before gave.
        place: where one channel of as many float32 may be written, (1, frames); new memory where it does not fit.
        max_values: a stretch of more, of all channels together, is refused before anything is decoded.

    Returns:
        float32 (channels, frames), and frames a second.

    Raises:
        DecodeError: no decoder takes it, it is cut short or corrupt, or it claims too many values.
    """
    soundfile = require_soundfile()
    try:
        with _opened(soundfile, data) as file:
            frames = _known_length(file, data)
            first, number = find_stretch(cuts, frames, file.samplerate)
            _check_size(file.channels, number, max_values)
            values = memory_for(number, file.channels, place)
            wanted = values[: max(0, frames - first)]
            values[len(wanted) :] = 0
            if len(wanted) and not _found(soundfile, file, data, first, wanted):  # some play well, and seek badly
                wanted[:] = _whole(soundfile, data, frames, max_values)[first : first + len(wanted)]
            return torch.from_numpy(np.ascontiguousarray(values.T)), int(file.samplerate)
    except soundfile.SoundFileRuntimeError as error:
        told = (getattr(error, "error_string", "") or str(error)).removeprefix("Error : ").rstrip(".")
        raise DecodeError(f"libsndfile does not take these {len(data)} bytes: {told}") from error


def audio_size(data: bytes | memoryview) -> tuple[int, int]:
    """Frames and channels of a recording, by its header.

    Raises:
        DecodeError: it has none that a decoder knows.
    """
    lengths: list[int] = []

    def nothing(frames: int, rate: int) -> tuple[int, int]:
        lengths.append(frames)
        return 0, 0

    values, _ = decode_audio(data, (nothing,))
    return lengths[0], values.shape[0]


def memory_for(frames: int, channels: int, place: Tensor | None) -> Floats:
    """Memory float32 (frames, channels), unfilled: that of `place` where it fits."""
    if place is not None and channels == 1 and place.shape == (1, frames) and place.dtype == torch.float32:
        return place.numpy().reshape(frames, 1)
    return np.empty((frames, channels), np.float32)


class _Memory(io.BytesIO):
    """A recording in memory, for libsndfile: an error of a call back to Python would only be printed."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; a damaged header may ask for one before the beginning, and stays where it is."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def _opened(soundfile: Any, data: bytes | memoryview) -> Any:
    return soundfile.SoundFile(_Memory(data))  # quicker than a descriptor of memory: that costs fresh pages


def _check_size(channels: int, frames: int, max_values: int) -> None:
    if channels * frames > max_values:
        raise DecodeError(
            f"{channels} x {frames} values are to be decoded (channels x frames), more than {max_values}; if it is "
            "sound, take a part of it: T.RandomClip(seconds)"
        )


def _known_length(file: Any, data: bytes | memoryview) -> int:
    frames: int = file.frames
    if (missing := _missing_of_riff(memoryview(data).cast("B"))) > 0:  # libsndfile takes what is there for all
        raise DecodeError(f"its header tells of {missing} bytes more than there are: it was cut short")
    if frames >= _UNKNOWN_LENGTH:
        raise DecodeError(
            f"the header of this {file.format} does not say how long it is, as of one that was written to a pipe; "
            "write it again from a file"
        )
    return frames


def _missing_of_riff(data: memoryview) -> int:
    """How many bytes of samples a WAV lacks of those that its header tells of; 0 where that is not known.

    Chunks as in Multimedia Programming Interface and Data Specifications 1.0 (IBM and Microsoft, 1991): four letters,
    a size, and padding to an even one. What is written to a pipe claims about 2 or 4 GB.
    """
    place = 12
    while bytes(data[:4]) == b"RIFF" and place + 8 <= len(data):
        nbytes = int.from_bytes(data[place + 4 : place + 8], "little")
        if bytes(data[place : place + 4]) == b"data":
            return 0 if nbytes >= _PIPED_NBYTES else nbytes - (len(data) - place - 8)
        place += 8 + nbytes + nbytes % 2
    return 0


def _found(soundfile: Any, file: Any, data: bytes | memoryview, first: int, out: Floats) -> bool:
    """Decode frames from number `first` on; False where this recording cannot be sought in."""
    begin = min(first, _last_sure_place(file, data)) if file.format == "OGG" else first
    try:
        if begin:
            file.seek(begin)
        _skip(file, first - begin)
        _read(file, first, out)
    except soundfile.LibsndfileError:
        if len(out) == file.frames:
            raise
        return False
    return True


def _last_sure_place(file: Any, data: bytes | memoryview) -> int:
    """The last frame of an Ogg that libsndfile finds: in the last page it miscounts by what was trimmed at the end."""
    encoded = bytes(data)
    page = encoded.rfind(_OGG_PAGE, 0, encoded.rfind(_OGG_PAGE))
    if page < 0 or page + 14 > len(encoded):
        return 0
    ends: int = int.from_bytes(encoded[page + 6 : page + 14], "little", signed=True)
    if file.subtype == "OPUS":  # counts at 48,000 a second, and what is before the beginning too
        ends = ends * file.samplerate // _OPUS_RATE
    return max(0, ends - _LONGEST_BLOCK)


def _skip(file: Any, frames: int) -> None:
    block = np.empty((min(frames, _BLOCK), file.channels), np.float32)
    while frames > 0 and (got := len(file.read(out=block[:frames]))):
        frames -= got


def _whole(soundfile: Any, data: bytes | memoryview, frames: int, max_values: int) -> Floats:
    with _opened(soundfile, data) as file:
        _check_size(file.channels, frames, max_values)
        values = np.zeros((frames, file.channels), np.float32)
        _read(file, 0, values)
        return values


def _read(file: Any, first: int, out: Floats) -> None:
    """Decode frames from number `first` on."""
    got = len(file.read(out=out))
    out[got:] = 0
    missing = len(out) - got
    if missing and not (file.format == "MP3" and missing <= _MPEG_FRAMES):
        raise DecodeError(f"it ends at frame {first + got}, and {missing} more are wanted: it was cut short")
