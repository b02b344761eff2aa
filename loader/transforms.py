"""What may be done to a sample, declared: `from forebay import transforms as T`. A backend does it.

Sizes are (height, width) in pixels, an int means a square; what is for audio alone, and the clips of audio and video,
stand in `audio_transforms.py`. Random transforms draw from the sample's own numbers (see
`forebay.loader.randomness`), so a run repeats exactly on any number of threads and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch

from forebay.errors import ConfigError
from forebay.loader.audio_transforms import FixedClip, MelSpectrogram, Mono, Pad, RandomClip, Resample
from forebay.loader.column_statistics import ColumnStatistics, load_statistics
from forebay.loader.declared import Declared
from forebay.loader.mixing import BatchTransform, CutMix, MixUp
from forebay.loader.table_buckets import Bucketize, HashBucket
from forebay.loader.table_nulls import AsNaN, Fill, Mask
from forebay.loader.table_ragged import Jagged, Padded
from forebay.loader.table_saved import transforms_from_dict, transforms_to_dict
from forebay.loader.table_stack import Stack
from forebay.loader.table_transforms import Cast, Clip, ColumnTransform, Log1p, Standardize
from forebay.loader.vocabulary import Vocabulary

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AsNaN",
    "BatchTransform",
    "Bucketize",
    "Cast",
    "CenterCrop",
    "Clip",
    "ColumnStatistics",
    "ColumnTransform",
    "CutMix",
    "Declared",
    "Fill",
    "FixedClip",
    "From",
    "HashBucket",
    "Jagged",
    "Log1p",
    "Mask",
    "MelSpectrogram",
    "MixUp",
    "Mono",
    "Normalize",
    "Pad",
    "Padded",
    "RandomClip",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resample",
    "Resize",
    "Seeded",
    "Stack",
    "Standardize",
    "ToDtype",
    "Transform",
    "Vocabulary",
    "load_statistics",
    "transforms_from_dict",
    "transforms_to_dict",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Size = int | tuple[int, int]
LONGEST_SIDE = (1 << 16) - 1
"""As many pixels as a side of a JPEG may have."""


def _square(name: str, size: Any) -> tuple[int, int]:
    """`size` as (height, width)."""
    pair = (size, size) if isinstance(size, int) and not isinstance(size, bool) else size
    if not (isinstance(pair, Sequence) and len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)):
        raise ConfigError(f"{name}: size={size!r}; give pixels, as one int or (height, width)")
    if max(pair) > LONGEST_SIDE:
        raise ConfigError(f"{name}: size={size!r}; give at most {LONGEST_SIDE} pixels a side")
    return pair[0], pair[1]


def _bounds(name: str, what: str, values: Sequence[float], high: float) -> None:
    if not (len(values) == 2 and 0 < values[0] <= values[1] <= high):
        raise ConfigError(f"{name}: {what}={values!r}; give (low, high) with 0 < low <= high <= {high:g}")


@dataclass(frozen=True)
class Resize(Declared):
    """Resize, antialiased bilinear, to a fixed size or by the shorter side.

    Args:
        size: (height, width).
        shorter: pixels of the shorter side; the aspect ratio is kept. What torchvision's `Resize(256)` does.
    """

    size: tuple[int, int] | None = None
    _: KW_ONLY
    shorter: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            raise ConfigError(
                f"Resize({self.size}) is said by Resize(shorter={self.size}) (torchvision's meaning) or "
                f"Resize(({self.size}, {self.size}))"
            )
        if (self.size is None) == (self.shorter is None):
            raise ConfigError("Resize: give size=(height, width), or shorter=")
        _square("Resize", self.size if self.size is not None else self.shorter)


@dataclass(frozen=True)
class CenterCrop(Declared):
    """Take the window of `size` in the middle; smaller pictures are padded with black first, as in torchvision."""

    size: Size

    def __post_init__(self) -> None:
        _square("CenterCrop", self.size)

    @property
    def hw(self) -> tuple[int, int]:
        """Height and width."""
        return _square("CenterCrop", self.size)


@dataclass(frozen=True)
class RandomCrop(Declared):
    """Take a window of `size` anywhere.

    Args:
        size: of the window.
        padding: black pixels added at every edge first.
        pad_if_needed: also pad pictures that are still smaller than the window; otherwise they are an error.
    """

    size: Size
    _: KW_ONLY
    padding: int = 0
    pad_if_needed: bool = False
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _square("RandomCrop", self.size)
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ConfigError(f"RandomCrop: padding={self.padding}; give 0 or more pixels")

    @property
    def hw(self) -> tuple[int, int]:
        """Height and width."""
        return _square("RandomCrop", self.size)


@dataclass(frozen=True)
class RandomResizedCrop(Declared):
    """Take a window of random area and aspect ratio and resize it, as Inception and ResNet are trained.

    Args:
        size: of the result.
        scale: bounds of the window's share of the picture's area.
        ratio: bounds of its width / height.
    """

    size: Size
    _: KW_ONLY
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    draws: ClassVar[int] = 24  # six attempts; of pictures 3:2, one in two hundred needs more

    def __post_init__(self) -> None:
        _square("RandomResizedCrop", self.size)
        _bounds("RandomResizedCrop", "scale", self.scale, 1.0)
        _bounds("RandomResizedCrop", "ratio", self.ratio, float("inf"))

    @property
    def hw(self) -> tuple[int, int]:
        """Height and width."""
        return _square("RandomResizedCrop", self.size)


@dataclass(frozen=True)
class RandomHorizontalFlip(Declared):
    """Mirror left to right, with probability `p`."""

    p: float = 0.5
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"RandomHorizontalFlip: p={self.p}; give a probability from 0 to 1")


@dataclass(frozen=True)
class Normalize(Declared):
    """(x / 255 - mean) / std by channel, as float32; of a float picture (x - mean) / std. Masks stay as they are."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        sound = all(isinstance(values, Sequence) and len(values) == 3 for values in (self.mean, self.std))
        if not sound or not all(value > 0 for value in self.std):
            raise ConfigError(f"Normalize: mean={self.mean}, std={self.std}; give three of each, std above 0")


@dataclass(frozen=True)
class ToDtype(Declared):
    """Change the type of a picture. Masks stay as they are.

    Args:
        dtype: such as torch.float32 or torch.bfloat16.
        scale: also map uint8's 0 to 255 onto 0 to 1.
    """

    dtype: torch.dtype
    _: KW_ONLY
    scale: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"ToDtype: dtype={self.dtype!r}; give a torch.dtype, such as torch.float32")
        if self.scale and not self.dtype.is_floating_point:
            raise ConfigError(
                f"ToDtype: scale=True maps to 0 to 1, which {self.dtype} cannot hold; give a floating type"
            )


@dataclass(frozen=True)
class Seeded(Declared):
    """Wrap a callable that draws from the global generators (`random`, numpy, torch), such as torchvision's v2.

    Before each call the three are seeded from the sample's own numbers, so that a run repeats exactly. A loader needs
    worker processes for it (`num_workers=1` or more), since threads share those generators. Where a sample is asked
    for by index in the main process, the generators are put back afterwards.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, Declared):
            raise ConfigError(f"Seeded({self.function!r}): give a callable; declared transforms draw by themselves")


Transform = Declared | Callable[..., Any]
"""A declared transform, or a callable `f(x)` that does not draw, or `f(x, rng)` that draws from a numpy Generator."""


@dataclass(frozen=True)
class From:
    """Make an output from a column of another name: `{"view1": T.From("image", [...])}`."""

    column: str
    transforms: Sequence[Transform] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigError(f"From({self.column!r}, ...): the first argument is a column's name")
