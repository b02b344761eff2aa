"""Where the time went in a script's loaders: a table for people, plain values for programs, and a line of advice.

It counts nothing itself; loaders made at the same line, such as one an epoch, count as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from forebay.cli.bench_tables import bench_table

if TYPE_CHECKING:
    from forebay.run_loader import LoaderRecord

__all__ = ["LoaderTime", "advice", "report", "sum_up"]

_LITTLE = 0.05
"""Waiting that is not worth a word, as a share of the time."""
_FULLY = 0.8
"""Workers that are busy for this share of the time set the pace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderTime:
    """The loaders that one line of the script made."""

    name: str
    made: int
    """How many."""
    workers: int
    """Of each; 0: samples are made in the training process."""
    samples: int
    batches: int
    seconds: float
    """From the first `next()` of each pass to the return of its last."""
    stall_s: float
    """Of these, seconds that `next()` kept the training loop waiting."""
    busy_s: float
    """Seconds that all workers together took to make the samples."""
    bad: int
    """Bad samples that were replaced."""

    @property
    def stall_share(self) -> float:
        """The share of time that training waited for data, 0 to 1."""
        return self.stall_s / self.seconds if self.seconds else 0.0

    @property
    def busy_share(self) -> float:
        """The share of time that the workers worked, 0 to 1."""
        return self.busy_s / (self.seconds * max(self.workers, 1)) if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, the shares included."""
        return dataclasses.asdict(self) | {"stall_share": self.stall_share, "busy_share": self.busy_share}


def sum_up(records: Iterable[LoaderRecord]) -> list[LoaderTime]:
    """Add up what was made by the same line; what gave no batch is left out."""
    times: dict[str, LoaderTime] = {}
    for record in records:
        stats = record.stats()
        if not stats.batches:
            continue
        before = times.get(record.name)
        times[record.name] = LoaderTime(
            name=record.name,
            made=1 + (before.made if before else 0),
            workers=record.workers,
            samples=stats.samples + (before.samples if before else 0),
            batches=stats.batches + (before.batches if before else 0),
            seconds=stats.seconds + (before.seconds if before else 0.0),
            stall_s=stats.stall_s + (before.stall_s if before else 0.0),
            busy_s=sum(stage.busy_s for stage in stats.stages.values()) + (before.busy_s if before else 0.0),
            bad=stats.bad_count + (before.bad if before else 0),
        )
    return list(times.values())


def advice(time: LoaderTime, *, cores: int) -> str:
    """What limits this loader, and what to try.

    Args:
        time: where it went.
        cores: that this process may use.
    """
    if time.stall_share < _LITTLE:
        return "the script hardly waited for it; a faster loader would gain nothing"
    if not time.workers:
        return f"its samples are made in the training process itself; give num_workers (there are {cores} cores)"
    if time.busy_share >= _FULLY:
        more = "more workers" if time.workers < cores else f"no more workers (there are {cores} cores)"
        return f"its workers are busy all the time; try {more} or less work a sample"
    return (
        "its workers were idle in between; persistent_workers=True saves their start in each epoch, and a larger "
        "prefetch_factor bridges slow samples"
    )


def report(times: list[LoaderTime], *, title: str, cores: int) -> Group | Text:
    """The table, and what to do about the loader that was waited for longest."""
    if not times:
        return Text(f"{title}: no torch DataLoader gave a batch in this process")
    table = bench_table(title, "samples", "samples/s", "waited for data", "workers busy")
    for time in times:
        table.add_row(
            f"{time.name}{f' ({time.made} of them)' if time.made > 1 else ''}",
            f"{time.samples:,}",
            f"{time.samples / time.seconds:,.0f}" if time.seconds else "",
            f"{time.stall_s:,.1f} s of {time.seconds:,.1f} ({time.stall_share:.0%})",
            f"{time.workers} × {time.busy_share:.0%}" if time.workers else "no workers",
        )
    slowest = max(times, key=lambda time: time.stall_s)
    return Group(table, Text(f"{slowest.name}: {advice(slowest, cores=cores)}."))
