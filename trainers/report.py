"""What a training run tells: loss, metrics, speed, and how long it waited for data, by rank, by epoch and in all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from forebay.loader import LoaderStats

__all__ = ["EpochReport", "RankTime", "TrainReport", "overlap_efficiency", "rank_time"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTime:
    """Where the time of one rank went during an epoch, or the part of it after a resume."""

    samples: int
    """Samples that its loader gave."""
    steps: int
    """Optimizer steps."""
    seconds: float
    """Time of the training loop, without validation."""
    stall_s: float
    """Of these, seconds that it waited for data."""
    load_s: float
    """Seconds that loading would take by itself: the work of its slowest stage over that stage's threads."""

    @property
    def step_s(self) -> float:
        """Seconds a step, without the wait for data."""
        return (self.seconds - self.stall_s) / max(self.steps, 1)

    @property
    def stall_share(self) -> float:
        """The share of time that training waited for data, 0 to 1."""
        return self.stall_s / self.seconds if self.seconds else 0.0

    @property
    def overlap(self) -> float:
        """How much of the shorter one, loading or stepping, the longer one hid."""
        return overlap_efficiency(load_s=self.load_s, step_s=self.seconds - self.stall_s, seconds=self.seconds)


def overlap_efficiency(*, load_s: float, step_s: float, seconds: float) -> float:
    """(load + step - time) / min(load, step): 1 when the shorter one was free, 0 when they took turns."""
    shorter = min(load_s, step_s)
    return min((load_s + step_s - seconds) / shorter, 1.0) if shorter > 0 else 1.0


def rank_time(before: LoaderStats, after: LoaderStats, *, seconds: float, steps: int) -> RankTime:
    """What passed between two looks at a loader's statistics."""
    pace = [
        (stage.busy_s - before.stages[name].busy_s) / max(stage.threads, 1)
        for name, stage in after.stages.items()
        if name in before.stages
    ]
    return RankTime(
        samples=after.samples - before.samples,
        steps=steps,
        seconds=seconds,
        stall_s=after.stall_s - before.stall_s,
        load_s=max(pace, default=0.0),
    )


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
    ranks: tuple[RankTime, ...]
    """The time of each rank."""

    @classmethod
    def of_ranks(
        cls, ranks: Sequence[RankTime], *, epoch: int, loss: float, validation: Mapping[str, float], data_ranks: int
    ) -> Self:
        """Put together what the ranks measured, of which `data_ranks` had different samples."""
        samples = sum(each.samples for each in ranks) * data_ranks // len(ranks)
        return cls(epoch=epoch, loss=loss, validation=validation, samples=samples, ranks=tuple(ranks))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of a report."""
        return cls(**{**values, "ranks": tuple(RankTime(**each) for each in values["ranks"])})

    @property
    def seconds(self) -> float:
        """Time of the training loop, without validation; the mean of the ranks."""
        return sum(each.seconds for each in self.ranks) / len(self.ranks)

    @property
    def samples_per_s(self) -> float:
        """Training samples a second, of all ranks together."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def stall_share(self) -> float:
        """The share of time that training waited for data, 0 to 1; the mean of the ranks."""
        seconds = sum(each.seconds for each in self.ranks)
        return sum(each.stall_s for each in self.ranks) / seconds if seconds else 0.0

    @property
    def worst_rank(self) -> int:
        """The rank that waited longest for data: it keeps the others waiting too."""
        return max(range(len(self.ranks)), key=lambda rank: self.ranks[rank].stall_s)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, the derived figures included."""
        values = dataclasses.asdict(self)
        for told, each in zip(values["ranks"], self.ranks, strict=True):
            told.update(step_s=each.step_s, stall_share=each.stall_share, overlap=each.overlap)
        return values | {
            "seconds": self.seconds,
            "samples_per_s": self.samples_per_s,
            "stall_share": self.stall_share,
            "worst_rank": self.worst_rank,
        }

    def __str__(self) -> str:
        metrics = "".join(f"   {name} {value:.4g}" for name, value in self.validation.items() if name != "loss")
        worst = self.ranks[self.worst_rank]
        at_most = f", rank {self.worst_rank} {worst.stall_share:.1%}" if len(self.ranks) > 1 else ""
        return (
            f"epoch {self.epoch + 1}   loss {self.loss:.4f}{metrics}   {self.samples_per_s:,.0f} samples/s   "
            f"step {worst.step_s * 1000:.3g} ms   waited {self.stall_share:.1%}{at_most}"
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
        return {
            "epochs": [epoch.to_dict() for epoch in self.epochs],
            "first_step": self.first_step,
            "losses": list(self.losses),
            "samples_per_s": self.samples_per_s,
            "stall_share": self.stall_share,
        }

    def __str__(self) -> str:
        lines = [str(epoch) for epoch in self.epochs]
        return "\n".join(
            [*lines, f"{self.samples_per_s:,.0f} samples/s, training waited {self.stall_share:.1%} of the time"]
        )
