"""What a person sees while a model trains: a bar for the epoch at hand, a line for each one that is done."""

from __future__ import annotations

import time
from typing import Protocol

import rich.progress
from rich.console import Console
from torch import Tensor

from forebay.trainers.report import EpochReport

__all__ = ["ConsoleProgress", "NoProgress", "TrainProgress"]

_REFRESH_S = 0.25


class TrainProgress(Protocol):
    """Told how training goes, on rank 0 alone, from the training loop: so answer quickly."""

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int) -> None:
        """An epoch of `steps` steps begins; `done` of them were done before a resume."""

    def step(self, loss: Tensor) -> None:
        """A step is done. To read `loss` waits for the device: do it now and then."""

    def end_epoch(self, report: EpochReport) -> None:
        """The epoch and its validation are done."""

    def close(self) -> None:
        """Training ended or failed, perhaps in mid-epoch. Called once more than needed does nothing."""


class NoProgress:
    """Tells nobody."""

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int) -> None:
        """Do nothing."""

    def step(self, loss: Tensor) -> None:
        """Do nothing."""

    def end_epoch(self, report: EpochReport) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ConsoleProgress:
    """A bar with loss and time left on standard error, and a line for each finished epoch."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(stderr=True, highlight=False) if console is None else console
        self._bar: rich.progress.Progress | None = None
        self._task = rich.progress.TaskID(0)
        self._next_refresh = 0.0

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int) -> None:
        """Show the bar."""
        self.close()
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[loss]}"),
            rich.progress.TimeRemainingColumn(),
            console=self.console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task(f"epoch {epoch + 1}/{epochs}", total=steps, completed=done, loss="")
        if self.console.is_terminal:
            self._bar.start()

    def step(self, loss: Tensor) -> None:
        """Move the bar on, four times a second at most."""
        assert self._bar is not None
        self._bar.advance(self._task)
        now = time.monotonic()
        if self.console.is_terminal and now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_S
            self._bar.update(self._task, loss=f"loss {loss.item():.3f}")
            self._bar.refresh()

    def end_epoch(self, report: EpochReport) -> None:
        """Replace the bar by a line."""
        self.close()
        self.console.print(str(report))

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None and self.console.is_terminal:
            self._bar.stop()
        self._bar = None
