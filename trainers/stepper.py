"""What the loop asks of a trainer: how its model is stepped, measured and saved. It is a protocol and does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from forebay.loader import DataLoader
from forebay.trainers.batch import Fed

__all__ = ["Stepper"]


class Stepper(Protocol):
    """How a model is stepped and measured: all that the trainers differ in. Called on every rank alike."""

    update_size: int
    """Batches a step."""

    def begin(self) -> None:
        """The ranks are joined: move the model, wrap it, cut it."""

    def step(self, batches: Iterator[Fed], count: int) -> Tensor:
        """One optimizer step on the next `count` batches; the mean of their weighted losses, on the device."""

    def validate(self, loader: DataLoader) -> dict[str, float]:
        """Exact means over the samples of all ranks, the same on every rank."""

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors by name, to be loaded in place, and plain values. The tensors' names are the same on any topology."""

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Take both back."""

    def end(self) -> None:
        """Let go of what `begin` made. Called also after a `begin` that failed."""
