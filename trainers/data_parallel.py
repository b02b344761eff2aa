"""Data-parallel training: every rank steps the model on its part of each global batch. The loop is in `loop.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.errors import ConfigError
from forebay.loader import DataLoader
from forebay.trainers.batch import Loss, Metric
from forebay.trainers.checkpoint_folder import CheckpointConfig
from forebay.trainers.data_parallel_config import DataParallelConfig
from forebay.trainers.data_parallel_stepper import DataParallelStepper
from forebay.trainers.loop import Loop
from forebay.trainers.progress import TrainProgress
from forebay.trainers.ranks import choose_device, joined_ranks
from forebay.trainers.report import TrainReport

__all__ = ["DataParallelTrainer"]


class DataParallelTrainer:
    """Trains a model on shards, alone or on every rank that torchrun started (gloo on CPUs, nccl on GPUs).

        trainer = DataParallelTrainer(model, optimizer, loss, loader, epochs=90, checkpoint="run/")
        print(trainer.fit())

    With `checkpoint`, `fit()` goes on from the newest one that is whole: the model, the optimizer, the scheduler, every
    rank's generators of random numbers, and the very next batch. On the CPU, and wherever the operations of the model
    are deterministic, the losses that follow are bit by bit those of a run that was never killed.

    Gradients are the mean over the global batch, also of a short last one that ranks divide unevenly. Ctrl-C stops
    after the step at hand, saves, and raises KeyboardInterrupt. An error on one rank ends all, and is told on all.

    Args:
        model: moved to `device` by `fit()`; rank 0's values count.
        optimizer: of the model's parameters.
        loss: `loss(outputs, batch)`, the mean over the samples of `batch`.
        train: loader of a `ShardDataset`; `batch_size` is per rank. Its `device=` makes it copy batches there ahead.
        epochs: passes over the data in all, those before a resume included.
        config: sharing, precision, accumulation, clipping; None is the default of each.
        validation: loader of what is measured after each epoch; a sample that was repeated is not counted twice.
        metrics: name to `metric(outputs, batch)`, a number or bool for each sample, (B,); for instance `accuracy`.
        scheduler: stepped after each optimizer step.
        inputs: the output of the data set that goes into the model.
        device: of this process; None means the GPU of the local rank, else the CPU.
        checkpoint: where to keep checkpoints, a folder or a `CheckpointConfig`; None keeps none. All ranks see it.
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
        config: DataParallelConfig | None = None,
        validation: DataLoader | None = None,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: LRScheduler | None = None,
        inputs: str = "image",
        device: torch.device | str | None = None,
        checkpoint: str | os.PathLike[str] | CheckpointConfig | None = None,
        progress: TrainProgress | None = None,
    ) -> None:
        if metrics and validation is None:
            raise ConfigError(f"metrics={sorted(metrics)} are measured on validation data; give validation= too")
        self._device = choose_device(device)
        self._stepper = DataParallelStepper(
            model,
            optimizer,
            loss,
            config or DataParallelConfig(),
            scheduler=scheduler,
            metrics=dict(metrics or {}),
            inputs=inputs,
            device=self._device,
            loaders=[train] if validation is None else [train, validation],
        )
        self._loop = Loop(
            self._stepper,
            train,
            epochs=epochs,
            device=self._device,
            validation=validation,
            checkpoint=CheckpointConfig(path=Path(checkpoint))
            if isinstance(checkpoint, str | os.PathLike)
            else checkpoint,
            progress=progress,
        )

    def fit(self) -> TrainReport:
        """Train up to `epochs` epochs, from the newest checkpoint or from the start.

        Returns:
            What was measured, the same on every rank.

        Raises:
            SourceError: checkpoints are there and none can be read, or one cannot be written.
            ConfigError: the checkpoint is of another model or of other data.
            LossError: the loss is no finite number; names the samples.
            RankFailedError: another rank failed; tells its error.
            KeyboardInterrupt: Ctrl-C was pressed; the step at hand was finished and saved.
        """
        return self._loop.fit()

    def predict(self, loader: DataLoader) -> Tensor:
        """The model's outputs for every sample that `loader` covers, in the order of the data set. A collective.

        Args:
            loader: of a data set with `"__index__"` among its columns.

        Returns:
            (N, ...) on the CPU, the same on every rank.
        """
        with joined_ranks(self._device):
            try:
                return self._stepper.predict(loader)
            finally:
                loader.close()
