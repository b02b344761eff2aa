"""Which declared transforms act on which kinds of columns, and the steps that a program on these columns consists of.

What a step does stands in `steps.py`, `audio_steps.py` and `video_steps.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from forebay.errors import ConfigError
from forebay.loader.audio import Recording, require_soundfile
from forebay.loader.audio_steps import AUDIO_TRANSFORMS, audio_shape, make_audio_step, values_of
from forebay.loader.audio_transforms import FixedClip, RandomClip
from forebay.loader.declared import Declared
from forebay.loader.steps import Step, make_step
from forebay.loader.transforms import Seeded, Transform
from forebay.loader.video import Footage, require_torchcodec
from forebay.loader.video_steps import make_video_clip
from forebay.sharding import Column, Kind

__all__ = [
    "PICTURES",
    "TIMED",
    "advice_for",
    "check_acts_on",
    "decoded_value",
    "encoded_value",
    "make_steps",
    "timed_shape",
]

PICTURES = (Kind.IMAGE, Kind.MASK)
TIMED = (Kind.AUDIO, Kind.VIDEO)
"""Kinds of which a stretch is decoded."""

_DECODERS: dict[Kind, Callable[[], Any]] = {Kind.AUDIO: require_soundfile, Kind.VIDEO: require_torchcodec}
_ADVICE = {
    Kind.AUDIO: '{"NAME": [T.Pad(1.0), T.RandomClip(1.0), T.Mono(), T.Resample(16000)]}',
    Kind.VIDEO: '{"NAME": [T.RandomClip(frames=16), T.Resize((224, 224))]}',
}


def check_acts_on(transform: Declared, columns: Sequence[Column]) -> None:
    """See that a declared transform acts on columns of these kinds.

    Raises:
        ConfigError: it does not; names transform and column.
    """
    if isinstance(transform, FixedClip | RandomClip):
        kinds: tuple[Kind, ...] = (Kind.AUDIO,) if transform.seconds is not None else (Kind.VIDEO,)
    elif isinstance(transform, AUDIO_TRANSFORMS):
        kinds = (Kind.AUDIO,)
    else:
        kinds = (*PICTURES, Kind.VIDEO, *((Kind.AUDIO,) if isinstance(transform, Seeded) else ()))
    wrong = next((column for column in columns if column.kind not in kinds), None)
    if wrong is None:
        return
    said = type(transform).__name__
    if isinstance(transform, FixedClip | RandomClip):
        said += "(seconds)" if transform.seconds is not None else "(frames=)"
    named = " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
    raise ConfigError(
        f"{said} acts on {named} columns, and {wrong.name!r} is {wrong.spec}; a callable f(x) acts on any"
    )


def make_steps(columns: Sequence[Column], transforms: Sequence[Transform]) -> list[Step]:
    """The steps of a program.

    Raises:
        ConfigError: what decodes a column is not installed, audio or video share their transforms with other columns,
            or frames of a video are chosen after something was done to them.
    """
    timed = [column for column in columns if column.kind in TIMED]
    if not timed:
        return [make_step(transform) for transform in transforms]
    if len(columns) > 1:
        raise ConfigError(
            f"{timed[0].name!r} is {timed[0].spec}, which shares no transforms with other columns; give each a list of "
            "its own"
        )
    _DECODERS[timed[0].kind]()
    if timed[0].kind is Kind.AUDIO:
        return [make_audio_step(transform) for transform in transforms]
    steps: list[Step] = []
    for transform in transforms:
        if isinstance(transform, FixedClip | RandomClip):
            if steps:
                raise ConfigError(f"{type(transform).__name__} of a video comes first, before any other transform")
            steps.append(make_video_clip(transform))
        else:
            steps.append(make_step(transform))
    return steps


def encoded_value(kind: Kind, data: Any, max_pixels: int) -> Recording | Footage:
    """What the first step of a program on audio or video takes, of what was read."""
    if isinstance(data, Recording):
        return data
    return Recording(data) if kind is Kind.AUDIO else Footage(data, max_pixels=max_pixels)


def decoded_value(value: Any, place: Tensor | None = None) -> Any:
    """Audio and video decoded, as far as that is still to be done; whatever else a callable made, as it is.

    Args:
        value: of a program on audio or video, after some of its steps.
        place: where audio may be decoded to, if it is of that shape.
    """
    return value.load() if isinstance(value, Footage) else values_of(value, place)


def timed_shape(kind: Kind, transforms: Sequence[Transform], steps: Sequence[Step]) -> tuple[int, ...] | None:
    """Shape of every sample of audio or video after these; None where samples may differ."""
    if kind is Kind.AUDIO:
        return audio_shape(transforms)
    size: tuple[int, int] | None = None
    frames: int | None = None
    for transform, step in zip(transforms, steps, strict=True):
        if step.opaque:
            return None
        if isinstance(transform, FixedClip | RandomClip):
            frames = transform.frames
        size = step.size_after(size)
    return None if frames is None or size is None else (frames, 3, *size)


def advice_for(kind: Kind, name: str) -> str:
    """Transforms that make samples of a column equal in shape, as one would declare them."""
    picture = '{"NAME": [T.Resize(shorter=256), T.CenterCrop(224)]}'
    return _ADVICE.get(kind, picture).replace('"NAME"', repr(name))
