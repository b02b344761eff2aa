"""The loop of both trainers: epochs, steps, validation, checkpoints, resume, and how a run ends.

What a step is, the stepper says; the loop knows no model. A run that was killed goes on by itself and repeats the
losses of the run that was not.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import torch
from torch import Tensor

from forebay.errors import ConfigError, LossError
from forebay.loader import DataLoader, ShardDataset
from forebay.trainers.batch import feed
from forebay.trainers.checkpoint import Checkpoints
from forebay.trainers.checkpoint_folder import CheckpointConfig
from forebay.trainers.failure import first_error_in_front
from forebay.trainers.interrupt import StopRequest
from forebay.trainers.progress import ConsoleProgress, NoProgress, TrainProgress
from forebay.trainers.ranks import gather, joined_ranks, rank, sums_over_ranks, world_size
from forebay.trainers.report import EpochReport, TrainReport, rank_time
from forebay.trainers.run_state import Run, load_run, run_state
from forebay.trainers.stepper import Stepper

__all__ = ["Loop"]

logger = logging.getLogger(__name__)

_STEPS_BETWEEN_READS = 50
"""On a GPU; reading a loss waits for the step, and this many cost it nothing that could be measured."""


class Loop:
    """Trains by a stepper up to a number of epochs, from the newest checkpoint or from the start."""

    def __init__(
        self,
        stepper: Stepper,
        train: DataLoader,
        *,
        epochs: int,
        device: torch.device,
        data_ranks: int | None = None,
        shown_by: int = 0,
        validation: DataLoader | None = None,
        checkpoint: CheckpointConfig | None = None,
        progress: TrainProgress | None = None,
    ) -> None:
        if epochs < 0:
            raise ConfigError(f"epochs={epochs}; give the number of passes over the data, 0 or more")
        for name, loader in (("train", train), ("validation", validation)):
            if loader is not None and not isinstance(getattr(loader, "dataset", None), ShardDataset):
                raise ConfigError(
                    f"{name}= needs a forebay.DataLoader of a ShardDataset, whose position can be saved; "
                    "write the data as shards with ShardWriter or `forebay shard`"
                )
        self._stepper = stepper
        self._train = train
        self._validation = validation
        self._loaders = [train] if validation is None else [train, validation]
        self._epochs = epochs
        self._device = device
        self._data_ranks = data_ranks
        self._shown_by = shown_by
        self._config = checkpoint
        self._checkpoints: Checkpoints | None = None
        self._progress: TrainProgress = ConsoleProgress() if progress is None else progress
        self._stop = StopRequest()

    def fit(self) -> TrainReport:
        """Train. Returns what was measured, the same on every rank."""
        with joined_ranks(self._device), ExitStack() as ending:
            for loader in self._loaders:
                ending.callback(loader.close)
            ending.callback(self._progress.close)
            # Before the process group goes: what wraps the model joins gloo's threads, and they may wait for the GIL.
            ending.callback(self._stepper.end)
            with first_error_in_front():
                return self._fit(ending)

    def _fit(self, ending: ExitStack) -> TrainReport:
        self._stop = ending.enter_context(StopRequest())
        if self._config is not None:
            self._checkpoints = Checkpoints(self._config)
            ending.callback(self._checkpoints.close)
        self._stepper.begin()
        for loader in self._loaders:
            loader.state_dict()  # a seed that was not given is drawn here, before a resume sets the generators
        run = self._resume()
        while run.epoch < self._epochs:
            self._train_epoch(run)
            self._save(run)
        if self._checkpoints is not None:
            self._checkpoints.finish()
        return TrainReport(epochs=tuple(run.reports), first_step=run.first_step, losses=tuple(run.losses))

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def _train_epoch(self, run: Run) -> None:
        if run.epoch_step == 0:
            self._train.set_epoch(run.epoch)
        size = self._stepper.update_size
        batches = iter(self._train)
        left = len(batches)
        steps = run.epoch_step + -(-left // size)
        fed = feed(self._train, batches, self._device)
        progress = self._progress if rank() == self._shown_by else NoProgress()
        progress.begin_epoch(run.epoch, epochs=self._epochs, steps=steps, done=run.epoch_step)

        started, before, first_step = time.monotonic(), self._train.stats(), run.epoch_step
        for first_batch in range(0, left, size):
            count = min(size, left - first_batch)
            loss = self._stepper.step(fed, count)
            run.pending.append((loss, range(first_batch, first_batch + count)))
            run.step += 1
            run.epoch_step += 1
            progress.step(loss)
            if self._device.type == "cpu":
                self._check(run, *run.pending[-1])
            elif len(run.pending) >= _STEPS_BETWEEN_READS:
                self._read_losses(run)
            if run.epoch_step < steps:  # the end of an epoch is saved by itself
                self._between_steps(run)
        self._read_losses(run)
        seconds = time.monotonic() - started
        ranks = gather(rank_time(before, self._train.stats(), seconds=seconds, steps=run.epoch_step - first_step))
        report = EpochReport.of_ranks(
            ranks,
            epoch=run.epoch,
            loss=run.epoch_loss / max(run.epoch_step, 1),
            validation={} if self._validation is None else self._stepper.validate(self._validation),
            data_ranks=self._data_ranks or world_size(),
        )
        run.reports.append(report)
        run.epoch, run.epoch_step, run.epoch_loss = run.epoch + 1, 0, 0.0
        progress.end_epoch(report)

    def _between_steps(self, run: Run) -> None:
        stop = self._stop.wanted()
        if stop or (self._checkpoints is not None and run.step % self._checkpoints.every_steps == 0):
            self._save(run)
        if stop:
            if self._checkpoints is not None:
                self._checkpoints.finish()
                logger.warning("stopped after step %d, which is saved; start again to go on from there", run.step)
            raise KeyboardInterrupt

    def _check(self, run: Run, loss: Tensor, numbers: range) -> None:
        """Raise when a loss is no number, with the samples that it was of."""
        if bool(loss.isfinite()):
            return
        step = run.step - len(run.pending) + [batches for _, batches in run.pending].index(numbers)
        samples = [int(i) for number in numbers for i in self._train.ids_of(batch=number)]
        raise LossError(
            f"the loss of step {step} is {float(loss)} on rank {rank()}, of the samples {samples}; look at them with "
            "dataset[i], lower the learning rate or clip gradients. Starting again goes on from the checkpoint before",
            step=step,
            loss=float(loss),
            samples=samples,
        )

    def _read_losses(self, run: Run) -> None:
        """Bring the losses of the last steps from the device, averaged over the ranks. A collective."""
        if not run.pending:
            return
        values = torch.stack([loss for loss, _ in run.pending])
        if not bool(values.isfinite().all()):
            for loss, numbers in run.pending:
                self._check(run, loss, numbers)
        losses = [total / world_size() for total in sums_over_ranks(values, self._device)]
        run.pending.clear()
        run.losses += losses
        for loss_of_step in losses:  # one by one, so that a resumed epoch adds up to the same bits
            run.epoch_loss += loss_of_step

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, run: Run) -> None:
        if self._checkpoints is not None:
            self._read_losses(run)
            self._checkpoints.save(run.step, run_state(run, self._stepper, self._train, self._device))

    def _resume(self) -> Run:
        """Load the newest checkpoint; without one, begin."""
        step = None if self._checkpoints is None else self._checkpoints.begin()
        if self._checkpoints is None or step is None:
            return Run()
        return load_run(self._checkpoints, step, self._stepper, self._train, self._device)
