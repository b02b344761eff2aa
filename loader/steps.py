"""Declared transforms as steps of the library backend: what each knows beforehand, and what it does to one sample.

Values are pictures (1, C, H, W) over channels_last memory, masks with one channel; or anything, for callables on other
columns. All values of a step share its geometry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.loader import pixels
from forebay.loader.draws import Draws, Numbers
from forebay.loader.geometry import Ints, Views
from forebay.loader.randomness import generator, seeded_globals
from forebay.loader.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Seeded,
    ToDtype,
    Transform,
)
from forebay.loader.windows import (
    Window,
    central_window,
    random_resized_window,
    random_resized_windows,
    random_window,
    scaled_size,
)

__all__ = ["Step", "make_step"]

HW = tuple[int, int]
Outs = Sequence[Tensor | None] | None


class Step:
    """One transform. Thread-safe: it keeps nothing between calls."""

    name: str
    draws: int = 0
    """Numbers that it needs for each sample."""
    opaque: bool = False
    """Whether nothing is known of what it returns, nor whether it changes what it is given."""
    needs_process: bool = False
    """Whether it draws from generators that all threads of a process share."""
    resizes: bool = False
    """Whether it interpolates pictures, which torch does for uint8, float32 and float64."""
    crops: bool = False
    """Whether it takes a part of what is seen."""
    flips: bool = False
    """Whether it may mirror."""
    pointwise: bool = False
    """Whether it changes single values, each by itself, and leaves them where they are."""
    hears_encoded: bool = False
    """Whether it takes audio and video as they are before decoding."""
    described: tuple[str | int | None, ...] | None = None
    """Of geometry that is the same in every epoch, what it does; else None."""

    def size_after(self, size: HW | None) -> HW | None:
        """Height and width of every sample after it, given those before it."""
        return size

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        """What is seen after it, as step k, for geometry; None where `Views` cannot say that."""
        return None

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        """The type of pictures after it."""
        return dtype

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        """Do it. `out` is where the last step may write its pictures (1, 3, H, W) directly."""
        raise NotImplementedError


class _Resize(Step):
    resizes = True

    def __init__(self, transform: Resize) -> None:
        self.name = "Resize"
        self._size, self._shorter = transform.size, transform.shorter
        self.described = ("Resize", *(self._size or (None, None)), self._shorter)

    def size_after(self, size: HW | None) -> HW | None:
        if self._size is not None:
            return self._size
        return None if size is None or self._shorter is None else scaled_size(*size, self._shorter)

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        if self._size is not None:
            return views.resize(self._size)
        heights, widths = _for_each(views, lambda height, width, _: scaled_size(height, width, self._shorter or 1))
        return views.resize((heights, widths))

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        height, width = values[0].shape[2:]
        size = self._size or scaled_size(height, width, self._shorter or 1)
        return _resized(values, masks, size)


class _CenterCrop(Step):
    crops = True

    def __init__(self, transform: CenterCrop) -> None:
        self.name = "CenterCrop"
        self._size = transform.hw
        self.described = ("CenterCrop", *self._size)

    def size_after(self, size: HW | None) -> HW | None:
        return self._size

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        return views.crop(*_for_each(views, lambda height, width, _: central_window(height, width, self._size)))

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        values = _padded_to(values, self._size)
        height, width = values[0].shape[2:]
        window = central_window(height, width, self._size)
        return [pixels.crop(value, window) for value in values]


class _RandomCrop(Step):
    crops = True
    draws = RandomCrop.draws

    def __init__(self, transform: RandomCrop) -> None:
        self.name = "RandomCrop"
        self._size = transform.hw
        self._transform = transform

    def size_after(self, size: HW | None) -> HW | None:
        return self._size

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        if self._transform.padding:
            return None
        windows = _for_each(
            views, lambda height, width, i: random_window(height, width, self._size, Numbers(draws, k, i).first())
        )
        return views.crop(*windows)

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        edge = self._transform.padding
        if edge:
            values = [pixels.pad(value, (edge, edge, edge, edge)) for value in values]
        if (
            self._transform.pad_if_needed
        ):  # as torchvision does: all that is missing on both sides, so the place is random
            height, width = values[0].shape[2:]
            y, x = max(self._size[0] - height, 0), max(self._size[1] - width, 0)
            values = [pixels.pad(value, (x, y, x, y)) for value in values] if x or y else values
        height, width = values[0].shape[2:]
        if height < self._size[0] or width < self._size[1]:
            raise ValueError(
                f"a picture of {height} x {width} pixels is smaller than RandomCrop{self._size}; resize first, or pass "
                "pad_if_needed=True"
            )
        window = random_window(height, width, self._size, numbers.first())
        return [pixels.crop(value, window) for value in values]


class _RandomResizedCrop(Step):
    draws = RandomResizedCrop.draws
    resizes = True

    def __init__(self, transform: RandomResizedCrop) -> None:
        self.name = "RandomResizedCrop"
        self._size = transform.hw
        self._scale, self._ratio = transform.scale, transform.ratio

    def size_after(self, size: HW | None) -> HW | None:
        return self._size

    def _window(self, height: int, width: int, numbers: Numbers) -> Window:
        return random_resized_window(height, width, scale=self._scale, ratio=self._ratio, numbers=numbers.block)

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        windows = random_resized_windows(
            views.down.out,
            views.across.out,
            scale=self._scale,
            ratio=self._ratio,
            first=draws.first(k)[views.samples],
            more=lambda which, count: draws.more(k, views.samples[which], count),
        )
        return views.crop(*windows).resize(self._size)

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        height, width = values[0].shape[2:]
        window = self._window(height, width, numbers)
        return _resized([pixels.crop(value, window) for value in values], masks, self._size)


class _RandomHorizontalFlip(Step):
    flips = True
    draws = RandomHorizontalFlip.draws

    def __init__(self, transform: RandomHorizontalFlip) -> None:
        self.name = "RandomHorizontalFlip"
        self._p = transform.p

    def trace(self, views: Views, draws: Draws, k: int) -> Views | None:
        return views.flip(draws.first(k)[views.samples, 0] < self._p)

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        return [pixels.flip(value) for value in values] if numbers.first()[0] < self._p else values


class _Normalize(Step):
    pointwise = True

    def __init__(self, transform: Normalize) -> None:
        self.name = "Normalize"
        self._shift = tuple(-mean / std for mean, std in zip(transform.mean, transform.std, strict=True))
        self._scale = tuple(1 / std for std in transform.std)
        self._scale_255 = tuple(1 / (255 * std) for std in transform.std)

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        done = []
        for k, (value, mask) in enumerate(zip(values, masks, strict=True)):
            if mask:
                done.append(value)
                continue
            slot = out[k] if out is not None else None
            if slot is None:
                n, c, h, w = value.shape
                target = torch.empty((n, h, w, c), dtype=torch.float32, device=value.device).permute(0, 3, 1, 2)
            else:
                target = slot
            scale = self._scale if value.is_floating_point() else self._scale_255
            pixels.normalize(value, target, scale, self._shift)
            done.append(target)
        return done


class _ToDtype(Step):
    pointwise = True

    def __init__(self, transform: ToDtype) -> None:
        self.name = "ToDtype"
        self._dtype, self._scaled = transform.dtype, transform.scale

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        return [value if mask else self._convert(value) for value, mask in zip(values, masks, strict=True)]

    def _convert(self, value: Tensor) -> Tensor:
        if self._scaled and not value.is_floating_point():
            return value.to(torch.float32).div_(255).to(self._dtype)
        return value.to(self._dtype)


class _Call(Step):
    """A user's callable: gets and gives (3, H, W) pictures and (H, W) masks, as one value or as a tuple."""

    opaque = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"callable {getattr(function, '__qualname__', type(function).__qualname__)}"
        self._function = function
        self._draws_itself = _wants_generator(function)

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        seen = (
            [value[0, 0] if mask else value[0] for value, mask in zip(values, masks, strict=True)] if masks else values
        )
        argument = seen[0] if len(seen) == 1 else tuple(seen)
        if self._draws_itself:
            index, occurrence = numbers.sample
            result = self._function(argument, generator(numbers.key, index=index, occurrence=occurrence))
        else:
            result = self._function(argument)
        if result is None:
            raise TypeError(f"{self.name} returned None; a transform returns what it made")
        results = [result] if len(values) == 1 else list(result)
        if len(results) != len(values):
            raise ValueError(f"{self.name} returned {len(results)} values for {len(values)} outputs")
        if not masks:
            return results
        return [_as_picture(value, mask) for value, mask in zip(results, masks, strict=True)]


class _SeededCall(_Call):
    """A callable that draws from the global generators, which are seeded for each sample."""

    needs_process = True

    def __init__(self, transform: Seeded) -> None:
        super().__init__(transform.function)
        self._draws_itself = False

    def run(self, values: list[Any], masks: tuple[bool, ...], numbers: Numbers, out: Outs) -> list[Any]:
        index, occurrence = numbers.sample
        with seeded_globals(generator(numbers.key, index=index, occurrence=occurrence)):
            return super().run(values, masks, numbers, out)


def _for_each(views: Views, of_one: Callable[[int, int, int], tuple[int, ...]]) -> Ints:
    """int64 (m, n): what a rule makes of the height and width seen of each picture, and of its place in the batch.

    The rules are those of single pictures, so that every path has the same.
    """
    sides = zip(views.down.out.tolist(), views.across.out.tolist(), views.samples.tolist(), strict=True)
    return np.array(list(starmap(of_one, sides)), np.int64).T


def _as_picture(value: Any, mask: bool) -> Any:
    """A callable's picture as the next step takes it; anything else as it is."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor) and value.ndim == (2 if mask else 3):
        return value[None, None] if mask else value[None]
    return value


def _wants_generator(function: Callable[..., Any]) -> bool:
    """Whether a callable has two required positional parameters: `f(x, rng)`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) == 2


def _resized(values: list[Any], masks: tuple[bool, ...], size: HW) -> list[Any]:
    return [
        pixels.resize_nearest(value, size) if mask else pixels.resize(value, size)
        for value, mask in zip(values, masks, strict=True)
    ]


def _padded_to(values: list[Any], size: HW) -> list[Any]:
    """Add black edges to pictures smaller than `size`, as torchvision does: half on each side, the odd pixel after."""
    height, width = values[0].shape[2:]
    missing_h, missing_w = max(size[0] - height, 0), max(size[1] - width, 0)
    if not missing_h and not missing_w:
        return values
    edges = missing_w // 2, missing_h // 2, (missing_w + 1) // 2, (missing_h + 1) // 2
    return [pixels.pad(value, edges) for value in values]


_STEPS: dict[type, Callable[[Any], Step]] = {
    Resize: _Resize,
    CenterCrop: _CenterCrop,
    RandomCrop: _RandomCrop,
    RandomResizedCrop: _RandomResizedCrop,
    RandomHorizontalFlip: _RandomHorizontalFlip,
    Normalize: _Normalize,
    ToDtype: _ToDtype,
    Seeded: _SeededCall,
}


def make_step(transform: Transform) -> Step:
    """The step that does what `transform` declares.

    Raises:
        ConfigError: nothing here can do it.
    """
    maker = _STEPS.get(type(transform))
    return maker(transform) if maker is not None else _Call(transform)  # type: ignore[arg-type]  # callables are checked
