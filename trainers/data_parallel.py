"""Data-parallel training, to be read from top to bottom: epochs, steps, validation, checkpoints.

Each rank has a copy of the model and steps it on its part of every global batch (DistributedDataParallel). A run that
was killed goes on by itself and repeats the losses of the run that was not.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset
from forebay.trainers.checkpoint import CheckpointConfig, Checkpoints, random_state, restore_random_state
from forebay.trainers.progress import ConsoleProgress, NoProgress, TrainProgress
from forebay.trainers.ranks import (
    choose_device,
    gather,
    joined_ranks,
    rank,
    sums_over_ranks,
    world_size,
)
from forebay.trainers.report import EpochReport, TrainReport
from forebay.trainers.validation import VALID, Batch, Loss, Metric, to_device, validate

__all__ = ["DataParallelTrainer"]

logger = logging.getLogger(__name__)

_VERSION = 1


@dataclass(kw_only=True)
class _Run:
    """How far training has come."""

    epoch: int = 0
    step: int = 0
    epoch_step: int = 0
    """Steps done of `epoch`."""
    epoch_loss: float = 0.0
    """Sum of their losses."""
    reports: list[EpochReport] = field(default_factory=list)
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    """Since `first_step`, over all ranks."""
    pending: list[Tensor] = field(default_factory=list)
    """Losses of this rank that are still on the device: reading each at once would stop it."""


class DataParallelTrainer:
    """Trains a model on shards, alone or on every rank that torchrun started (gloo on CPUs, nccl on GPUs).

        trainer = DataParallelTrainer(model, optimizer, loss, loader, epochs=90, checkpoint="run/")
        print(trainer.fit())

    With `checkpoint`, `fit()` goes on from the newest one that is whole: the model, the optimizer, the scheduler, every
    rank's generators of random numbers, and the very next batch. On the CPU, and wherever the operations of the model
    are deterministic, the losses that follow are bit by bit those of a run that was never killed.

    Gradients are the mean over the global batch, also of a short last one that ranks divide unevenly.

    Args:
        model: moved to `device` by `fit()`; rank 0's values count.
        optimizer: of the model's parameters.
        loss: `loss(outputs, batch)`, the mean over the samples of `batch`.
        train: loader of a `ShardDataset`; `batch_size` is per rank.
        epochs: passes over the data in all, those before a resume included.
        validation: loader of what is measured after each epoch. Put `"__valid__"` among the columns of its data set, so
            that a sample repeated to give every rank a batch is not counted twice.
        metrics: name to `metric(outputs, batch)`, a number or bool for each sample, (B,); for instance `accuracy`.
        scheduler: stepped after each optimizer step.
        inputs: the output of the data set that goes into the model.
        device: of this process; None means the GPU of the local rank, else the CPU.
        checkpoint: where to keep checkpoints, a folder or a `CheckpointConfig`; None keeps none. All ranks read it.
        progress: who is told of steps and epochs, on rank 0; None shows them on standard error, `NoProgress()` nobody.

    Raises:
        ConfigError: settings that cannot work.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        train: DataLoader,
        *,
        epochs: int,
        validation: DataLoader | None = None,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: LRScheduler | None = None,
        inputs: str = "image",
        device: torch.device | str | None = None,
        checkpoint: str | os.PathLike[str] | CheckpointConfig | None = None,
        progress: TrainProgress | None = None,
    ) -> None:
        if epochs < 0:
            raise ConfigError(f"epochs={epochs}; give the number of passes over the data, 0 or more")
        if metrics and validation is None:
            raise ConfigError(f"metrics={sorted(metrics)} are measured on validation data; give validation= too")
        for name, loader in (("train", train), ("validation", validation)):
            if loader is not None and not isinstance(getattr(loader, "dataset", None), ShardDataset):
                raise ConfigError(
                    f"{name}= needs a forebay.DataLoader of a ShardDataset, whose position can be saved; "
                    "write the data as shards with ShardWriter or `forebay shard`"
                )
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._train = train
        self._epochs = epochs
        self._validation = validation
        self._metrics = dict(metrics or {})
        self._scheduler = scheduler
        self._inputs = inputs
        self._device = choose_device(device)
        config = CheckpointConfig(path=Path(checkpoint)) if isinstance(checkpoint, str | os.PathLike) else checkpoint
        self._every_steps = config.every_steps if config is not None else None
        self._checkpoints = Checkpoints(config) if config is not None else None
        self._progress: TrainProgress = ConsoleProgress() if progress is None else progress
        self._forward: nn.Module = model

    def fit(self) -> TrainReport:
        """Train up to `epochs` epochs, from the newest checkpoint or from the start.

        Returns:
            What was measured, the same on every rank.

        Raises:
            SourceError: checkpoints are there and none can be read, or one cannot be written.
            ConfigError: the checkpoint is of another model or of other data.
        """
        with joined_ranks(self._device):
            try:
                return self._fit()
            finally:
                # Before the process group goes: destroyed after it, the wrapper joins gloo's threads with the GIL held,
                # and one of them may wait for it to free a tensor.
                self._forward = self._model
                self._train.close()
                if self._validation is not None:
                    self._validation.close()
                self._progress.close()

    def _fit(self) -> TrainReport:
        self._model.to(self._device)
        self._forward = DistributedDataParallel(self._model) if world_size() > 1 else self._model
        for loader in filter(None, (self._train, self._validation)):
            loader.state_dict()  # a seed that was not given is drawn here, before a resume sets the generators
        run = self._resume()
        while run.epoch < self._epochs:
            self._train_epoch(run)
            self._save(run)
        return TrainReport(epochs=tuple(run.reports), first_step=run.first_step, losses=tuple(run.losses))

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def _train_epoch(self, run: _Run) -> None:
        if run.epoch_step == 0:
            self._train.set_epoch(run.epoch)
        self._forward.train()
        batches = iter(self._train)
        progress = self._progress if rank() == 0 else NoProgress()
        steps = run.epoch_step + len(batches)
        progress.begin_epoch(run.epoch, epochs=self._epochs, steps=steps, done=run.epoch_step)

        started = time.monotonic()
        before = self._train.stats()
        for batch, share in self._with_share(batches):
            if run.step == run.first_step > 0:
                self._rehearse(batch)
            run.pending.append(self._step(batch, share))
            run.step += 1
            run.epoch_step += 1
            progress.step(run.pending[-1])
            if self._every_steps is not None and run.step % self._every_steps == 0:
                self._save(run)
        self._read_losses(run)
        seconds = time.monotonic() - started
        after = self._train.stats()

        samples, stall_s, seconds = sums_over_ranks(
            [after.samples - before.samples, after.stall_s - before.stall_s, seconds], self._device
        )
        report = EpochReport(
            epoch=run.epoch,
            loss=run.epoch_loss / max(run.epoch_step, 1),
            validation=self._validate(),
            samples=int(samples),
            seconds=seconds / world_size(),
            stall_share=stall_s / seconds if seconds else 0.0,
        )
        run.reports.append(report)
        run.epoch, run.epoch_step, run.epoch_loss = run.epoch + 1, 0, 0.0
        progress.end_epoch(report)

    def _validate(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        return validate(
            self._model, self._validation, self._loss, self._metrics, inputs=self._inputs, device=self._device
        )

    def _with_share(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float]]:
        """Batches on the device, each with this rank's share of the global batch, times the number of ranks."""
        position = self._train.state_dict()["position"]
        for batch in batches:
            before, position = position, self._train.state_dict()["position"]
            local, together = len(batch[self._inputs]), position - before
            if together < world_size() and VALID in batch:  # some ranks got a sample only to have a batch
                local = int(batch[VALID].sum())
            share = local * world_size() / together if together >= world_size() or VALID in batch else 1.0
            yield to_device(batch, self._device), share

    def _step(self, batch: Batch, share: float) -> Tensor:
        outputs = self._forward(batch[self._inputs])
        loss = self._loss(outputs, batch) * share  # DDP averages over ranks: with the share, over samples
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        return loss.detach()

    def _rehearse(self, batch: Batch) -> None:
        """Bring DistributedDataParallel to where it was in the run that was not killed.

        It groups gradients anew after its first backward pass, and more than two ranks add up in an order, hence round,
        that depends on the groups. So after a resume the first step is done once for nothing.
        """
        if world_size() <= 2:
            return
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        generators = random_state(self._device)
        loss = self._loss(self._forward(batch[self._inputs]), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad()
        for name, buffer in self._model.named_buffers():
            buffer.copy_(buffers[name])
        restore_random_state(generators, self._device)

    def _read_losses(self, run: _Run) -> None:
        """Bring the losses of the last steps from the device, averaged over the ranks. A collective."""
        if run.pending:
            losses = [total / world_size() for total in sums_over_ranks(torch.stack(run.pending), self._device)]
            run.pending.clear()
            run.losses += losses
            for loss in losses:  # one by one, so that a resumed epoch adds up to the same bits
                run.epoch_loss += loss

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, run: _Run) -> None:
        if self._checkpoints is None:
            return
        self._read_losses(run)
        generators = gather(random_state(self._device))
        if rank() == 0:
            self._checkpoints.save(
                run.step,
                {
                    "version": _VERSION,
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
                    "loader": self._train.state_dict(),
                    "random": generators,
                    "epoch": run.epoch,
                    "epoch_step": run.epoch_step,
                    "epoch_loss": run.epoch_loss,
                    "reports": [asdict(report) for report in run.reports],
                },
            )

    def _resume(self) -> _Run:
        """Load what rank 0 finds to be the newest checkpoint; without one, begin."""
        if self._checkpoints is None:
            return _Run()
        found = self._checkpoints.load() if rank() == 0 else None
        step = gather(found[0] if found is not None else None)[0]
        if step is None:
            return _Run()
        if found is None:
            found = self._checkpoints.load(step)
        if found is None:
            raise ConfigError(
                f"rank {rank()} does not see the checkpoint of step {step} that rank 0 goes on from; put checkpoints "
                "on a file system that all ranks share"
            )
        state = found[1]
        self._check_version(step, state)
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self._scheduler is not None:
                self._scheduler.load_state_dict(state["scheduler"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the checkpoint of step {step} does not fit: {error}; it is of another model, optimizer or scheduler. "
                "Give back what it was taken with, or another checkpoint folder to begin anew"
            ) from error
        self._train.load_state_dict(state["loader"])
        if rank() < len(state["random"]):  # ranks that were not there before keep their own
            restore_random_state(state["random"][rank()], self._device)
        logger.info("going on after step %d, in epoch %d", step, state["epoch"])
        return _Run(
            epoch=state["epoch"],
            step=step,
            epoch_step=state["epoch_step"],
            epoch_loss=state["epoch_loss"],
            reports=[EpochReport(**report) for report in state["reports"]],
            first_step=step,
        )

    def _check_version(self, step: int, state: Mapping[str, Any]) -> None:
        if state.get("version") != _VERSION:
            raise ConfigError(
                f"the checkpoint of step {step} has version {state.get('version')!r}, this forebay reads {_VERSION}; "
                "go on with the version that wrote it, or give another checkpoint folder to begin anew"
            )
