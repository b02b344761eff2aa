"""The scalars of a run for TensorBoard: loss by step, metrics, speed and stalls by epoch. It draws nothing itself."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from forebay.errors import ConfigError
from forebay.trainers.progress import NoProgress, TrainProgress
from forebay.trainers.report import EpochReport

__all__ = ["TensorBoardProgress"]


class TensorBoardProgress:
    """Writes what it is told to a folder that `tensorboard --logdir` shows, and passes it on.

    Args:
        folder: of this run.
        beside: who else is told, such as `ConsoleProgress()`; None means nobody.
        every_steps: steps from one loss that is written to the next: reading one waits for the device.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, beside: TrainProgress | None = None, every_steps: int = 10
    ) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("TensorBoard is not installed; pip install 'forebay[tensorboard]'") from error
        self._open = SummaryWriter
        self._folder = os.fspath(folder)
        self._beside = NoProgress() if beside is None else beside
        self._every_steps = every_steps
        self._writer: Any = None
        self._step = 0

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int) -> None:
        """Open the file, from the first epoch on."""
        if self._writer is None:
            self._writer = self._open(self._folder)
        self._step = epoch * steps + done
        self._beside.begin_epoch(epoch, epochs=epochs, steps=steps, done=done)

    def step(self, loss: Tensor) -> None:
        """Write the loss of every so many steps."""
        self._step += 1
        if self._step % self._every_steps == 0:
            self._writer.add_scalar("loss/step", loss.item(), self._step)
        self._beside.step(loss)

    def end_epoch(self, report: EpochReport) -> None:
        """Write what the epoch gave."""
        scalars = {
            "loss/epoch": report.loss,
            "speed/samples_per_s": report.samples_per_s,
            "stall/mean": report.stall_share,
            "stall/worst_rank": report.ranks[report.worst_rank].stall_share,
            **{f"validation/{name}": value for name, value in report.validation.items()},
        }
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, self._step)
        self._writer.flush()
        self._beside.end_epoch(report)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._beside.close()
