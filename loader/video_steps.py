"""Declared clips of videos as steps: which frames are decoded. What is done to them then are the steps of pictures."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from forebay.loader.audio_transforms import FixedClip, RandomClip
from forebay.loader.draws import Numbers
from forebay.loader.steps import Outs, Step
from forebay.loader.video import Footage, VideoFacts, Wanted

__all__ = ["make_video_clip"]


class _VideoClip(Step):
    """Chooses frames. The first step of a program, if any."""

    hears_encoded = True

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        footage: Footage = values[0]
        return [replace(footage, choose=functools.partial(self._wanted, numbers))]

    def _wanted(self, numbers: Numbers, facts: VideoFacts) -> Wanted:
        raise NotImplementedError


class _RandomVideoClip(_VideoClip):
    name = "RandomClip"
    draws = RandomClip.draws

    def __init__(self, transform: RandomClip) -> None:
        assert transform.frames is not None
        self._frames, self._every, self._every_s = transform.frames, transform.every or 1, transform.every_s

    def _wanted(self, numbers: Numbers, facts: VideoFacts) -> Wanted:
        share = numbers.first()[0]
        if self._every_s is not None:
            room_s = facts.end_s - facts.begin_s - (self._frames - 1) * self._every_s
            if room_s <= 0:
                raise ValueError(_too_short("RandomClip", facts, f"more than {(self._frames - 1) * self._every_s:g} s"))
            begin_s = facts.begin_s + share * room_s
            return Wanted(seconds=[begin_s + k * self._every_s for k in range(self._frames)])
        span = (self._frames - 1) * self._every + 1
        if span > facts.num_frames:
            raise ValueError(_too_short("RandomClip", facts, f"{span} frames"))
        begin = int(share * (facts.num_frames - span + 1))
        return Wanted(range(begin, begin + span, self._every))


class _FixedVideoClip(_VideoClip):
    name = "FixedClip"

    def __init__(self, transform: FixedClip) -> None:
        assert transform.frames is not None
        self._frames, self._every, self._every_s = transform.frames, transform.every or 1, transform.every_s
        self._start, self._start_s = transform.start or 0, transform.start_s or 0.0

    def _wanted(self, numbers: Numbers, facts: VideoFacts) -> Wanted:
        if self._every_s is not None:
            last_s = self._start_s + (self._frames - 1) * self._every_s
            if last_s >= facts.end_s - facts.begin_s:
                raise ValueError(_too_short("FixedClip", facts, f"more than {last_s:g} s"))
            begin_s = facts.begin_s + self._start_s
            return Wanted(seconds=[begin_s + k * self._every_s for k in range(self._frames)])
        end = self._start + (self._frames - 1) * self._every + 1
        if end > facts.num_frames:
            raise ValueError(_too_short("FixedClip", facts, f"{end} frames"))
        return Wanted(range(self._start, end, self._every))


def _too_short(name: str, facts: VideoFacts, needed: str) -> str:
    return (
        f"a video of {facts.num_frames} frames, {facts.end_s - facts.begin_s:.3f} s, is too short for {name}, which "
        f"needs {needed}; take fewer frames, or leave short videos out"
    )


def make_video_clip(transform: FixedClip | RandomClip) -> Step:
    """The step that does what `transform` declares."""
    return _FixedVideoClip(transform) if isinstance(transform, FixedClip) else _RandomVideoClip(transform)
