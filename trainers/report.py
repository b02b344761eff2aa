"""What a training run tells: loss, metrics, speed, and how long it waited for data, by epoch and in all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["EpochReport", "TrainReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """One epoch, over all ranks. Of an epoch that was resumed in the middle: loss of all of it, speed of the rest."""

    epoch: int
    """Counted from 0."""
    loss: float
    """Mean of the steps' losses."""
    validation: Mapping[str, float]
    """Mean over the validation samples of the loss ("loss") and of each metric; empty without validation."""
    samples: int
    """Training samples in `seconds`."""
    seconds: float
    """Time of the training loop, without validation."""
    stall_share: float
    """The share of `seconds` that training waited for data, 0 to 1; the mean of the ranks."""

    @property
    def samples_per_s(self) -> float:
        """Training samples a second, of all ranks together."""
        return self.samples / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        metrics = "".join(f"   {name} {value:.4g}" for name, value in self.validation.items() if name != "loss")
        return (
            f"epoch {self.epoch + 1}   loss {self.loss:.4f}{metrics}   {self.samples_per_s:,.0f} samples/s   "
            f"waited {self.stall_share:.1%}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainReport:
    """A whole run, over all ranks; equal on every rank."""

    epochs: tuple[EpochReport, ...]
    """Each epoch, those before a resume included."""
    first_step: int
    """The step that this process began with: 0, or where a checkpoint left off."""
    losses: tuple[float, ...]
    """Loss of each step from `first_step` on, the mean of the ranks."""

    @property
    def samples_per_s(self) -> float:
        """Training samples a second, of all ranks together."""
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return sum(epoch.samples for epoch in self.epochs) / seconds if seconds else 0.0

    @property
    def stall_share(self) -> float:
        """The share of time that training waited for data, 0 to 1."""
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return sum(epoch.stall_share * epoch.seconds for epoch in self.epochs) / seconds if seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, the derived figures included."""
        values = dataclasses.asdict(self)
        for told, epoch in zip(values["epochs"], self.epochs, strict=True):
            told["samples_per_s"] = epoch.samples_per_s
        return values | {"samples_per_s": self.samples_per_s, "stall_share": self.stall_share}

    def __str__(self) -> str:
        lines = [str(epoch) for epoch in self.epochs]
        return "\n".join(
            [*lines, f"{self.samples_per_s:,.0f} samples/s, training waited {self.stall_share:.1%} of the time"]
        )
