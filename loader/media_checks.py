"""Whether recordings and videos decode, for commands that write or verify them. It keeps nothing of what it decodes."""

from __future__ import annotations

from forebay.loader.audio import decode_audio
from forebay.loader.video import VideoFacts, Wanted, decode_video

__all__ = ["check_audio", "check_video"]

_STRETCH = 1 << 22
"""Frames of audio that are decoded at once."""


def check_audio(data: bytes | memoryview, *, header_only: bool = False) -> None:
    """Decode a recording, stretch by stretch, or look at its header only.

    Raises:
        ConfigError: soundfile is not installed.
        DecodeError: it does not decode.
    """
    total = 0

    def stretch(first: int, frames: int, rate: int) -> tuple[int, int]:
        nonlocal total
        total = frames
        return first, 0 if header_only else min(_STRETCH, frames - first)

    first = 0
    while True:
        begin = first
        decode_audio(data, (lambda frames, rate: stretch(begin, frames, rate),))  # noqa: B023 - called at once
        first += _STRETCH
        if header_only or first >= total:
            return


def check_video(data: bytes | memoryview, *, header_only: bool = False) -> None:
    """Look at all packets of a video and decode its first frame and its last, or look at the packets only.

    Raises:
        ConfigError: torchcodec cannot be used.
        DecodeError: it does not decode.
    """

    def ends(facts: VideoFacts) -> Wanted:
        return Wanted((0,) if header_only else (0, facts.num_frames - 1))

    decode_video(data, ends)
