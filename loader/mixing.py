"""Transforms of whole batches: pictures and labels of one rank's batch mixed with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from forebay.errors import ConfigError
from forebay.sharding import Kind, Schema

__all__ = ["BatchTransform", "CutMix", "MixUp"]


@runtime_checkable
class BatchTransform(Protocol):
    """Acts on a batch of this rank, with a generator keyed by (seed, epoch, batch, rank)."""

    def check(self, schema: Schema) -> None:
        """Refuse, with ConfigError, a data set that it cannot act on."""

    def __call__(self, batch: Mapping[str, Any], rng: np.random.Generator, schema: Schema) -> dict[str, Any]:
        """The mixed batch: new tensors where something changed."""


@dataclass(frozen=True)
class _Mixing:
    """What MixUp and CutMix share: which outputs, and labels as shares of classes.

    Args:
        alpha: of the Beta(alpha, alpha) that the share is drawn from.
        num_classes: None takes them from the label column's class names.
        image: name of the image output.
        label: name of the label output; becomes float32 (B, num_classes).
    """

    alpha: float
    _: KW_ONLY
    num_classes: int | None = None
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ConfigError(f"{type(self).__name__}({self.alpha}): alpha is above 0")
        if self.num_classes is not None and self.num_classes < 1:
            raise ConfigError(f"{type(self).__name__}: num_classes={self.num_classes}; give 1 or more")

    def check(self, schema: Schema) -> None:
        """See `BatchTransform`."""
        self._classes(schema)

    def _classes(self, schema: Schema) -> int:
        if self.num_classes is not None:
            return self.num_classes
        column = next((column for column in schema.columns if column.name == self.label), None)
        if column is None or column.kind is not Kind.SCALAR or column.classes is None:
            raise ConfigError(
                f"{type(self).__name__}: the number of classes of {self.label!r} is not known: its column has no class "
                f"names; give num_classes="
            )
        return len(column.classes)

    def _shares(self, batch: Mapping[str, Any], schema: Schema) -> Tensor:
        label = self._tensor(batch, self.label)
        if label.ndim == 2:  # mixed before
            return label
        classes = self._classes(schema)
        if len(label) and not 0 <= int(label.min()) <= int(label.max()) < classes:
            raise ConfigError(
                f"{type(self).__name__}: {self.label!r} has labels from {int(label.min())} to {int(label.max())}, and "
                f"num_classes={classes}; give num_classes={int(label.max()) + 1} or more, and no label below 0"
            )
        return torch.nn.functional.one_hot(label.long(), classes).to(torch.float32)

    def _tensor(self, batch: Mapping[str, Any], name: str) -> Tensor:
        value = batch.get(name)
        if not isinstance(value, Tensor):
            raise ConfigError(f"{type(self).__name__}: the batch has no tensor {name!r}; it has {sorted(batch)}")
        return value


class MixUp(_Mixing):
    """Blend each sample with another one of the batch (Zhang et al., *mixup*, 2018). Pictures must be floating."""

    def __call__(self, batch: Mapping[str, Any], rng: np.random.Generator, schema: Schema) -> dict[str, Any]:
        """See `BatchTransform`."""
        image, shares = self._tensor(batch, self.image), self._shares(batch, schema)
        if not image.is_floating_point():
            raise ConfigError(f"MixUp blends floating pictures, and {self.image!r} is {image.dtype}; add T.Normalize()")
        share = float(rng.beta(self.alpha, self.alpha))
        other = torch.from_numpy(rng.permutation(len(image)))
        return {
            **batch,
            self.image: torch.lerp(image[other].to(image.dtype), image, share),
            self.label: torch.lerp(shares[other], shares, share),
        }


class CutMix(_Mixing):
    """Paste a window of another sample of the batch into each (Yun et al., *CutMix*, 2019)."""

    def __call__(self, batch: Mapping[str, Any], rng: np.random.Generator, schema: Schema) -> dict[str, Any]:
        """See `BatchTransform`."""
        image, shares = self._tensor(batch, self.image), self._shares(batch, schema)
        height, width = image.shape[-2:]
        side = np.sqrt(1.0 - rng.beta(self.alpha, self.alpha))
        y, x = int(rng.integers(height)), int(rng.integers(width))
        half_h, half_w = int(height * side) // 2, int(width * side) // 2
        top, bottom = max(y - half_h, 0), min(y + half_h, height)
        left, right = max(x - half_w, 0), min(x + half_w, width)
        share = 1.0 - float((bottom - top) * (right - left)) / (height * width)
        other = torch.from_numpy(rng.permutation(len(image)))
        mixed = image.clone(memory_format=torch.preserve_format)
        mixed[..., top:bottom, left:right] = image[other][..., top:bottom, left:right]
        return {**batch, self.image: mixed, self.label: torch.lerp(shares[other], shares, share)}
