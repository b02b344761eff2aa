"""Encoded videos to uint8 frames: of a video, only the frames that are asked for, from the nearest key frame on.

Containers and codecs are FFmpeg's, through the package torchcodec. It knows no transforms, and decodes on the CPU.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forebay.errors import ConfigError, DecodeError
from forebay.loader.decode import MAX_PIXELS

__all__ = ["Footage", "VideoFacts", "Wanted", "decode_video", "require_torchcodec", "torchcodec_version"]

_WHERE = re.compile(r"^\w+, \S+:\d+, ")
"""How torchcodec begins a message: with a place in its source."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What is known of a video before any frame is decoded."""

    num_frames: int
    begin_s: float
    """When the first frame is shown."""
    end_s: float
    """When the last one ends."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which frames to decode: by number, from 0, or by the moments that they are shown at."""

    frames: Sequence[int] = ()
    seconds: Sequence[float] = ()

    def __len__(self) -> int:
        return len(self.frames) + len(self.seconds)


@dataclass(frozen=True, slots=True)
class Footage:
    """An encoded video, and which frames of it are wanted: all, unless `choose` says. Decoding waits until then."""

    data: bytes | memoryview
    choose: Callable[[VideoFacts], Wanted] | None = None
    max_pixels: int = MAX_PIXELS

    def load(self) -> Tensor:
        """Decode it; see `decode_video`."""
        return decode_video(self.data, self.choose, max_pixels=self.max_pixels)


@functools.cache
def require_torchcodec() -> Any:
    """The module `torchcodec.decoders`.

    Raises:
        ConfigError: it is not installed, does not fit this torch, or finds no FFmpeg.
    """
    try:
        from torchcodec import decoders
    except (ImportError, OSError, RuntimeError) as error:
        said = str(error).strip().splitlines()
        raise ConfigError(
            f"video is decoded by torchcodec, which cannot be imported ({said[0] if said else type(error).__name__}): "
            "pip install 'forebay[video]', and FFmpeg's libraries, such as Debian's package ffmpeg; where there is no "
            "CUDA, pip install 'torchcodec<0.14'"
        ) from error
    return decoders


def torchcodec_version() -> str | None:
    """Version of torchcodec; None when it cannot be used."""
    try:
        require_torchcodec()
    except ConfigError:
        return None
    return importlib.metadata.version("torchcodec")


def decode_video(
    data: bytes | memoryview,
    choose: Callable[[VideoFacts], Wanted] | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Decode a video, or some frames of it.

    Args:
        data: the encoded bytes.
        choose: told about the video, it says which frames are wanted; all when None.
        max_pixels: frames that have more pixels than this together are refused before anything is decoded.

    Returns:
        uint8 (frames, 3, H, W), RGB, each frame over channels_last memory.

    Raises:
        DecodeError: no decoder takes it, it is cut short or corrupt, or it claims too many pixels.
    """
    decoders = require_torchcodec()
    if not len(data):
        raise DecodeError("the video is 0 bytes long")
    try:
        decoder = decoders.VideoDecoder(bytes(data), num_ffmpeg_threads=1, seek_mode="exact")
        told = decoder.metadata
        facts = VideoFacts(told.num_frames, told.begin_stream_seconds, told.end_stream_seconds)
    except (RuntimeError, ValueError) as error:
        raise _undecodable(error, data) from error
    if not facts.num_frames or not told.height or not told.width:
        raise DecodeError(f"these {len(data)} bytes hold no frame of video")
    wanted = Wanted(range(facts.num_frames)) if choose is None else choose(facts)
    if len(wanted) * told.height * told.width > max_pixels:
        raise DecodeError(
            f"{len(wanted)} frames of {told.height} x {told.width} pixels are to be decoded, more than "
            f"max_pixels={max_pixels}; take fewer of them, T.RandomClip(frames=16), or raise max_pixels"
        )
    try:
        if wanted.seconds:
            frames = decoder.get_frames_played_at(seconds=list(wanted.seconds))
        else:
            frames = decoder.get_frames_at(indices=list(wanted.frames))
    except (RuntimeError, ValueError, IndexError) as error:
        raise _undecodable(error, data) from error
    pixels: Tensor = frames.data
    return pixels


def _undecodable(error: Exception, data: bytes | memoryview) -> Exception:
    said = str(error).strip().splitlines()
    if "allocate memory" in str(error):
        return MemoryError(str(error))
    return DecodeError(f"torchcodec does not take these {len(data)} bytes: {_WHERE.sub('', said[0]) if said else ''}")
